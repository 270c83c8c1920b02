// The smaller parts of a node: paths and environment, slots, lease, addresses, command line.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/posix_file_system.h"
#include "tests/support/processes.h"
#include "tests/support/status_matchers.h"
#include "worker/agent/attempt_key.h"
#include "worker/agent/coordinator_lease.h"
#include "worker/agent/gpu_inventory.h"
#include "worker/agent/metrics_endpoint.h"
#include "worker/agent/node_context.h"
#include "worker/agent/oom_watch.h"
#include "worker/agent/options.h"
#include "worker/agent/rendezvous.h"
#include "worker/link/agent_exit.h"

namespace slipway::worker::agent {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class NodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "node_" + std::to_string(::getpid());
    ASSERT_OK(files_.MakeDirectories(directory_ + "/root/inside"));
    ASSERT_OK(files_.MakeDirectories(directory_ + "/outside"));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  PosixFileSystem files_;
  SimClock clock_;
  std::string directory_;
};

TEST_F(NodeTest, OnlyPathsBelowTheRootsAreAllowed) {
  std::filesystem::create_symlink(directory_ + "/outside", directory_ + "/root/link");
  const NodeContext node{.node_id = "n", .allowed_roots = {directory_ + "/root/"}};
  EXPECT_OK(CheckAllowed(node, directory_ + "/root"));
  EXPECT_OK(CheckAllowed(node, directory_ + "/root/inside/new/dir"));
  for (const char* path : {"/outside", "/root/../outside", "/root/link/x", "/rootother", ""}) {
    EXPECT_THAT(CheckAllowed(node, directory_ + path),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/root/")))
        << path;
  }
  EXPECT_THAT(CheckAllowed(node, "relative"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("relative")));
  EXPECT_THAT(CheckAllowed(node, ""), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("absolute")));
}

slipway::v1::DesiredAssignment OnSlot(int slot) {
  slipway::v1::DesiredAssignment assignment;
  assignment.add_ranks()->set_slot(slot);
  return assignment;
}

