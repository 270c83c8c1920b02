#include "engine/comm/backend_communicator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>

#include "absl/strings/str_cat.h"
#include "engine/comm/control_channel.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/rank_process.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::comm {
namespace {

using ::slipway::testing::Everybody;
using ::slipway::testing::Listen;
using ::slipway::testing::ListeningSocket;
using ::slipway::testing::RankExit;
using ::slipway::testing::RankProcesses;
using ::slipway::testing::StatusIs;
using ::slipway::testing::WithGroups;
using ::testing::HasSubstr;

#define RANK_CHECK(condition)                  \
  do {                                         \
    if (!(condition)) {                        \
      std::cerr << "not so: " #condition "\n"; \
      return 1;                                \
    }                                          \
  } while (false)

int AllOperations(GroupFactory& factory, int rank, int world) {
  CommPtr group = factory.MakeGroup("dp", Everybody(world));
  const float mine = static_cast<float>(rank);
  at::Tensor input = (at::arange(world * 3, at::kFloat) + 0.1f) * (1.0f + 0.37f * mine);
  at::Tensor sum = input.clone();
  group->AllReduce(sum, ReduceOp::kSum)->Wait();
  at::Tensor slice = at::empty({3}, at::kFloat);
  group->ReduceScatter(slice, input, ReduceOp::kSum)->Wait();
  RANK_CHECK(at::equal(slice, sum.narrow(0, 3 * rank, 3)));  // ZeRO-1 and replicas add alike
  at::Tensor gathered = at::empty({world * 3}, at::kFloat);
  group->AllGather(gathered, slice)->Wait();
  RANK_CHECK(at::equal(gathered, sum));
  at::Tensor max = at::full({1}, mine);
  group->AllReduce(max, ReduceOp::kMax)->Wait();
  RANK_CHECK(max.item<float>() == static_cast<float>(world - 1));
  at::Tensor word = at::full({2}, mine).to(at::kBFloat16);
  group->Broadcast(word, 1)->Wait();
  RANK_CHECK(word[0].item<float>() == 1.0f);
  at::Tensor exchanged = at::empty({world, 1}, at::kFloat);
  const std::vector<int64_t> ones(world, 1);
  group->AllToAll(exchanged, at::full({world, 1}, mine), ones, ones)->Wait();
  RANK_CHECK(at::equal(exchanged.view(-1), at::arange(world, at::kFloat)));
  // A shift around the ring: all other shares are empty, which not every transport takes for granted.
  std::vector<int64_t> sent(world, 0), received(world, 0);
  sent[(rank + 1) % world] = received[(rank + world - 1) % world] = 3;
  at::Tensor shifted = at::zeros({3, 2});
  group->AllToAll(shifted, at::full({3, 2}, mine), received, sent)->Wait();
  RANK_CHECK((shifted == static_cast<float>((rank + world - 1) % world)).all().item<bool>());
  // Everybody sends first: a send does not wait for its receive.
  at::Tensor out = at::full({50000}, mine), in = at::zeros({50000});
  WorkPtr send = group->Send(out, (rank + 1) % world);
  WorkPtr recv = group->Recv(in, (rank + world - 1) % world);
  recv->Wait();
  send->Wait();
  RANK_CHECK(in[49999].item<float>() == static_cast<float>((rank + world - 1) % world));
  group->AllReduce(at::empty({0}), ReduceOp::kSum)->Wait();
  group->Barrier();
  return 0;
}

SLIPWAY_RANK_BODY(GlooOperations) {
  return WithGroups(rank, absl::Seconds(20), [&](const ProcessRendezvous& rendezvous, GroupFactory& factory) {
    if (const int code = AllOperations(factory, rank.rank, rank.world); code != 0) return code;
    auto control = BackendGroupFactory::Create(rendezvous, "control", {.interface = "lo"});
    std::unique_ptr<ControlChannel> channel =
        MakeControlChannel((*control)->MakeGroup("control", Everybody(rank.world)));
    channel->Post({.step = 1, .stop = rank.rank == 1});
    const absl::StatusOr<ControlDecision> decision = channel->Take();
    RANK_CHECK(decision.ok() && decision->stop);
    return 0;
  });
}

TEST(GlooProcesses, AllOperations) {
  ListeningSocket socket = Listen();
  RankProcesses ranks("GlooOperations", 3, socket.Argument());
  socket.fd.reset();
  for (const RankExit& exit : ranks.WaitAll(std::chrono::seconds(60))) EXPECT_EQ(exit.code, 0) << exit.output;
}

SLIPWAY_RANK_BODY(GlooEndless) {
  return WithGroups(rank, absl::Seconds(3), [&](const ProcessRendezvous&, GroupFactory& factory) {
    CommPtr group = factory.MakeGroup("dp", Everybody(rank.world));
    for (int step = 0;; ++step) {
      at::Tensor value = at::ones({1000});
      group->AllReduce(value, ReduceOp::kSum)->Wait();
      if (step == 3) std::cout << "running" << std::endl;
    }
    return 0;
  });
}

bool AwaitRunning(const RankProcesses& ranks, int world) {
  for (int attempt = 0; attempt < 3000; ++attempt) {
    int running = 0;
    for (int rank = 0; rank < world; ++rank) running += ranks.Output(rank).find("running") != std::string::npos;
    if (running == world) return true;
    ::usleep(10000);
  }
  return false;
}

TEST(GlooProcesses, AKilledPeerIsAnErrorAtOnce) {
  ListeningSocket socket = Listen();
  RankProcesses ranks("GlooEndless", 3, socket.Argument());
  socket.fd.reset();
  ASSERT_TRUE(AwaitRunning(ranks, 3)) << ranks.Output(0);
  ranks.Kill(2);
  const std::vector<RankExit> exits = ranks.WaitAll(std::chrono::seconds(20));
  for (int rank : {0, 1}) {
    EXPECT_EQ(exits[rank].code, 7) << exits[rank].output;
    EXPECT_THAT(exits[rank].output,
                HasSubstr(absl::StrCat("failed: group dp (rank ", rank, " of 3, world ranks 0 1 2): all_reduce #")));
  }
}

TEST(GlooProcesses, AStoppedPeerIsATimeout) {
  ListeningSocket socket = Listen();
  RankProcesses ranks("GlooEndless", 2, socket.Argument());
  socket.fd.reset();
  ASSERT_TRUE(AwaitRunning(ranks, 2)) << ranks.Output(0);
  ranks.Kill(1, SIGSTOP);
  const RankExit exit = ranks.WaitFor(0, std::chrono::seconds(30));
  EXPECT_EQ(exit.code, 7) << exit.output;
  EXPECT_THAT(exit.output, HasSubstr("timeout: group dp (rank 0 of 2, world ranks 0 1): all_reduce #"));
}

int CountEntries(const char* path) {
  DIR* directory = ::opendir(path);
  int count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

SLIPWAY_RANK_BODY(GlooCycles) {
  return WithGroups(rank, absl::Seconds(20), [&](const ProcessRendezvous& rendezvous, GroupFactory&) {
    int fds = 0, threads = 0;
    for (int cycle = 0; cycle < 50; ++cycle) {
      {
        auto factory = BackendGroupFactory::Create(rendezvous, absl::StrCat("cycle", cycle), {.interface = "lo"});
        CommPtr group = (*factory)->MakeGroup("dp", Everybody(rank.world));
        at::Tensor value = at::ones({8});
        group->AllReduce(value, ReduceOp::kSum)->Wait();
        RANK_CHECK(value[0].item<float>() == static_cast<float>(rank.world));
      }
      if (cycle == 4) {
        fds = CountEntries("/proc/self/fd");
        threads = CountEntries("/proc/self/task");
      }
    }
    std::cerr << "fds " << fds << " then " << CountEntries("/proc/self/fd") << ", threads " << threads << " then "
              << CountEntries("/proc/self/task") << "\n";
    RANK_CHECK(CountEntries("/proc/self/fd") <= fds + 1);
    RANK_CHECK(CountEntries("/proc/self/task") <= threads + 1);
    return 0;
  });
}

TEST(GlooProcesses, FiftyCyclesLeakNothing) {
  ListeningSocket socket = Listen();
  RankProcesses ranks("GlooCycles", 2, socket.Argument());
  socket.fd.reset();
  for (const RankExit& exit : ranks.WaitAll(std::chrono::seconds(60))) EXPECT_EQ(exit.code, 0) << exit.output;
}

TEST(Rendezvous, NamesRanksThatDoNotCome) {
  ListeningSocket socket = Listen();
  const auto rendezvous = ProcessRendezvous::Create({.port = socket.port,
                                                     .listen_fd = socket.fd.release(),
                                                     .rank = 0,
                                                     .world = 3,
                                                     .prefix = "job/1/x",
                                                     .timeout = absl::Milliseconds(300)});
  EXPECT_THAT(rendezvous.status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("ranks 1 2 of 3 did not come")));
}

TEST(Rendezvous, ASocketThatNobodyServesDoesNotHang) {
  const ListeningSocket socket = Listen();
  const auto start = std::chrono::steady_clock::now();
  const auto rendezvous = ProcessRendezvous::Create(
      {.port = socket.port, .rank = 1, .world = 2, .prefix = "job/1/x", .timeout = absl::Seconds(1)});
  EXPECT_FALSE(rendezvous.ok());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
}

TEST(Rendezvous, RefusesBadOptions) {
  const auto code_of = [](const RendezvousOptions& options) { return ProcessRendezvous::Create(options).status(); };
  EXPECT_THAT(code_of({.port = 1, .rank = 2, .world = 2, .prefix = "a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rank 2 is not in a world of 2")));
  EXPECT_THAT(code_of({.port = 0, .rank = 1, .world = 2, .prefix = "a"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("port is 0")));
  EXPECT_THAT(code_of({.port = 1, .rank = 1, .world = 2}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("prefix")));
}

TEST(BackendGroupFactory, RefusesUnknownBackendsAndInterfaces) {
  ListeningSocket socket = Listen();
  ASSERT_OK_AND_ASSIGN(
      const auto rendezvous,
      ProcessRendezvous::Create(
          {.port = socket.port, .listen_fd = socket.fd.release(), .rank = 0, .world = 1, .prefix = "a"}));
  EXPECT_THAT(BackendGroupFactory::Create(*rendezvous, "train", {.backend = "mpi"}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'mpi' is not known; there are: gloo")));
  EXPECT_THAT(BackendGroupFactory::Create(*rendezvous, "train", {.interface = "nosuch0"}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nosuch0")));
  ASSERT_OK_AND_ASSIGN(const auto factory, BackendGroupFactory::Create(*rendezvous, "train", {.interface = "lo"}));
  EXPECT_EQ(factory->MakeGroup("dp", {0})->size(), 1);
}

}  // namespace
}  // namespace slipway::engine::comm
