#include "engine/comm/thread_communicator.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int> Everybody(int world) {
  std::vector<int> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// The text of the CommError that RunRanks throws; empty when it throws none.
std::string ErrorOf(int world, const std::function<void(int, GroupFactory&)>& body, absl::Duration timeout) {
  try {
    RunRanks(world, body, {.timeout = timeout});
  } catch (const CommError& error) {
    return error.what();
  }
  return "";
}

TEST(ThreadCommunicator, AllReduceGivesTheSameBitsEverywhere) {
  // 1e8 + 1 - 1e8 depends on the order of the sum; rank order must be kept on every rank and in every run.
  const std::vector<float> values = {1e8f, 1.0f, -1e8f};
  const float expected = (values[0] + values[1]) + values[2];
  for (int run = 0; run < 20; ++run) {
    std::vector<float> sums(3), maxima(3);
    RunRanks(3, [&](int rank, GroupFactory& factory) {
      CommPtr group = factory.MakeGroup("dp", Everybody(3));
      at::Tensor sum = at::full({5}, values[rank]);
      at::Tensor max = at::full({2}, values[rank]);
      WorkPtr first = group->AllReduce(sum, ReduceOp::kSum);
      WorkPtr second = group->AllReduce(max, ReduceOp::kMax);
      second->Wait();  // in another order than issued
      first->Wait();
      sums[rank] = sum[4].item<float>();
      maxima[rank] = max[1].item<float>();
    });
    EXPECT_THAT(sums, ElementsAre(expected, expected, expected));
    EXPECT_THAT(maxima, ElementsAre(1e8f, 1e8f, 1e8f));
  }
}

TEST(ThreadCommunicator, ReduceScatterIsASliceOfAllReduce) {
  RunRanks(4, [](int rank, GroupFactory& factory) {
    CommPtr group = factory.MakeGroup("dp", Everybody(4));
    const at::Tensor input = (at::arange(8, at::kFloat) + 0.1f) * (1.0f + 0.37f * static_cast<float>(rank));
    at::Tensor whole = input.clone();
    at::Tensor part = at::empty({2}, at::kFloat);
    group->ReduceScatter(part, input, ReduceOp::kSum)->Wait();
    group->AllReduce(whole, ReduceOp::kSum)->Wait();
    EXPECT_TRUE(at::equal(part, whole.narrow(0, 2 * rank, 2)));
    at::Tensor again = at::empty({8}, at::kFloat);
    group->AllGather(again, part)->Wait();
    EXPECT_TRUE(at::equal(again, whole));
  });
}

TEST(ThreadCommunicator, AllToAllBroadcastAndMessages) {
  RunRanks(2, [](int rank, GroupFactory& factory) {
    CommPtr group = factory.MakeGroup("ep", Everybody(2));
    // Rank 0 keeps 1 row and sends 2; rank 1 sends none and keeps 1.
    const std::vector<int64_t> in = rank == 0 ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{0, 1};
    const std::vector<int64_t> out = rank == 0 ? std::vector<int64_t>{1, 0} : std::vector<int64_t>{2, 1};
    const at::Tensor input = at::arange(rank == 0 ? 3 : 1, at::kFloat).view({-1, 1}) + 10.0f * static_cast<float>(rank);
    at::Tensor output = at::zeros({rank == 0 ? 1 : 3, 1});
    group->AllToAll(output, input, out, in)->Wait();
    const at::Tensor expected = rank == 0 ? at::tensor({0.0f}) : at::tensor({1.0f, 2.0f, 10.0f});
    EXPECT_TRUE(at::equal(output.view(-1), expected));

    at::Tensor word = at::full({3}, static_cast<float>(rank));
    group->Broadcast(word, 1)->Wait();
    EXPECT_TRUE(at::equal(word, at::ones({3})));

    if (rank == 0) {
      group->Send(at::full({1}, 1.0f), 1)->Wait();
      group->Send(at::full({1}, 2.0f), 1)->Wait();
    } else {
      at::Tensor first = at::zeros({1}), second = at::zeros({1});
      WorkPtr a = group->Recv(first, 0);
      WorkPtr b = group->Recv(second, 0);
      b->Wait();
      a->Wait();
      EXPECT_EQ(first.item<float>(), 1.0f);
      EXPECT_EQ(second.item<float>(), 2.0f);
    }
    group->Barrier();
  });
}

