// A pair of column- and row-parallel layers on threads as ranks against the same two products on one: outputs and every
// gradient, with and without sequence parallelism, with communication waited for at once and beside the products; and
// how much is communicated.
#include "engine/nn/parallel_linear.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/comm/thread_communicator.h"
#include "engine/nn/functions.h"
#include "engine/nn/local_param_handle.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using ::slipway::testing::TensorNear;

constexpr int kRanks = 2;
constexpr int64_t kTokens = 8, kIn = 5, kInner = 8;

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

// What one rank has after a forward and a backward of: x → column layer with bias → sin → row layer.
struct Outcome {
  at::Tensor y, dx, column, bias, row;
  std::map<std::string, int> operations;
};

struct Mode {
  bool sequence_parallel, overlap;
};

Outcome Run(at::Tensor x, at::Tensor dy, at::Tensor column, at::Tensor bias, at::Tensor row, const TensorParallel& tp,
            bool frozen = false) {
  const auto column_weight = c10::make_intrusive<LocalParamHandle>("column", column, !frozen);
  const auto bias_weight = c10::make_intrusive<LocalParamHandle>("bias", bias, !frozen);
  const auto row_weight = c10::make_intrusive<LocalParamHandle>("row", row, true);
  x = x.clone().requires_grad_();
  const at::Tensor y = RowParallelLinear(ColumnParallelLinear(x, column_weight, bias_weight, tp).sin(), row_weight, tp);
  y.backward(dy);
  EXPECT_EQ(column_weight->registered_uses(), column_weight->ended_uses());
  EXPECT_EQ(column_weight->held(), 0);
  return {y.detach(), x.grad(), column_weight->main_grad(), bias_weight->main_grad(), row_weight->main_grad(), {}};
}

class Counter final : public comm::CommObserver {
 public:
  explicit Counter(std::map<std::string, int>& counts) : counts_(counts) {}
  void Begin(const std::string&, const char* operation, uint64_t, int64_t) override { ++counts_[operation]; }
  void End(const std::string&, const char*, uint64_t) override {}

 private:
  std::map<std::string, int>& counts_;
};

std::vector<Outcome> RunOnRanks(Mode mode, bool frozen = false) {
  std::vector<Outcome> outcomes(kRanks);
  std::vector<std::map<std::string, int>> counts(kRanks);
  comm::RunRanks(kRanks,
                 [&](int rank, comm::GroupFactory& factory) {
                   const TensorParallel tp{factory.MakeGroup("tp", {0, 1}), mode.sequence_parallel, mode.overlap};
                   const auto tokens = [&](const at::Tensor& whole) {
                     return mode.sequence_parallel ? whole.chunk(kRanks, 0)[rank].contiguous() : whole;
                   };
                   outcomes[rank] =
                       Run(tokens(Random({kTokens, kIn}, 1)), tokens(Random({kTokens, kIn}, 5)),
                           Random({kInner, kIn}, 2).chunk(kRanks, 0)[rank], Random({kInner}, 3).chunk(kRanks, 0)[rank],
                           Random({kIn, kInner}, 4).chunk(kRanks, 1)[rank].contiguous(), tp, frozen);
                 },
                 {.observer = [&](int rank) { return std::make_shared<Counter>(counts[rank]); }});
  for (int rank = 0; rank < kRanks; ++rank) outcomes[rank].operations = counts[rank];
  return outcomes;
}

Outcome RunAlone() {
  return Run(Random({kTokens, kIn}, 1), Random({kTokens, kIn}, 5), Random({kInner, kIn}, 2), Random({kInner}, 3),
             Random({kIn, kInner}, 4), {comm::MakeSelfCommunicator("tp"), false, true});
}

class ParallelLinearTest : public ::testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(Modes, ParallelLinearTest,
                         ::testing::Values(Mode{false, false}, Mode{false, true}, Mode{true, false}, Mode{true, true}),
                         [](const auto& mode) {
                           return std::string(mode.param.sequence_parallel ? "SequenceParallel" : "Plain") +
                                  (mode.param.overlap ? "Overlapped" : "");
                         });

TEST_P(ParallelLinearTest, EqualsOneRank) {
  const Outcome whole = RunAlone();
  const std::vector<Outcome> parts = RunOnRanks(GetParam());
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto tokens = [&](const at::Tensor& all) {
      return GetParam().sequence_parallel ? all.chunk(kRanks, 0)[rank] : all;
    };
    EXPECT_THAT(parts[rank].y, TensorNear(tokens(whole.y), 1e-12));
    EXPECT_THAT(parts[rank].dx, TensorNear(tokens(whole.dx), 1e-12));
    EXPECT_THAT(parts[rank].column, TensorNear(whole.column.chunk(kRanks, 0)[rank], 1e-12));
    EXPECT_THAT(parts[rank].bias, TensorNear(whole.bias.chunk(kRanks, 0)[rank], 1e-12));
    EXPECT_THAT(parts[rank].row, TensorNear(whole.row.chunk(kRanks, 1)[rank], 1e-12));
  }
}

// Forward: the tokens are gathered and the sums scattered (overlapped: in two halves); backward: the row layer's
// gradient is gathered, the tokens once more, and the input's gradient is summed. Never more.
TEST_P(ParallelLinearTest, CommunicatesWhatItMust) {
  using Counts = std::map<std::string, int>;
  const int sums = GetParam().overlap ? 3 : 2;
  const Counts expected =
      GetParam().sequence_parallel ? Counts{{"all_gather", 3}, {"reduce_scatter", sums}} : Counts{{"all_reduce", sums}};
  for (const Outcome& part : RunOnRanks(GetParam())) EXPECT_EQ(part.operations, expected);
}

TEST(ParallelLinearOverlapTest, AFrozenWeightNeedsNoTokens) {
  for (const Outcome& part : RunOnRanks({true, true}, /*frozen=*/true)) {
    EXPECT_EQ(part.operations.at("all_gather"), 2);
    EXPECT_FALSE(part.column.defined());
  }
}

}  // namespace
}  // namespace slipway::engine::nn