TEST_F(NodeTest, TheSlotDecidesDeviceThreadsAndVisibleGpu) {
  NodeContext node;
  node.slots.resize(2);
  node.slots[0].set_index(0);
  node.slots[0].set_kind(slipway::v1::DEVICE_KIND_CUDA);
  node.slots[0].set_device_uuid("GPU-abc");
  node.slots[0].set_threads(4);
  node.slots[1].set_index(1);
  node.slots[1].set_kind(slipway::v1::DEVICE_KIND_CPU);
  ASSERT_OK_AND_ASSIGN(const auto gpu, MakeLaunch(node, OnSlot(0), 0));
  EXPECT_EQ(gpu.device(), "cuda:0");
  EXPECT_EQ(gpu.threads(), 4);
  EXPECT_THAT(MakeEnvironment(node, OnSlot(0), 0), Contains("CUDA_VISIBLE_DEVICES=GPU-abc"));
  ASSERT_OK_AND_ASSIGN(const auto cpu, MakeLaunch(node, OnSlot(1), 0));
  EXPECT_EQ(cpu.device(), "cpu");
  slipway::v1::DesiredAssignment with_env = OnSlot(1);
  (*with_env.mutable_spec()->mutable_env())["OMP_NUM_THREADS"] = "99";  // the slot's number is part of the result
  (*with_env.mutable_spec()->mutable_env())["NCCL_DEBUG"] = "INFO";
  const std::vector<std::string> environment = MakeEnvironment(node, with_env, 0);
  EXPECT_THAT(environment, Contains("CUDA_VISIBLE_DEVICES="));
  EXPECT_THAT(environment, Contains("OMP_NUM_THREADS=1"));
  EXPECT_THAT(environment, Contains("NCCL_DEBUG=INFO"));
  EXPECT_THAT(environment, Not(Contains("OMP_NUM_THREADS=99")));
  EXPECT_THAT(MakeLaunch(node, OnSlot(7), 0), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2 slots")));
}

TEST_F(NodeTest, JobIdsAreSafeAsFileNames) {
  EXPECT_OK(ValidateJobId("job-0h3k9.a_B"));
  for (const char* id : {"", ".", "..", ".x", "a/b", "a b", "日本", "a\n"}) {
    EXPECT_THAT(ValidateJobId(id), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("job id"))) << id;
  }
  EXPECT_THAT(ValidateJobId(std::string("a\0b", 3)), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\\x00")));
  EXPECT_FALSE(ValidateJobId(std::string(129, 'a')).ok());
}

TEST_F(NodeTest, LeftOverAttemptsAreFound) {
  EXPECT_TRUE(ListAttempts(files_, directory_).value().empty());
  for (const char* path :
       {"/attempts/job-a/e1/r0", "/attempts/job-a/e1/r12", "/attempts/job-a/e2", "/attempts/job-b/x"}) {
    ASSERT_OK(files_.MakeDirectories(directory_ + path));
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<AttemptKey> keys, ListAttempts(files_, directory_));
  EXPECT_THAT(keys, ElementsAre(AttemptKey{"job-a", 1}, AttemptKey{"job-a", 2}));
  EXPECT_THAT(ListRanks(files_, AttemptDirectory(directory_, keys[0])).value(), ::testing::UnorderedElementsAre(0, 12));
}

TEST_F(NodeTest, TheLeaseIsAboutMonotonicTimeAndSurvivesARestart) {
  CoordinatorLease lease(directory_ + "/lease", std::nullopt, clock_, files_);
  lease.SetDuration(absl::Seconds(100));
  lease.Renew();
  clock_.JumpWall(absl::Hours(7));
  clock_.Advance(absl::Seconds(99));
  EXPECT_FALSE(lease.StopDue());
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(lease.StopDue());
  EXPECT_FALSE(lease.KillDue());
  const CoordinatorLease next(directory_ + "/lease", std::nullopt, clock_, files_);
  EXPECT_TRUE(next.StopDue());
  clock_.Advance(absl::Seconds(10));
  EXPECT_TRUE(next.KillDue());
  EXPECT_TRUE(lease.KillDue());
  lease.Renew();
  EXPECT_FALSE(lease.StopDue());
}

TEST_F(NodeTest, ABrokenLeaseFileStartsANewLease) {
  for (const char* text : {"", "x", "1", "1 2 3", "99999999999999999999 5", "9000000000000000000 1000000000"}) {
    ASSERT_OK(files_.WriteFileAtomically(directory_ + "/lease", text));
    const CoordinatorLease lease(directory_ + "/lease", std::nullopt, clock_, files_);
    EXPECT_FALSE(lease.StopDue()) << text;
  }
}

TEST_F(NodeTest, AnOrphansLeaseIsItsOwn) {
  CoordinatorLease lease(directory_ + "/lease", absl::Seconds(20), clock_, files_);
  lease.SetDuration(absl::Hours(1));
  clock_.Advance(absl::Seconds(20));
  EXPECT_TRUE(lease.StopDue());
  clock_.Advance(absl::Minutes(4));
  EXPECT_FALSE(lease.KillDue());
  clock_.Advance(absl::Minutes(1));
  EXPECT_TRUE(lease.KillDue());
}

TEST_F(NodeTest, RendezvousSocketsListenOnAFreePort) {
  ASSERT_OK_AND_ASSIGN(const Rendezvous first, BindRendezvous("127.0.0.1"));
  ASSERT_OK_AND_ASSIGN(const Rendezvous second, BindRendezvous("127.0.0.1"));
  EXPECT_THAT(first.address, ::testing::StartsWith("127.0.0.1:"));
  EXPECT_NE(first.address, second.address);
  int listening = 0;
  socklen_t size = sizeof(listening);
  ASSERT_EQ(::getsockopt(first.listener.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size), 0);
  EXPECT_EQ(listening, 1);
  EXPECT_FALSE(BindRendezvous("no-address").ok());
}

TEST_F(NodeTest, TheAddressFacingTheCoordinator) {
  EXPECT_EQ(AddressFacing("127.0.0.1:7670").value(), "127.0.0.1");
  EXPECT_EQ(AddressFacing("dns:///localhost:7670").value().substr(0, 1),
            AddressFacing("localhost:1").value().substr(0, 1));
  EXPECT_EQ(AddressFacing("unix:/tmp/x.sock").value(), "127.0.0.1");
  EXPECT_THAT(AddressFacing("noport"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("HOST:PORT")));
}

std::vector<slipway::v1::Slot> Gpus() {
  std::vector<slipway::v1::Slot> gpus(3);
  for (int i = 0; i < 3; ++i) {
    gpus[static_cast<size_t>(i)].set_index(i);
    gpus[static_cast<size_t>(i)].set_device_uuid(absl::StrCat("GPU-", i, i, i));
  }
  return gpus;
}

std::vector<std::string> Uuids(const std::vector<slipway::v1::Slot>& slots) {
  std::vector<std::string> uuids;
  for (const auto& slot : slots) uuids.push_back(slot.device_uuid());
  return uuids;
}

TEST_F(NodeTest, VisibleGpusAreThoseThatCudaWouldShow) {
  EXPECT_THAT(Uuids(KeepVisible(Gpus(), nullptr)), ElementsAre("GPU-000", "GPU-111", "GPU-222"));
  EXPECT_THAT(Uuids(KeepVisible(Gpus(), "2, 0")), ElementsAre("GPU-222", "GPU-000"));
  EXPECT_EQ(KeepVisible(Gpus(), "2,0")[0].index(), 0);
  EXPECT_THAT(Uuids(KeepVisible(Gpus(), "GPU-11")), ElementsAre("GPU-111"));
  EXPECT_THAT(Uuids(KeepVisible(Gpus(), "1,9,0")), ElementsAre("GPU-111"));
  EXPECT_TRUE(KeepVisible(Gpus(), "").empty());
}

TEST_F(NodeTest, AGpuProbeIsReadAndHasADeadline) {
  const std::string answer = R"(echo '[{"name":"NVIDIA H200","uuid":"GPU-1","memory":150754820096}]')";
  ASSERT_OK_AND_ASSIGN(const auto slots, ProbeGpus({"/bin/sh", "-c", answer}, absl::Seconds(20)));
  ASSERT_EQ(slots.size(), 1u);
  EXPECT_EQ(slots[0].device_name(), "NVIDIA H200");
  EXPECT_EQ(slots[0].memory_bytes(), 150754820096);
  const std::string mark = absl::StrCat("probe_", ::getpid());
  EXPECT_THAT(ProbeGpus({"/bin/sh", "-c", "exec sleep 1000", mark}, absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("200ms")));
  EXPECT_TRUE(::slipway::testing::Eventually([&] { return ::slipway::testing::ProcessesMentioning(mark).empty(); }));
  EXPECT_THAT(ProbeGpus({"/bin/sh", "-c", "echo rubbish"}, absl::Seconds(20)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("rubbish")));
  EXPECT_THAT(ProbeGpus({"/bin/sh", "-c", "exit 4"}, absl::Seconds(20)),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("exit code 4")));
}

