// Conjugate pairs on threads as ranks, with numeric gradients: each rank's loss is Σ c_r · y_r, what counts is their
// sum, and the gradient of an input is how that sum changes with it.
#include "engine/nn/comm_functions.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/comm/thread_communicator.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using ::slipway::testing::TensorNear;
using Function = at::Tensor (*)(const at::Tensor&, const comm::CommPtr&);

constexpr int kRanks = 2;
constexpr double kDelta = 1e-3;  // everything is linear: any size is exact

at::Tensor Coefficients(at::IntArrayRef shape, int rank) {
  return at::sin(at::arange(c10::multiply_integers(shape), at::kDouble).view(shape) + 10.0 * rank);
}

struct Result {
  double loss = 0;  // summed over the ranks
  std::vector<at::Tensor> gradients;
};

// `replicated_output`: all ranks hold the same output and compute the same from it, so that the loss counts once.
Result Run(Function function, const std::vector<at::Tensor>& inputs, bool replicated_output) {
  Result result;
  std::vector<double> losses(kRanks);
  result.gradients.resize(kRanks);
  comm::RunRanks(kRanks, [&](int rank, comm::GroupFactory& factory) {
    const comm::CommPtr group = factory.MakeGroup("tp", {0, 1});
    const at::Tensor x = inputs[rank].clone().requires_grad_();
    const at::Tensor y = function(x * 1, group);
    const at::Tensor loss = (y * Coefficients(y.sizes(), replicated_output ? 0 : rank)).sum();
    loss.backward();
    losses[rank] = loss.item<double>();
    result.gradients[rank] = x.grad();
  });
  if (replicated_output) return {losses[0], result.gradients};
  result.loss = losses[0] + losses[1];
  return result;
}

// replicated_input: the ranks hold the same input, which changes on all of them at once; each rank's gradient is the
// whole.
void CheckGradient(Function function, bool replicated_input, bool replicated_output) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < kRanks; ++rank) inputs.push_back(Coefficients({4, 2}, replicated_input ? 5 : 5 + rank));
  const Result base = Run(function, inputs, replicated_output);
  for (int rank = 0; rank < kRanks; ++rank) {
    at::Tensor numeric = at::zeros({4, 2}, at::kDouble);
    for (int64_t i = 0; i < 8; ++i) {
      std::vector<at::Tensor> moved;
      for (int r = 0; r < kRanks; ++r) {
        moved.push_back(inputs[r].clone());
        if (r == rank || replicated_input) moved[r].view(-1)[i] += kDelta;
      }
      numeric.view(-1)[i] = (Run(function, moved, replicated_output).loss - base.loss) / kDelta;
    }
    EXPECT_THAT(base.gradients[rank], TensorNear(numeric, 1e-9)) << "rank " << rank;
  }
}

TEST(CommFunctionsTest, CopyToGroup) { CheckGradient(CopyToGroup, /*replicated_input=*/true, false); }
TEST(CommFunctionsTest, ReduceFromGroup) { CheckGradient(ReduceFromGroup, false, /*replicated_output=*/true); }
TEST(CommFunctionsTest, SplitFeatures) { CheckGradient(SplitFeatures, /*replicated_input=*/true, false); }
TEST(CommFunctionsTest, GatherFeatures) { CheckGradient(GatherFeatures, false, /*replicated_output=*/true); }
TEST(CommFunctionsTest, SplitTokens) { CheckGradient(SplitTokens, /*replicated_input=*/true, false); }
TEST(CommFunctionsTest, GatherTokens) { CheckGradient(GatherTokens, false, /*replicated_output=*/false); }
TEST(CommFunctionsTest, MergeTokens) { CheckGradient(MergeTokens, false, /*replicated_output=*/true); }
TEST(CommFunctionsTest, ReduceScatterTokens) { CheckGradient(ReduceScatterTokens, false, false); }

TEST(CommFunctionsTest, GatherAndSplitAreInverse) {
  comm::RunRanks(kRanks, [&](int rank, comm::GroupFactory& factory) {
    const comm::CommPtr group = factory.MakeGroup("tp", {0, 1});
    const at::Tensor x = Coefficients({4, 2}, rank);
    EXPECT_THAT(SplitFeatures(GatherFeatures(x, group), group), TensorNear(x, 0.0));
    EXPECT_THAT(SplitTokens(MergeTokens(x, group), group), TensorNear(x, 0.0));
    EXPECT_THAT(GatherFeatures(x, group).narrow(1, 2 * rank, 2), TensorNear(x, 0.0));
  });
}

TEST(CommFunctionsTest, AGroupOfOneGivesTheInputBack) {
  const comm::CommPtr alone = comm::MakeSelfCommunicator("tp");
  const at::Tensor x = Coefficients({4, 2}, 0);
  for (const Function function : {CopyToGroup, ReduceFromGroup, SplitFeatures, GatherFeatures, SplitTokens,
                                  GatherTokens, MergeTokens, ReduceScatterTokens}) {
    EXPECT_TRUE(function(x, alone).is_same(x));
  }
}

TEST(CommFunctionsTest, WhatDoesNotDivideIsRefused) {
  comm::RunRanks(kRanks, [&](int, comm::GroupFactory& factory) {
    const comm::CommPtr group = factory.MakeGroup("tp", {0, 1});
    EXPECT_THROW(SplitTokens(at::zeros({3, 2}), group), c10::Error);
    EXPECT_THROW(ReduceScatterTokens(at::zeros({3, 2}), group), c10::Error);
  });
}

}  // namespace
}  // namespace slipway::engine::nn
