#include "server/store/store.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "server/store/job_record.h"
#include "server/store/keys.h"
#include "server/store/rocksdb_status.h"

namespace slipway::server::store {
namespace {

rocksdb::Slice AsSlice(absl::string_view text) { return rocksdb::Slice(text.data(), text.size()); }

absl::string_view AsView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

rocksdb::Options DatabaseOptions() {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.write_buffer_size = 16 << 20;
  options.max_log_file_size = 4 << 20;
  options.keep_log_file_num = 2;
  options.max_background_jobs = 2;
  options.max_open_files = 256;
  options.max_total_wal_size = 64 << 20;
  // A crash may cut the end of the log; anything else that is wrong there must not go unnoticed.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  return options;
}

absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabase(const std::string& directory) {
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(DatabaseOptions(), directory, &db);
  if (!status.ok()) return FromRocksDb(status, absl::StrCat("opening the store ", directory));
  return std::unique_ptr<rocksdb::DB>(db);
}

// Calls `visit(key without prefix, value)` until it returns false.
template <typename Visit>
absl::Status Scan(rocksdb::DB& db, absl::string_view prefix, absl::string_view start, Visit visit) {
  const std::unique_ptr<rocksdb::Iterator> it(db.NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(AsSlice(start)); it->Valid(); it->Next()) {
    const absl::string_view key = AsView(it->key());
    if (key.substr(0, prefix.size()) != prefix) break;
    if (!visit(key.substr(prefix.size()), AsView(it->value()))) break;
  }
  return FromRocksDb(it->status(), "reading the store");
}

template <typename Message>
bool Parse(absl::string_view value, Message* message) {
  return message->ParseFromArray(value.data(), static_cast<int>(value.size()));
}

struct Bad {
  std::string key;
  std::string value;
  std::string why;
};

// Reads all records of a kind; `take` returns an error for one that makes no sense.
template <typename Message, typename Take>
absl::Status LoadKind(rocksdb::DB& db, absl::string_view prefix, std::vector<Bad>* bad, Take take) {
  return Scan(db, prefix, prefix, [&](absl::string_view rest, absl::string_view value) {
    Message message;
    const absl::Status status =
        Parse(value, &message) ? take(message) : absl::DataLossError("its bytes are no such record");
    if (!status.ok()) bad->push_back({absl::StrCat(prefix, rest), std::string(value), std::string(status.message())});
    return true;
  });
}

void Put(rocksdb::WriteBatch& batch, absl::string_view key, const google::protobuf::Message& message) {
  batch.Put(AsSlice(key), message.SerializeAsString());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat("creating ", directory, ": ", error.message()));
  SLIPWAY_ASSIGN_OR_RETURN(auto db, OpenDatabase(directory));
  std::string value;
  const rocksdb::Status status = db->Get(rocksdb::ReadOptions(), AsSlice(kHeaderKey), &value);
  storage::v1::StoreHeader header;
  if (status.ok()) {
    if (!header.ParseFromString(value)) {
      return absl::DataLossError(absl::StrCat("the header of the store ", directory, " cannot be read"));
    }
    if (header.format_version() > kFormatVersion) {
      return absl::FailedPreconditionError(
          absl::StrCat("the store ", directory, " has format version ", header.format_version(),
                       ", written by a newer slipwayd; this one reads up to ", kFormatVersion));
    }
  } else if (!status.IsNotFound()) {
    return FromRocksDb(status, absl::StrCat("reading the store ", directory));
  }
  std::unique_ptr<Store> store(new Store(directory, std::move(db)));
  absl::MutexLock lock(&store->mutex_);
  store->header_ = header;
  return store;
}

Store::Store(std::string directory, std::unique_ptr<rocksdb::DB> db)
    : directory_(std::move(directory)), db_(std::move(db)) {}

Store::~Store() {
  absl::MutexLock lock(&mutex_);
  if (db_ != nullptr) db_->SyncWAL().PermitUncheckedError();
}

std::shared_ptr<rocksdb::DB> Store::Database() const {
  absl::MutexLock lock(&mutex_);
  return db_;
}

absl::StatusOr<Loaded> Store::Load() {
  const auto db = Database();
  if (db == nullptr) return absl::UnavailableError("the store is closed");
  Loaded loaded;
  {
    absl::MutexLock lock(&mutex_);
    loaded.header = header_;
  }
  std::vector<Bad> bad;
  SLIPWAY_RETURN_IF_ERROR(LoadKind<storage::v1::JobRecord>(*db, "j/", &bad, [&](const auto& record) -> absl::Status {
    SLIPWAY_ASSIGN_OR_RETURN(core::JobEntry entry, FromRecord(record));
    loaded.jobs.push_back(std::move(entry));
    return absl::OkStatus();
  }));
  SLIPWAY_RETURN_IF_ERROR(LoadKind<storage::v1::RequestRecord>(*db, "r/", &bad, [&](const auto& record) {
    loaded.requests.push_back(record);
    return absl::OkStatus();
  }));
  SLIPWAY_RETURN_IF_ERROR(LoadKind<storage::v1::NodeRecord>(*db, "n/", &bad, [&](const auto& record) {
    loaded.nodes.push_back(record);
    return absl::OkStatus();
  }));

  rocksdb::WriteBatch batch;
  for (const Bad& record : bad) {
    batch.Delete(record.key);
    batch.Put(QuarantineKey(record.key), record.value);
    loaded.quarantined.push_back(absl::StrCat(absl::CHexEscape(record.key), ": ", record.why));
  }
  loaded.header.set_format_version(kFormatVersion);
  loaded.header.set_boots(loaded.header.boots() + 1);
  Put(batch, kHeaderKey, loaded.header);
  rocksdb::WriteOptions synced;
  synced.sync = true;
  SLIPWAY_RETURN_IF_ERROR(FromRocksDb(db->Write(synced, &batch), "writing the store's header"));
  absl::MutexLock lock(&mutex_);
  header_ = loaded.header;
  return loaded;
}

absl::Status Store::Commit(const Batch& batch) {
  const auto db = Database();
  if (db == nullptr) return absl::UnavailableError("the store is closed after an error");
  rocksdb::WriteBatch writes;
  for (const auto& job : batch.jobs) Put(writes, JobKey(job.job().id()), job);
  for (const auto& request : batch.requests) Put(writes, RequestKey(request.request_id()), request);
  for (const auto& node : batch.nodes) Put(writes, NodeKey(node.node_id()), node);
  for (const std::string& id : batch.expired_requests) writes.Delete(RequestKey(id));
  for (const v1::JobEvent& event : batch.events) {
    storage::v1::EventRecord record;
    record.set_format_version(kFormatVersion);
    *record.mutable_event() = event;
    Put(writes, EventKey(event.revision()), record);
    writes.Put(JobEventKey(event.job_id(), event.revision()), rocksdb::Slice());
  }
  storage::v1::StoreHeader header;
  {
    absl::MutexLock lock(&mutex_);
    header = header_;
  }
  header.set_format_version(kFormatVersion);
  header.set_revision(batch.revision);
  Put(writes, kHeaderKey, header);
  rocksdb::WriteOptions synced;
  synced.sync = true;
  SLIPWAY_RETURN_IF_ERROR(FromRocksDb(db->Write(synced, &writes), absl::StrCat("writing to the store ", directory_)));
  absl::MutexLock lock(&mutex_);
  header_ = header;
  return absl::OkStatus();
}

absl::Status Store::Reopen() {
  std::shared_ptr<rocksdb::DB> old;
  {
    absl::MutexLock lock(&mutex_);
    old = std::move(db_);
  }
  // Readers may still hold it for a moment; RocksDB's own lock would refuse a second open.
  while (old != nullptr && old.use_count() > 1) absl::SleepFor(absl::Milliseconds(1));
  old.reset();
  SLIPWAY_ASSIGN_OR_RETURN(auto db, OpenDatabase(directory_));
  absl::MutexLock lock(&mutex_);
  db_ = std::move(db);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<v1::JobEvent>> Store::EventsAfter(int64_t revision, size_t limit) const {
  const auto db = Database();
  if (db == nullptr) return absl::UnavailableError("the store is closed after an error");
  const int64_t compacted = compacted_revision();
  if (revision < compacted) {
    return absl::OutOfRangeError(absl::StrCat("revision ", revision, " is compacted; the oldest is ", compacted,
                                              ": start again with a snapshot"));
  }
  std::vector<v1::JobEvent> events;
  SLIPWAY_RETURN_IF_ERROR(Scan(*db, "e/", EventKey(revision + 1), [&](absl::string_view, absl::string_view value) {
    if (events.size() >= limit) return false;
    storage::v1::EventRecord record;
    if (Parse(value, &record)) events.push_back(std::move(*record.mutable_event()));
    return true;
  }));
  return events;
}

absl::StatusOr<std::vector<v1::JobEvent>> Store::JobEventsAfter(const std::string& job_id, int64_t revision,
                                                                size_t limit) const {
  const auto db = Database();
  if (db == nullptr) return absl::UnavailableError("the store is closed after an error");
  std::vector<int64_t> revisions;
  SLIPWAY_RETURN_IF_ERROR(Scan(*db, JobEventPrefix(job_id), JobEventKey(job_id, revision + 1),
                               [&](absl::string_view rest, absl::string_view) {
                                 revisions.push_back(FromBigEndian(rest));
                                 return revisions.size() < limit;
                               }));
  std::vector<v1::JobEvent> events;
  for (const int64_t at : revisions) {
    std::string value;
    const rocksdb::Status status = db->Get(rocksdb::ReadOptions(), EventKey(at), &value);
    if (status.IsNotFound()) continue;
    if (!status.ok()) return FromRocksDb(status, "reading an event");
    storage::v1::EventRecord record;
    if (record.ParseFromString(value)) events.push_back(std::move(*record.mutable_event()));
  }
  return events;
}

int64_t Store::compacted_revision() const {
  absl::MutexLock lock(&mutex_);
  return header_.compacted_revision();
}

absl::Status Store::Compact(int64_t revision) {
  const auto db = Database();
  if (db == nullptr) return absl::UnavailableError("the store is closed after an error");
  rocksdb::WriteBatch batch;
  SLIPWAY_RETURN_IF_ERROR(Scan(*db, "e/", "e/", [&](absl::string_view rest, absl::string_view value) {
    const int64_t at = FromBigEndian(rest);
    if (at > revision) return false;
    storage::v1::EventRecord record;
    if (Parse(value, &record)) batch.Delete(JobEventKey(record.event().job_id(), at));
    batch.Delete(EventKey(at));
    return true;
  }));
  storage::v1::StoreHeader header;
  {
    absl::MutexLock lock(&mutex_);
    header = header_;
  }
  header.set_compacted_revision(std::max(header.compacted_revision(), revision));
  Put(batch, kHeaderKey, header);
  SLIPWAY_RETURN_IF_ERROR(FromRocksDb(db->Write(rocksdb::WriteOptions(), &batch), "compacting the store"));
  absl::MutexLock lock(&mutex_);
  header_ = header;
  return absl::OkStatus();
}

}  // namespace slipway::server::store
