// What the runner holds and sends while it walks a schedule. That its numbers are right is the layout matrix's to show
// (tests/multi).
#include "engine/parallel/pipeline_runner.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/arch/presets.h"
#include "engine/comm/thread_communicator.h"

namespace slipway::engine::parallel {
namespace {

constexpr int64_t kTokens = 6;
constexpr int64_t kHidden = 5;

// The outputs of one rank's forwards: how many are still in memory.
class Outputs {
 public:
  void Add(const at::Tensor& tensor) {
    storages_.emplace_back(
        c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(tensor.storage().unsafeGetStorageImpl()));
  }
  int Resident() const {
    return static_cast<int>(
        std::count_if(storages_.begin(), storages_.end(), [](const auto& storage) { return !storage.expired(); }));
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;
};

// Doubles its input, keeping nothing for its backward; the last one sums it up as a loss would be.
class Doubling final : public model::StagePiece {
 public:
  Doubling(bool first, bool last, Outputs& outputs, int& most_resident)
      : first_(first), last_(last), outputs_(outputs), most_resident_(most_resident) {}
  const arch::Piece& piece() const override { return piece_; }
  at::Tensor Forward(const at::Tensor& x, const model::MicroBatch&, const nn::ForwardContext&) override {
    most_resident_ = std::max(most_resident_, outputs_.Resident());
    at::Tensor output = (first_ ? at::ones({kTokens, kHidden}).requires_grad_() : x) * 2;
    outputs_.Add(output);
    return last_ ? output.sum() : output;
  }

 private:
  arch::Piece piece_;
  bool first_, last_;
  Outputs& outputs_;
  int& most_resident_;
};

// Sends of a group that were begun and not waited for.
class OpenSends final : public comm::CommObserver {
 public:
  void Begin(const std::string& group, const char* operation, uint64_t, int64_t) override {
    if (std::string(operation) == "send") most = std::max(most, ++open_[group]);
  }
  void End(const std::string& group, const char* operation, uint64_t) override {
    if (std::string(operation) == "send") --open_[group];
  }
  int most = 0;

 private:
  std::map<std::string, int> open_;
};

struct Walked {
  double loss = 0;                 // on the last rank
  std::vector<int> most_resident;  // outputs, by rank
  std::vector<int> most_open_sends;
};

Walked Walk(const topology::PipelineSchedule& schedule) {
  const topology::Mesh mesh = *topology::Mesh::Create({.pp = schedule.pp});
  Walked walked{.most_resident = std::vector<int>(schedule.pp, 0), .most_open_sends = {}};
  std::vector<std::shared_ptr<OpenSends>> observers;
  for (int rank = 0; rank < schedule.pp; ++rank) observers.push_back(std::make_shared<OpenSends>());
  comm::ThreadWorldOptions options;
  options.observer = [&](int rank) { return observers[rank]; };
  comm::RunRanks(
      schedule.pp,
      [&](int rank, comm::GroupFactory& factory) {
        const comm::ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
        auto store =
            *FlatStore::Create(arch::BuildParamTable(*arch::FindPreset("tiny_llama")), {}, mesh, rank, groups, {});
        Outputs outputs;
        std::vector<model::StagePieces> chunks(schedule.vpp);
        for (int chunk = 0; chunk < schedule.vpp; ++chunk) {
          chunks[chunk].push_back(std::make_unique<Doubling>(rank == 0 && chunk == 0,
                                                             rank == schedule.pp - 1 && chunk == schedule.vpp - 1,
                                                             outputs, walked.most_resident[rank]));
        }
        PipelineRunner runner(std::move(chunks), *store, groups, {.hidden_size = kHidden});
        StepInput input;
        input.micro_batch = [](int) {
          model::MicroBatch batch;
          batch.layout.num_tokens = kTokens;
          return batch;
        };
        const double loss = runner.TrainStep(schedule, input).item<double>();
        if (rank == schedule.pp - 1) walked.loss = loss;
      },
      options);
  for (const auto& observer : observers) walked.most_open_sends.push_back(observer->most);
  return walked;
}

TEST(PipelineRunner, WhatWasSentTakesNoMemoryAnyMore) {
  const topology::PipelineSchedule schedule = *topology::OneForwardOneBackward(4, 8);
  const Walked walked = Walk(schedule);
  EXPECT_EQ(walked.loss, 8 * 16.0 * kTokens * kHidden);
  for (int rank = 0; rank < 3; ++rank) {
    ASSERT_EQ(topology::PeakInFlight(schedule, rank), 4 - rank);
    EXPECT_LE(walked.most_resident[rank], 1) << "rank " << rank;  // the one that is still under way
  }
}

// The backward of each rank follows its forward at once: its message is asked for in between.
TEST(PipelineRunner, OneMicroBatchTurnsBackOnEveryRank) {
  for (const int pp : {1, 2, 3}) {
    const Walked walked = Walk(*topology::OneForwardOneBackward(pp, 1));
    EXPECT_EQ(walked.loss, 1.0 * (1 << pp) * kTokens * kHidden) << pp << " ranks";
  }
}

TEST(PipelineRunner, VirtualStagesGoAround) {
  for (const int pp : {2, 3}) {
    const topology::PipelineSchedule schedule = *topology::InterleavedOneForwardOneBackward(pp, 3, 2 * pp);
    const Walked walked = Walk(schedule);
    EXPECT_EQ(walked.loss, 2.0 * pp * (1 << (3 * pp)) * kTokens * kHidden);
    for (int rank = 0; rank < pp; ++rank) EXPECT_LE(walked.most_resident[rank], 3) << "rank " << rank;
    EXPECT_THAT(walked.most_open_sends, testing::Each(1));
  }
}

TEST(PipelineRunner, LargerGroupsRunAheadAsFarAsTheScheduleSays) {
  const topology::PipelineSchedule schedule = *topology::InterleavedOneForwardOneBackward(2, 2, 8, 4);
  ASSERT_EQ(schedule.channel_capacity, 3);
  const Walked walked = Walk(schedule);
  EXPECT_EQ(walked.loss, 8 * 16.0 * kTokens * kHidden);
  EXPECT_EQ(*std::max_element(walked.most_open_sends.begin(), walked.most_open_sends.end()), 3);
}

}  // namespace
}  // namespace slipway::engine::parallel
