// The coordinator's memory: jobs, events, request ids and nodes in RocksDB. Commit is one synced write batch: after OK
// all of it survives a crash, after an error none of it counts. A record that cannot be read is set aside, not fatal.
//
// Commit, Reopen and Compact belong to one thread; the reading functions may be called from any thread at any time.
#ifndef SLIPWAY_SERVER_STORE_STORE_H_
#define SLIPWAY_SERVER_STORE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/core/state.h"
#include "slipway/storage/v1/storage.pb.h"
#include "slipway/v1/job.pb.h"

namespace rocksdb {
class DB;
}  // namespace rocksdb

namespace slipway::server::store {

struct Batch {
  std::vector<storage::v1::JobRecord> jobs;
  std::vector<v1::JobEvent> events;
  std::vector<storage::v1::RequestRecord> requests;
  std::vector<storage::v1::NodeRecord> nodes;
  std::vector<std::string> expired_requests;
  int64_t revision = 0;  // after all of it

  bool empty() const {
    return jobs.empty() && events.empty() && requests.empty() && nodes.empty() && expired_requests.empty();
  }
};

struct Loaded {
  storage::v1::StoreHeader header;
  std::vector<core::JobEntry> jobs;
  std::vector<storage::v1::RequestRecord> requests;
  std::vector<storage::v1::NodeRecord> nodes;
  std::vector<std::string> quarantined;  // one line each: which record, and why
};

class Store {
 public:
  // Makes `directory` when it is not there. FailedPrecondition when a newer slipwayd wrote it.
  static absl::StatusOr<std::unique_ptr<Store>> Open(const std::string& directory);
  ~Store();

  // Everything, and counts this start (header.boots). Records that cannot be read are moved aside.
  absl::StatusOr<Loaded> Load();

  // ResourceExhausted for a full disk, else Unavailable; every later call fails until Reopen succeeds.
  absl::Status Commit(const Batch& batch);
  // After a failed Commit: closes and opens the database, which then holds everything up to the last OK.
  absl::Status Reopen();

  // Events after `revision` in order, at most `limit`. OutOfRange when some of them are compacted, naming the oldest
  // revision there is.
  absl::StatusOr<std::vector<v1::JobEvent>> EventsAfter(int64_t revision, size_t limit) const;
  // The same of one job; what is compacted is just not there.
  absl::StatusOr<std::vector<v1::JobEvent>> JobEventsAfter(const std::string& job_id, int64_t revision,
                                                           size_t limit) const;
  int64_t compacted_revision() const;

  // Forgets events up to `revision`.
  absl::Status Compact(int64_t revision);

 private:
  Store(std::string directory, std::unique_ptr<rocksdb::DB> db);

  std::shared_ptr<rocksdb::DB> Database() const;

  const std::string directory_;
  mutable absl::Mutex mutex_;
  // Null between a failed Reopen and the next one. Readers keep the old one alive while they read.
  std::shared_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(mutex_);
  storage::v1::StoreHeader header_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway::server::store

#endif  // SLIPWAY_SERVER_STORE_STORE_H_
