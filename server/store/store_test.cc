#include "server/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "absl/time/clock.h"
#include "server/core/testing/test_cluster.h"
#include "server/store/job_record.h"
#include "server/store/keys.h"
#include "server/store/metric_store.h"
#include "tests/support/status_matchers.h"

namespace slipway::server::store {
namespace {

using core::testing::TestCluster;
using core::testing::TestSpec;
using slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() {
    directory_ = std::filesystem::path(::testing::TempDir()) /
                 (std::string("store_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(directory_);
  }
  ~StoreTest() override { std::filesystem::remove_all(directory_); }

  std::unique_ptr<Store> Open() {
    absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(directory_);
    EXPECT_OK(store);
    return store.ok() ? *std::move(store) : nullptr;
  }

  // Everything that a cluster has to store.
  static Batch BatchOf(TestCluster& cluster) {
    Batch batch;
    for (const auto& [id, entry] : cluster.state.jobs) batch.jobs.push_back(ToRecord(entry));
    batch.events = std::exchange(cluster.events, {});
    batch.revision = cluster.state.revision;
    return batch;
  }

  // Writes raw bytes with the store closed.
  void Corrupt(const std::string& key, const std::string& value) {
    rocksdb::DB* db = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), directory_, &db).ok());
    ASSERT_TRUE(db->Put(rocksdb::WriteOptions(), key, value).ok());
    delete db;
  }
  std::string Raw(const std::string& key) {
    rocksdb::DB* db = nullptr;
    EXPECT_TRUE(rocksdb::DB::Open(rocksdb::Options(), directory_, &db).ok());
    std::string value;
    db->Get(rocksdb::ReadOptions(), key, &value).PermitUncheckedError();
    delete db;
    return value;
  }

  std::filesystem::path directory_;
};

TEST_F(StoreTest, KeepsJobsEventsRequestsAndNodesOverARestart) {
  TestCluster cluster;
  cluster.Connect("n1", 2);
  cluster.Submit("a", TestSpec(2));
  cluster.Submit("b", TestSpec(2));
  cluster.Settle();
  {
    auto store = Open();
    ASSERT_OK(store->Load());
    Batch batch = BatchOf(cluster);
    batch.requests.emplace_back().set_request_id("r-1");
    batch.nodes.emplace_back().set_node_id("n1");
    ASSERT_OK(store->Commit(batch));
  }
  auto store = Open();
  ASSERT_OK_AND_ASSIGN(const Loaded loaded, store->Load());
  EXPECT_EQ(loaded.header.revision(), cluster.state.revision);
  EXPECT_EQ(loaded.header.boots(), 2);
  ASSERT_EQ(loaded.jobs.size(), 2u);
  EXPECT_EQ(loaded.jobs[0].job.state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(loaded.jobs[0].job.SerializeAsString(), cluster.Job("a").SerializeAsString());
  EXPECT_EQ(loaded.jobs[1].submit_sequence, 2);
  EXPECT_EQ(loaded.requests.size(), 1u);
  EXPECT_EQ(loaded.nodes.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const auto events, store->EventsAfter(0, 100));
  EXPECT_EQ(static_cast<int64_t>(events.size()), cluster.state.revision);
  ASSERT_OK_AND_ASSIGN(const auto of_b, store->JobEventsAfter("b", 0, 100));
  ASSERT_EQ(of_b.size(), 2u);
  EXPECT_EQ(of_b[0].type(), "Submitted");
}

TEST_F(StoreTest, SetsARecordThatCannotBeReadAsideAndStarts) {
  TestCluster cluster;
  cluster.Submit("a", TestSpec());
  cluster.Submit("b", TestSpec());
  ASSERT_OK(Open()->Commit(BatchOf(cluster)));
  Corrupt("j/a", "\xff\xff no protobuf");
  storage::v1::JobRecord newer = ToRecord(cluster.state.jobs.at("a"));
  newer.set_format_version(kFormatVersion + 1);
  newer.mutable_job()->set_id("c");
  Corrupt("j/c", newer.SerializeAsString());
  {
    auto store = Open();
    ASSERT_OK_AND_ASSIGN(const Loaded loaded, store->Load());
    ASSERT_EQ(loaded.jobs.size(), 1u);
    EXPECT_EQ(loaded.jobs[0].job.id(), "b");
    EXPECT_THAT(loaded.quarantined,
                ElementsAre(HasSubstr("j/a: its bytes are no such record"), HasSubstr("format version 2")));
    ASSERT_OK_AND_ASSIGN(const Loaded again, store->Load());
    EXPECT_THAT(again.quarantined, IsEmpty());
  }
  EXPECT_EQ(Raw("q/j/a"), "\xff\xff no protobuf") << "kept for a person to look at";
}

TEST_F(StoreTest, RefusesAStoreOfANewerVersion) {
  ASSERT_OK(Open()->Load());
  storage::v1::StoreHeader header;
  header.set_format_version(kFormatVersion + 1);
  Corrupt("h", header.SerializeAsString());
  EXPECT_THAT(Store::Open(directory_),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("written by a newer slipwayd")));
}

TEST_F(StoreTest, CompactedEventsAreOutOfRange) {
  TestCluster cluster;
  for (const char* id : {"a", "b", "c"}) cluster.Submit(id, TestSpec());
  auto store = Open();
  ASSERT_OK(store->Commit(BatchOf(cluster)));
  ASSERT_OK(store->Compact(2));
  EXPECT_THAT(store->EventsAfter(1, 10), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("the oldest is 2")));
  ASSERT_OK_AND_ASSIGN(const auto events, store->EventsAfter(2, 10));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].job_id(), "c");
  ASSERT_OK_AND_ASSIGN(const auto of_a, store->JobEventsAfter("a", 0, 10));
  EXPECT_THAT(of_a, IsEmpty());
}

