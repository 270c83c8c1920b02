#include "engine/comm/control_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "engine/comm/thread_communicator.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::comm {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

CommPtr ControlGroup(GroupFactory& factory, int world) {
  std::vector<int> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  return factory.MakeGroup("control", ranks);
}

TEST(ControlChannel, AgreesOneStepAhead) {
  RunRanks(3, [](int rank, GroupFactory& factory) {
    std::unique_ptr<ControlChannel> channel = MakeControlChannel(ControlGroup(factory, 3));
    channel->Post({.step = 1, .spec_hash = 7});
    for (int64_t step = 1; step <= 20; ++step) {
      channel->Post({.step = step + 1,
                     .spec_hash = 7,
                     .parameter_checksum = step % 5 == 0 ? 100 + static_cast<uint64_t>(rank % 2) : 0,
                     .parameter_group = rank % 2,
                     .stop = rank == 1 && step + 1 == 12,
                     .checkpoint_requests = rank == 2 ? step : 0,
                     .failed = step + 1 == 15 && rank > 0});
      ASSERT_OK_AND_ASSIGN(const ControlDecision decision, channel->Take());
      EXPECT_EQ(decision.step, step);
      EXPECT_EQ(decision.stop, step == 12);
      EXPECT_EQ(decision.checkpoint_requests, step == 1 ? 0 : step - 1);
      EXPECT_EQ(decision.failed_rank, step == 15 ? 1 : -1);
    }
    EXPECT_OK(channel->Take());
    EXPECT_THAT(channel->Take(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("without a Post")));
  });
}

// What rank 0 gets when every rank posts `record(rank)`.
absl::Status StatusOfRecords(int world, const std::function<ControlRecord(int rank)>& record) {
  absl::Status result;
  RunRanks(world, [&](int rank, GroupFactory& factory) {
    std::unique_ptr<ControlChannel> channel = MakeControlChannel(ControlGroup(factory, world));
    channel->Post(record(rank));
    const absl::Status status = channel->Take().status();
    if (rank == 0) result = status;
  });
  return result;
}

TEST(ControlChannel, NamesRanksThatDisagree) {
  EXPECT_THAT(StatusOfRecords(3, [](int rank) { return ControlRecord{.step = rank == 2 ? 8 : 9}; }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 0 is at step 9, rank 2 at step 8")));
  EXPECT_THAT(StatusOfRecords(2, [](int rank) { return ControlRecord{.step = 1, .spec_hash = 10u + rank}; }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("rank 0 has specification 0x000000000000000a, rank 1 has 0x000000000000000b")));
  EXPECT_THAT(StatusOfRecords(4,
                              [](int rank) {
                                return ControlRecord{.step = 5,
                                                     .parameter_checksum = rank == 3 ? 2u : 1u + 9u * (rank % 2),
                                                     .parameter_group = rank % 2};
                              }),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("replicas of parameters 1 differ: rank 1 has checksum 0x000000000000000a, rank 3 has "
                                 "0x0000000000000002")));
}

TEST(ControlChannel, AMissingRankIsADeadline) {
  RunRanks(2,
           [](int rank, GroupFactory& factory) {
             CommPtr group = ControlGroup(factory, 2);
             if (rank == 1) return;
             std::unique_ptr<ControlChannel> channel = MakeControlChannel(group);
             channel->Post({.step = 1});
             EXPECT_THAT(channel->Take(), StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("group control")));
           },
           {.timeout = absl::Milliseconds(100)});
}

TEST(ControlChannel, ADeadRankIsUnavailable) {
  EXPECT_THROW(RunRanks(2,
                        [](int rank, GroupFactory& factory) {
                          std::unique_ptr<ControlChannel> channel = MakeControlChannel(ControlGroup(factory, 2));
                          if (rank == 1) throw std::domain_error("gone");
                          channel->Post({.step = 1});
                          EXPECT_THAT(channel->Take(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("gone")));
                        }),
               std::domain_error);
}

}  // namespace
}  // namespace slipway::engine::comm
