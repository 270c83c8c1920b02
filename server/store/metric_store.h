// History of the metrics of jobs: lossy (a crash may cost the last moments), limited in time and size, apart from the
// store that jobs depend on. Nothing here ever fails a job: what cannot be written is counted and dropped. Thread-safe.
#ifndef SLIPWAY_SERVER_STORE_METRIC_STORE_H_
#define SLIPWAY_SERVER_STORE_METRIC_STORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/metrics.pb.h"

namespace rocksdb {
class DB;
}  // namespace rocksdb

namespace slipway::server::store {

struct MetricLimits {
  absl::Duration keep = absl::Hours(24 * 30);
  // Of the files; what is still in memory and in the write-ahead log (at most a quarter of it, and 32 MiB) comes on
  // top.
  int64_t max_bytes = int64_t{1} << 30;
};

class MetricStore {
 public:
  // What was written longest ago goes away in the background, by age and when there is too much of it. A database that
  // cannot be opened is thrown away and made anew.
  static absl::StatusOr<std::unique_ptr<MetricStore>> Open(const std::string& directory, const MetricLimits& limits);
  ~MetricStore();

  // A newer attempt's record of a step replaces an older one's.
  void Add(const std::string& job_id, const v1::MetricBatch& batch);
  // An attempt goes on after `step`: what earlier attempts recorded beyond it is no part of the run any more.
  void ForkAfter(const std::string& job_id, int64_t step, int64_t epoch);
  // Records of steps in [from_step, to_step] (to_step 0: to the end) by step, evaluations after the step's own record.
  // More than max_records are thinned evenly; the first and the last one stay.
  absl::StatusOr<std::vector<v1::MetricRecord>> Query(const std::string& job_id, int64_t from_step, int64_t to_step,
                                                      size_t max_records) const;
  int64_t dropped() const { return dropped_; }

 private:
  explicit MetricStore(std::unique_ptr<rocksdb::DB> db);

  const std::unique_ptr<rocksdb::DB> db_;
  std::atomic<int64_t> dropped_ = 0;
};

}  // namespace slipway::server::store

#endif  // SLIPWAY_SERVER_STORE_METRIC_STORE_H_