TEST_F(StoreTest, AnErrorOfTheDiskIsReportedAndReopenHelps) {
  TestCluster cluster;
  cluster.Submit("a", TestSpec());
  auto store = Open();
  ASSERT_OK(store->Commit(BatchOf(cluster)));
  // The log's directory is gone: the next memtable switch and the reopen cannot make files.
  const std::filesystem::path away = directory_.string() + ".away";
  std::filesystem::remove_all(away);
  std::filesystem::rename(directory_, away);
  std::ofstream(directory_) << "no directory";
  EXPECT_THAT(store->Reopen(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(directory_.string())));
  cluster.Submit("b", TestSpec());
  const Batch batch = BatchOf(cluster);
  EXPECT_THAT(store->Commit(batch), StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
  EXPECT_THAT(store->EventsAfter(0, 10), StatusIs(absl::StatusCode::kUnavailable, ::testing::_));
  std::filesystem::remove(directory_);
  std::filesystem::rename(away, directory_);
  ASSERT_OK(store->Reopen());
  ASSERT_OK(store->Commit(batch));
  ASSERT_OK_AND_ASSIGN(const Loaded loaded, store->Load());
  EXPECT_EQ(loaded.jobs.size(), 2u);
}

v1::MetricBatch Steps(int64_t epoch, int64_t from, int64_t to) {
  v1::MetricBatch batch;
  batch.set_epoch(epoch);
  for (int64_t step = from; step <= to; ++step) {
    v1::StepMetrics& metrics = *batch.add_records()->mutable_step();
    metrics.set_step(step);
    metrics.set_loss(static_cast<double>(epoch));
  }
  return batch;
}

TEST_F(StoreTest, MetricsFollowTheForkOfAnAttempt) {
  ASSERT_OK_AND_ASSIGN(auto metrics, MetricStore::Open(directory_, {}));
  metrics->Add("a", Steps(1, 1, 15));
  metrics->Add("ab", Steps(1, 1, 3));
  metrics->Add("a", Steps(2, 11, 12));  // came before the news that attempt 2 is ready
  metrics->ForkAfter("a", 10, 2);
  ASSERT_OK_AND_ASSIGN(const auto records, metrics->Query("a", 0, 0, 100));
  ASSERT_EQ(records.size(), 12u) << "steps 13 to 15 of attempt 1 are no part of the run";
  EXPECT_EQ(records[9].step().loss(), 1);
  EXPECT_EQ(records[10].step().loss(), 2);
  ASSERT_OK_AND_ASSIGN(const auto range, metrics->Query("a", 3, 5, 100));
  EXPECT_EQ(range.size(), 3u);
  ASSERT_OK_AND_ASSIGN(const auto thin, metrics->Query("a", 0, 0, 4));
  ASSERT_EQ(thin.size(), 4u);
  EXPECT_EQ(thin.front().step().step(), 1);
  EXPECT_EQ(thin.back().step().step(), 12);
}

TEST_F(StoreTest, MetricsDoNotGrowBeyondTheirLimit) {
  constexpr int64_t kLimit = 1 << 20;
  constexpr int64_t kBatch = 500;
  ASSERT_OK_AND_ASSIGN(auto metrics, MetricStore::Open(directory_, {.max_bytes = kLimit}));
  int64_t step = 0;
  const auto add = [&](int64_t batches) {
    for (const int64_t end = step + batches * kBatch; step < end; step += kBatch) {
      v1::MetricBatch batch = Steps(1, step + 1, step + kBatch);
      // So that they do not compress to nothing.
      for (v1::MetricRecord& record : *batch.mutable_records()) {
        record.mutable_step()->set_loss(std::sin(static_cast<double>(record.step().step())));
        record.mutable_step()->set_grad_norm(std::cos(static_cast<double>(record.step().step())));
        record.mutable_step()->set_tokens_per_second(std::exp(record.step().loss()));
      }
      metrics->Add("a", batch);
    }
  };
  const auto bytes = [&] {
    int64_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      std::error_code gone;
      if (const auto size = entry.file_size(gone); !gone && entry.path().extension() == ".sst")
        sum += static_cast<int64_t>(size);
    }
    return sum;
  };
  add(200);  // several megabytes
  // Files are dropped in the background, each time when a new one has been written.
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (bytes() > kLimit && absl::Now() < deadline) {
    add(1);
    absl::SleepFor(absl::Milliseconds(10));
  }
  EXPECT_LE(bytes(), kLimit);
  ASSERT_OK_AND_ASSIGN(const auto records, metrics->Query("a", 0, 0, 1'000'000));
  ASSERT_FALSE(records.empty());
  EXPECT_LT(static_cast<int64_t>(records.size()), step);
  EXPECT_GT(records.front().step().step(), 1);
  EXPECT_EQ(records.back().step().step(), step) << "the newest are there";
}

TEST_F(StoreTest, ABrokenMetricsHistoryIsReplaced) {
  std::filesystem::create_directories(directory_);
  std::ofstream(directory_ / "CURRENT") << "rubbish";
  ASSERT_OK_AND_ASSIGN(auto metrics, MetricStore::Open(directory_, {}));
  metrics->Add("a", Steps(1, 1, 2));
  ASSERT_OK_AND_ASSIGN(const auto records, metrics->Query("a", 0, 0, 10));
  EXPECT_EQ(records.size(), 2u);
}

}  // namespace
}  // namespace slipway::server::store