TEST_F(NodeTest, OomKillsAreCounted) {
  EXPECT_EQ(OomKillsIn("low 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 1\n"), 3);
  EXPECT_EQ(OomKillsIn("oom_kill 0"), 0);
  EXPECT_EQ(OomKillsIn("xoom_kill 7\n"), std::nullopt);
  EXPECT_EQ(OomKillsIn(""), std::nullopt);
}

TEST_F(NodeTest, FiguresAreInPrometheusForm) {
  AgentFigures figures;
  figures.slots = 8;
  figures.connected = true;
  const std::string text = FormatFigures(figures);
  EXPECT_THAT(text, HasSubstr("# TYPE slipway_agent_connections_total counter\n"));
  EXPECT_THAT(text, HasSubstr("\nslipway_agent_slots 8\n"));
  EXPECT_THAT(text, HasSubstr("slipway_agent_build_info{version=\""));
}

std::optional<ExitNow> Parse(std::vector<const char*> args, AgentOptions& options) {
  args.insert(args.begin(), "slipway-agent");
  return ParseOptions(static_cast<int>(args.size()), args.data(), options);
}

TEST_F(NodeTest, CommandLines) {
  AgentOptions options;
  EXPECT_FALSE(
      Parse({"--coordinator", "h:1", "--state-dir", "/s", "--root", "/a", "--root", "/b"}, options).has_value());
  EXPECT_THAT(options.roots, ElementsAre("/a", "/b"));
  EXPECT_EQ(options.metrics, "127.0.0.1:7672");
  EXPECT_FALSE(options.orphan_timeout.has_value());
  options = {};
  EXPECT_FALSE(
      Parse({"--coordinator", "h:1", "--state-dir", "/s", "--local", "--slots-cpu", "2"}, options).has_value());
  EXPECT_EQ(options.metrics, "");
  EXPECT_EQ(options.orphan_timeout, absl::Minutes(1));
  EXPECT_FALSE(options.roots.empty());
  options = {};
  EXPECT_FALSE(
      Parse({"--coordinator", "h:1", "--state-dir", "/s", "--local", "--orphan-timeout", "7"}, options).has_value());
  EXPECT_EQ(options.orphan_timeout, absl::Seconds(7));
  const std::vector<std::vector<const char*>> wrong = {
      {"--state-dir", "/s", "--root", "/a"},
      {"--coordinator", "h:1", "--root", "/a"},
      {"--coordinator", "h:1", "--state-dir", "/s"},
      {"--coordinator", "h:1", "--state-dir", "relative", "--root", "/a"},
      {"--coordinator", "h:1", "--state-dir", "/s", "--root", "a"},
      {"--coordinator", "h:1", "--state-dir", "/s", "--root", "/a", "--slots-cpu", "0"},
      {"--coordinator", "h:1", "--state-dir", "/s", "--root", "/a", "--slots-cpu", "1", "--gpus"},
      {"--coordinator", "h:1", "--state-dir", "/s", "--root", "/a", "--orphan-timeout", "-1s"},
      {"--no-such-flag"}};
  for (const auto& args : wrong) {
    options = {};
    const std::optional<ExitNow> exit = Parse(args, options);
    ASSERT_TRUE(exit.has_value());
    EXPECT_EQ(exit->code, link::kAgentExitUsage);
  }
}

}  // namespace
}  // namespace slipway::worker::agent