TEST(ThreadCommunicator, HalfTypesAreSummedInFloat) {
  // In bf16, 256 + 1 = 256: three ones would be lost one by one.
  RunRanks(4, [](int rank, GroupFactory& factory) {
    CommPtr group = factory.MakeGroup("tp", Everybody(4));
    at::Tensor value = at::full({1}, rank == 0 ? 256.0f : 1.0f).to(at::kBFloat16);
    group->AllReduce(value, ReduceOp::kSum)->Wait();
    EXPECT_EQ(value.item<float>(), at::full({1}, 259.0f).to(at::kBFloat16).item<float>());
  });
}

TEST(ThreadCommunicator, ARankThatThrowsWakesTheOthers) {
  std::atomic<int> woken = 0;
  const auto start = std::chrono::steady_clock::now();
  try {
    RunRanks(4, [&](int rank, GroupFactory& factory) {
      CommPtr group = factory.MakeGroup("dp", Everybody(4));
      if (rank == 2) throw std::domain_error("no data");
      at::Tensor value = at::ones({1});
      try {
        group->AllReduce(value, ReduceOp::kSum)->Wait();
      } catch (const CommError& error) {
        EXPECT_THAT(error.what(), HasSubstr("aborted: rank 2: no data"));
        ++woken;
        throw;
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const std::domain_error& error) {
    EXPECT_STREQ(error.what(), "no data");
  }
  EXPECT_EQ(woken, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(ThreadCommunicator, SaysWhoIsMissingAndWhatDiffers) {
  EXPECT_THAT(ErrorOf(
                  3,
                  [](int rank, GroupFactory& factory) {
                    CommPtr group = factory.MakeGroup("dp", Everybody(3));
                    at::Tensor value = at::ones({4});
                    if (rank != 1) group->AllReduce(value, ReduceOp::kSum)->Wait();
                  },
                  absl::Milliseconds(200)),
              HasSubstr("of 3, world ranks 0 1 2): all_reduce #1 of 16 bytes: no word from world ranks 1"));
  EXPECT_THAT(ErrorOf(
                  2,
                  [](int rank, GroupFactory& factory) {
                    CommPtr group = factory.MakeGroup("dp", Everybody(2));
                    at::Tensor value = at::ones({4 + rank});
                    group->AllReduce(value, ReduceOp::kSum)->Wait();
                  },
                  absl::Seconds(30)),
              HasSubstr("rank 0 does all_reduce sum of 4 Float, rank 1 does all_reduce sum of 5 Float"));
  EXPECT_THAT(ErrorOf(
                  2,
                  [](int rank, GroupFactory& factory) {
                    CommPtr group = factory.MakeGroup("pp", Everybody(2));
                    at::Tensor value = at::ones({4});
                    if (rank == 1) group->Recv(value, 0)->Wait();
                  },
                  absl::Milliseconds(200)),
              HasSubstr("recv #1 of 16 bytes: no message from world rank 0"));
  EXPECT_THAT(ErrorOf(
                  2,
                  [](int, GroupFactory& factory) {
                    CommPtr group = factory.MakeGroup("tp", Everybody(2));
                    at::Tensor output = at::ones({3});
                    group->AllGather(output, at::ones({2}))->Wait();
                  },
                  absl::Seconds(30)),
              HasSubstr("output has 3 elements, 2 ranks of 2 elements give 4"));
}

class Counter final : public CommObserver {
 public:
  void Begin(const std::string& group, const char* operation, uint64_t sequence, int64_t bytes) override {
    log.push_back(absl::StrCat("+", group, " ", operation, " ", sequence, " ", bytes));
  }
  void End(const std::string& group, const char* operation, uint64_t sequence) override {
    log.push_back(absl::StrCat("-", group, " ", operation, " ", sequence));
  }
  std::vector<std::string> log;
};

TEST(ThreadCommunicator, TellsTheObserver) {
  std::vector<std::shared_ptr<Counter>> counters = {std::make_shared<Counter>(), std::make_shared<Counter>()};
  RunRanks(2,
           [](int rank, GroupFactory& factory) {
             CommPtr group = factory.MakeGroup("dp", Everybody(2));
             at::Tensor value = at::ones({2});
             WorkPtr sum = group->AllReduce(value, ReduceOp::kSum);
             if (rank == 0) group->Send(value, 1)->Wait();
             sum->Wait();
             if (rank == 1) group->Recv(value, 0)->Wait();
             group->Barrier();
           },
           {.observer = [&](int rank) { return counters[rank]; }});
  EXPECT_THAT(counters[0]->log, ElementsAre("+dp all_reduce 1 8", "+dp send 1 8", "-dp send 1", "-dp all_reduce 1",
                                            "+dp barrier 2 0", "-dp barrier 2"));
  EXPECT_THAT(counters[1]->log, ElementsAre("+dp all_reduce 1 8", "-dp all_reduce 1", "+dp recv 1 8", "-dp recv 1",
                                            "+dp barrier 2 0", "-dp barrier 2"));
}

TEST(ParallelGroups, FollowTheMesh) {
  ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, topology::Mesh::Create({.tp = 2, .dp = 2, .pp = 2}));
  std::mutex mutex;
  RunRanks(8, [&](int rank, GroupFactory& factory) {
    const ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
    const topology::Coordinates at = mesh.CoordinatesOf(rank);
    EXPECT_EQ(groups.tp->rank(), at.tp);
    EXPECT_EQ(groups.pp->rank(), at.pp);
    EXPECT_EQ(groups.pp_back->rank(), at.pp);
    EXPECT_NE(groups.pp.get(), groups.pp_back.get());
    EXPECT_EQ(groups.dp_cp->rank(), at.dp);
    EXPECT_EQ(groups.dp.get(), groups.dp_cp.get());  // the same ranks: one communicator
    EXPECT_EQ(groups.cp->size(), 1);
    EXPECT_EQ(groups.model->size(), 4);
    EXPECT_EQ(groups.embedding->size(), 2);
    EXPECT_EQ(groups.world->size(), 8);
    // The sum over model and dp_cp is the sum over the world.
    at::Tensor sum = at::full({1}, static_cast<float>(rank));
    groups.model->AllReduce(sum, ReduceOp::kSum)->Wait();
    groups.dp_cp->AllReduce(sum, ReduceOp::kSum)->Wait();
    EXPECT_EQ(sum.item<float>(), 28.0f);
  });
}

TEST(ParallelGroups, OneRankNeedsNoGroup) {
  ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, topology::Mesh::Create({}));
  RunRanks(1, [&](int rank, GroupFactory& factory) {
    const ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
    for (const CommPtr& group : {groups.world, groups.tp, groups.cp, groups.dp, groups.dp_cp, groups.pp, groups.pp_back,
                                 groups.embedding, groups.model}) {
      EXPECT_EQ(group->size(), 1);
      at::Tensor value = at::full({2}, 3.0f);
      group->AllReduce(value, ReduceOp::kSum)->Wait();
      at::Tensor copy = at::empty({2}, at::kFloat);
      group->ReduceScatter(copy, value, ReduceOp::kSum)->Wait();
      EXPECT_TRUE(at::equal(copy, value));
      EXPECT_THROW(group->Send(value, 0), CommError);
    }
  });
}

}  // namespace
}  // namespace slipway::engine::comm
