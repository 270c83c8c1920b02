#include "worker/link/worker_link.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/posix_file_system.h"
#include "tests/support/status_matchers.h"
#include "worker/link/rank_files.h"
#include "worker/link/unix_socket.h"

namespace slipway::worker::link {
namespace {

using ::slipway::worker::v1::WorkerControl;
using ::slipway::worker::v1::WorkerReport;

constexpr absl::Duration kDeadline = absl::Seconds(20);

// The agent's side, driven by the test.
class TestAgent {
 public:
  explicit TestAgent(const std::string& path) {
    absl::StatusOr<UniqueFd> listener = ListenUnix(path);
    EXPECT_OK(listener);
    listener_ = *std::move(listener);
  }

  // The next report that fulfils `wanted`; an empty one after the deadline.
  WorkerReport Await(const std::function<bool(const WorkerReport&)>& wanted) {
    const absl::Time deadline = absl::Now() + kDeadline;
    while (absl::Now() < deadline) {
      Accept();
      std::vector<std::string> frames;
      if (channel_ != nullptr && !channel_->Receive(frames).ok()) channel_.reset();
      for (const std::string& frame : frames) {
        WorkerReport report;
        EXPECT_TRUE(report.ParseFromString(frame));
        for (const auto& metric : report.metrics()) metrics_.push_back(metric);
        if (wanted(report)) return report;
      }
      absl::SleepFor(absl::Milliseconds(2));
    }
    ADD_FAILURE() << "no such report came";
    return {};
  }

  void Say(bool stop, int64_t checkpoint_requests) {
    WorkerControl control;
    control.set_stop_requested(stop);
    control.set_checkpoint_requests(checkpoint_requests);
    ASSERT_NE(channel_, nullptr);
    EXPECT_OK(channel_->Send(control));
  }

  void SendRubbish() { ASSERT_GT(::write(channel_->fd(), "\xff\xff\xff\xff", 4), 0); }

  const std::vector<slipway::v1::MetricRecord>& metrics() const { return metrics_; }

