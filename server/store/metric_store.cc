#include "server/store/metric_store.h"

#include <rocksdb/db.h>
#include <rocksdb/options.h>
#include <rocksdb/write_batch.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/store/keys.h"
#include "server/store/rocksdb_status.h"
#include "slipway/storage/v1/storage.pb.h"
#include "spdlog/spdlog.h"

namespace slipway::server::store {
namespace {

std::string Prefix(const std::string& job_id) { return absl::StrCat(job_id, "/"); }

// "<job>/<step><kind>": a step ("s") sorts before the evaluation made after it ("t").
std::string MetricKey(const std::string& job_id, const v1::MetricRecord& record) {
  return record.has_eval() ? absl::StrCat(Prefix(job_id), BigEndian(record.eval().step()), "t")
                           : absl::StrCat(Prefix(job_id), BigEndian(record.step().step()), "s");
}

// First in, first out: whole files are dropped, oldest first, by age and by their sum.
absl::StatusOr<std::unique_ptr<rocksdb::DB>> OpenDatabase(const std::string& directory, const MetricLimits& limits) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compaction_style = rocksdb::kCompactionStyleFIFO;
  options.compaction_options_fifo.max_table_files_size = static_cast<uint64_t>(limits.max_bytes);
  options.compaction_options_fifo.allow_compaction = true;  // of small files into larger ones
  options.ttl = static_cast<uint64_t>(absl::ToInt64Seconds(limits.keep));
  options.write_buffer_size = static_cast<size_t>(std::clamp<int64_t>(limits.max_bytes / 16, 64 << 10, 8 << 20));
  options.max_log_file_size = 4 << 20;
  options.keep_log_file_num = 2;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(options, directory, &db);
  if (!status.ok()) return FromRocksDb(status, absl::StrCat("opening the metrics history ", directory));
  return std::unique_ptr<rocksdb::DB>(db);
}

std::vector<v1::MetricRecord> Thin(std::vector<v1::MetricRecord> records, size_t max_records) {
  if (records.size() <= max_records) return records;
  std::vector<v1::MetricRecord> kept;
  kept.reserve(max_records);
  for (size_t i = 0; i < max_records; ++i) {
    const size_t at = max_records == 1 ? records.size() - 1 : i * (records.size() - 1) / (max_records - 1);
    kept.push_back(std::move(records[at]));
  }
  return kept;
}

}  // namespace

absl::StatusOr<std::unique_ptr<MetricStore>> MetricStore::Open(const std::string& directory,
                                                               const MetricLimits& limits) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  auto db = OpenDatabase(directory, limits);
  if (!db.ok()) {
    spdlog::warn("{}; starting with an empty history", db.status().ToString());
    std::filesystem::remove_all(directory, error);
    std::filesystem::create_directories(directory, error);
    db = OpenDatabase(directory, limits);
  }
  if (!db.ok()) return db.status();
  return std::unique_ptr<MetricStore>(new MetricStore(*std::move(db)));
}

MetricStore::MetricStore(std::unique_ptr<rocksdb::DB> db) : db_(std::move(db)) {}
MetricStore::~MetricStore() = default;

void MetricStore::Add(const std::string& job_id, const v1::MetricBatch& batch) {
  rocksdb::WriteBatch writes;
  for (const v1::MetricRecord& record : batch.records()) {
    storage::v1::StoredMetric stored;
    stored.set_epoch(batch.epoch());
    *stored.mutable_record() = record;
    writes.Put(MetricKey(job_id, record), stored.SerializeAsString());
  }
  if (!db_->Write(rocksdb::WriteOptions(), &writes).ok()) dropped_ += batch.records_size();
}

void MetricStore::ForkAfter(const std::string& job_id, int64_t step, int64_t epoch) {
  const std::string prefix = Prefix(job_id);
  rocksdb::WriteBatch writes;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(absl::StrCat(prefix, BigEndian(step + 1))); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    storage::v1::StoredMetric stored;
    const bool ours =
        stored.ParseFromArray(it->value().data(), static_cast<int>(it->value().size())) && stored.epoch() >= epoch;
    if (!ours) writes.Delete(it->key());
  }
  db_->Write(rocksdb::WriteOptions(), &writes).PermitUncheckedError();
}

absl::StatusOr<std::vector<v1::MetricRecord>> MetricStore::Query(const std::string& job_id, int64_t from_step,
                                                                 int64_t to_step, size_t max_records) const {
  const std::string prefix = Prefix(job_id);
  std::vector<v1::MetricRecord> records;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(rocksdb::ReadOptions()));
  for (it->Seek(absl::StrCat(prefix, BigEndian(from_step))); it->Valid() && it->key().starts_with(prefix); it->Next()) {
    const absl::string_view key(it->key().data() + prefix.size(), it->key().size() - prefix.size());
    if (to_step > 0 && FromBigEndian(key) > to_step) break;
    storage::v1::StoredMetric stored;
    if (!stored.ParseFromArray(it->value().data(), static_cast<int>(it->value().size()))) continue;
    records.push_back(std::move(*stored.mutable_record()));
  }
  if (!it->status().ok()) return FromRocksDb(it->status(), "reading the metrics history");
  return Thin(std::move(records), max_records);
}

}  // namespace slipway::server::store