 private:
  void Accept() {
    absl::StatusOr<UniqueFd> socket = AcceptUnix(listener_.get());
    if (socket.ok()) channel_ = std::make_unique<FrameChannel>(*std::move(socket));
  }
  UniqueFd listener_;
  std::unique_ptr<FrameChannel> channel_;
  std::vector<slipway::v1::MetricRecord> metrics_;
};

bool Eventually(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + kDeadline;
  while (!condition()) {
    if (absl::Now() > deadline) return false;
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

class WorkerLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // Longer than sockaddr_un allows.
    directory_ = ::testing::TempDir() + "link_" + std::to_string(::getpid()) + "/" + std::string(120, 'd');
    ASSERT_OK(files_.MakeDirectories(directory_));
    options_ = {.socket_path = JoinPath(directory_, "agent.sock"),
                .job_id = "job-1",
                .epoch = 3,
                .rank = 1,
                .state_dir = directory_,
                .on_lease_expired = [this] { ++expired_; }};
  }
  void TearDown() override { std::filesystem::remove_all(DirName(directory_)); }

  static slipway::v1::MetricRecord Metric(int64_t step) {
    slipway::v1::MetricRecord record;
    record.mutable_step()->set_step(step);
    return record;
  }

  PosixFileSystem files_;
  SimClock clock_;
  std::string directory_;
  std::atomic<int> expired_ = 0;
  WorkerLink::Options options_;
};

TEST_F(WorkerLinkTest, ReportsGoUpAndControlComesDown) {
  const RealClock clock;
  TestAgent agent(options_.socket_path);
  WorkerLink link(options_, clock, files_);
  const WorkerReport first = agent.Await([](const WorkerReport& r) { return r.job_id() == "job-1"; });
  EXPECT_EQ(first.epoch(), 3);
  EXPECT_EQ(first.rank(), 1);
  EXPECT_EQ(first.pid(), ::getpid());
  EXPECT_EQ(first.state(), slipway::v1::RANK_STATE_STARTING);

  link.SetPhase("load");
  link.SetReady(100, true, 2, "hash");
  const WorkerReport ready =
      agent.Await([](const WorkerReport& r) { return r.state() == slipway::v1::RANK_STATE_READY; });
  EXPECT_EQ(ready.phase(), "load");
  EXPECT_EQ(ready.start_step(), 100);
  EXPECT_EQ(ready.resumed_from_epoch(), 2);
  EXPECT_EQ(ready.spec_hash(), "hash");

  EXPECT_FALSE(link.stop_requested());
  agent.Say(true, 4);
  EXPECT_TRUE(Eventually([&] { return link.stop_requested() && link.checkpoint_requests() == 4; }));
}

TEST_F(WorkerLinkTest, EveryMetricArrivesInOrder) {
  const RealClock clock;
  TestAgent agent(options_.socket_path);
  WorkerLink link(options_, clock, files_);
  for (int64_t step = 1; step <= 2000; ++step) {  // more than one report takes
    link.SetStep(step);
    link.AddMetrics(Metric(step));
  }
  agent.Await([&](const WorkerReport&) { return agent.metrics().size() == 2000; });
  for (size_t i = 0; i < agent.metrics().size(); ++i) {
    ASSERT_EQ(agent.metrics()[i].step().step(), static_cast<int64_t>(i) + 1);
  }
  EXPECT_TRUE(link.WaitUntilSent(kDeadline));
}

TEST_F(WorkerLinkTest, ANewAgentGetsTheWholeReportAgain) {
  const RealClock clock;
  auto agent = std::make_unique<TestAgent>(options_.socket_path);
  WorkerLink link(options_, clock, files_);
  link.SetReady(0, false, 0, "hash");
  slipway::v1::Checkpoint checkpoint;
  checkpoint.set_step(7);
  link.AddCommitted(checkpoint);
  agent->Await([](const WorkerReport& r) { return r.committed_size() == 1; });
  agent.reset();

  link.SetStep(8);
  link.AddMetrics(Metric(8));
  agent = std::make_unique<TestAgent>(options_.socket_path);
  const WorkerReport again = agent->Await([](const WorkerReport& r) { return r.step() == 8; });
  EXPECT_EQ(again.state(), slipway::v1::RANK_STATE_RUNNING);
  EXPECT_EQ(again.spec_hash(), "hash");
  ASSERT_EQ(again.committed_size(), 1);
  EXPECT_EQ(again.committed(0).step(), 7);
  EXPECT_EQ(agent->metrics().size(), 1u);
}

TEST_F(WorkerLinkTest, RubbishFromTheAgentMakesItReconnect) {
  const RealClock clock;
  TestAgent agent(options_.socket_path);
  WorkerLink link(options_, clock, files_);
  const int64_t before = agent.Await([](const WorkerReport&) { return true; }).sequence();
  agent.SendRubbish();
  agent.Await([&](const WorkerReport& r) { return r.sequence() > before; });
  agent.Say(true, 0);
  EXPECT_TRUE(Eventually([&] { return link.stop_requested(); }));
}

TEST_F(WorkerLinkTest, TheLeaseRunsOutOnceAndOnlyWithoutFrames) {
  TestAgent agent(options_.socket_path);
  options_.lease = absl::Minutes(2);
  WorkerLink link(options_, clock_, files_);
  agent.Await([](const WorkerReport&) { return true; });
  clock_.Advance(absl::Seconds(119));
  agent.Say(false, 1);
  ASSERT_TRUE(Eventually([&] { return link.checkpoint_requests() == 1; }));
  clock_.Advance(absl::Seconds(119));  // 119 s after the last frame, 238 s after the start
  agent.Await([](const WorkerReport&) { return true; });
  EXPECT_FALSE(link.lease_expired());
  clock_.JumpWall(absl::Hours(5));  // the calendar has no say
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(Eventually([&] { return link.lease_expired(); }));
  EXPECT_TRUE(Eventually([&] { return expired_ == 1; }));
  clock_.Advance(absl::Minutes(10));
  absl::SleepFor(absl::Milliseconds(300));  // three rounds of the thread
  EXPECT_EQ(expired_, 1);
}

TEST_F(WorkerLinkTest, TheLeaseAlsoRunsOutWhenNoAgentEverCame) {
  options_.lease = absl::Seconds(30);
  WorkerLink link(options_, clock_, files_);
  clock_.Advance(absl::Seconds(31));
  EXPECT_TRUE(Eventually([&] { return expired_ == 1; }));
  EXPECT_FALSE(link.WaitUntilSent(absl::Milliseconds(10)));
}

TEST_F(WorkerLinkTest, TheReportIsAlsoAFile) {
  const RealClock clock;
  WorkerLink link(options_, clock, files_);
  slipway::v1::Cause cause;
  cause.set_message(std::string(100'000, 'm'));
  link.SetReady(5, true, 1, "hash");
  link.SetOutcome(slipway::v1::RANK_OUTCOME_FAULT, cause);
  TestAgent agent(options_.socket_path);
  std::thread reader([&] { agent.Await([](const WorkerReport& r) { return r.outcome() != 0; }); });
  EXPECT_TRUE(link.WaitUntilSent(kDeadline));
  reader.join();
  ASSERT_OK_AND_ASSIGN(const WorkerReport report, ReadReport(files_, directory_));
  EXPECT_EQ(report.start_step(), 5);
  EXPECT_LE(report.cause().message().size(), kMaxCauseMessageBytes);
}

}  // namespace
}  // namespace slipway::worker::link
