// The decoder against transformers on the tiny models of data/ (README.md there): logits, loss, every gradient and five
// AdamW steps, on one rank and over two tensor-parallel ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/comm/thread_communicator.h"
#include "engine/model/stage_piece.h"
#include "engine/ops/ops.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "tests/golden/golden_models.h"
#include "tests/support/local_model.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine {
namespace {

using ::slipway::testing::Golden;
using ::slipway::testing::kGoldenTolerance;
using ::slipway::testing::LocalModel;
using ::slipway::testing::LocalShare;
using ::slipway::testing::NamedTensors;
using ::slipway::testing::ReadGolden;
using ::slipway::testing::TensorNear;

model::MicroBatch BatchOf(const Golden& golden, int64_t step) {
  const at::Tensor ids = golden.values.at("input_ids")[step];
  const int64_t rows = ids.size(0), length = ids.size(1);
  model::MicroBatch batch;
  batch.tokens = ids.flatten();
  batch.labels = golden.values.at("labels")[step].flatten();
  batch.weights = golden.values.at("loss_mask")[step].flatten();
  batch.layout = nn::MakeSequenceLayout(std::vector<int64_t>(rows, length), {0, 1}, rows * length, at::kCPU);
  return batch;
}

// A model over one rank's handles.
class Trainee {
 public:
  Trainee(const Golden& golden, const comm::CommPtr& tp)
      : golden_(golden),
        table_(arch::BuildParamTable(golden.arch)),
        placement_{.rank = tp->rank(), .size = tp->size()},
        tp_(tp),
        local_(table_, golden.weights, placement_) {
    comm::ParallelGroups groups = comm::MakeSoloGroups();
    groups.tp = tp;
    parallel::ParallelLayerFactory factory([&](const std::string& group) { return local_.Handle(group); }, groups,
                                           {.vocab_size = golden.arch.vocab_size});
    pieces_ = model::BuildDecoder(golden.arch, model::AllPieces(golden.arch), factory);
  }

  at::Tensor Logits(model::MicroBatch batch) {
    const at::NoGradGuard no_grad;
    batch.labels = at::Tensor();
    return model::ForwardPieces(pieces_, {}, batch, {.layout = &batch.layout});
  }

  // The mean loss; leaves the gradients in the handles.
  double ForwardBackward(const model::MicroBatch& batch) {
    local_.BeginStep();
    const at::Tensor loss = model::ForwardPieces(pieces_, {}, batch, {.layout = &batch.layout}) / batch.weights.sum();
    loss.backward();
    return loss.item<double>();
  }

  // The gradient of each logical tensor, summed over ranks where they hold parts of it.
  NamedTensors Gradients() {
    NamedTensors gradients = local_.Gradients();
    for (const arch::ParamSpec& spec : table_) {
      if (spec.tied_to || arch::TpGradSumRanks(spec, placement_.size, false) == 1) continue;
      // With two ranks a sum over some of them is one over all.
      tp_->AllReduce(gradients.at(spec.name), comm::ReduceOp::kSum)->Wait();
    }
    return gradients;
  }

  // Clips, steps, and returns the norm before clipping.
  double Step(int step) {
    const NamedTensors gradients = Gradients();
    at::Tensor squares = at::zeros({}, at::kDouble);
    for (const arch::ParamSpec& spec : table_) {
      if (spec.tied_to) continue;
      squares += ops::SumSquares(gradients.at(spec.name)) / arch::TpReplicas(spec, placement_.size);
    }
    tp_->AllReduce(squares, comm::ReduceOp::kSum)->Wait();
    const double norm = std::sqrt(squares.item<double>());
    const auto& optimizer = golden_.json.at("optimizer");
    const double clip = std::min(1.0, optimizer.at("clip_grad").get<double>() / (norm + 1e-6));
    for (const auto& [group, handle] : local_.handles()) {
      if (stepped_.insert(handle.get()).second) StepHandle(*handle, step, clip, optimizer);
    }
    stepped_.clear();
    return norm;
  }

  LocalModel& local() { return local_; }
  const std::vector<arch::ParamSpec>& table() const { return table_; }
  const arch::TpPlacement& placement() const { return placement_; }

 private:
  void StepHandle(nn::LocalParamHandle& handle, int step, double clip, const nlohmann::json& optimizer) {
    const at::Tensor weight = handle.Acquire();
    auto [state, fresh] = moments_.try_emplace(&handle);
    if (fresh) state->second = {at::zeros_like(weight), at::zeros_like(weight)};
    ops::AdamW(weight, state->second.first, state->second.second, handle.main_grad(), std::nullopt,
               at::scalar_tensor(step, at::kFloat), at::scalar_tensor(clip, at::kFloat),
               at::scalar_tensor(0, at::kFloat), optimizer.at("lr"), optimizer.at("betas")[0], optimizer.at("betas")[1],
               optimizer.at("eps"), weight.dim() >= 2 ? optimizer.at("weight_decay").get<double>() : 0.0);
    handle.Release();
  }

  const Golden& golden_;
  std::vector<arch::ParamSpec> table_;
  arch::TpPlacement placement_;
  comm::CommPtr tp_;
  LocalModel local_;
  model::StagePieces pieces_;
  std::map<nn::LocalParamHandle*, std::pair<at::Tensor, at::Tensor>> moments_;
  std::set<nn::LocalParamHandle*> stepped_;
};

void CheckGolden(const Golden& golden, const comm::CommPtr& tp) {
  Trainee trainee(golden, tp);
  const model::MicroBatch first = BatchOf(golden, 0);
  const at::Tensor logits = golden.values.at("logits");
  EXPECT_THAT(trainee.Logits(first), TensorNear(logits.flatten(0, 1), kGoldenTolerance));
  for (int step = 0; step < 5; ++step) {
    SCOPED_TRACE(::testing::Message() << "step " << step + 1);
    const auto& expected = golden.json.at("steps")[step];
    const double loss = trainee.ForwardBackward(BatchOf(golden, step));
    EXPECT_NEAR(loss / expected.at("loss").get<double>(), 1, kGoldenTolerance);
    if (step == 0) {
      for (const auto& [name, gradient] : trainee.Gradients()) {
        const at::Tensor whole = golden.values.at("grad." + name);
        for (const arch::ParamSpec& spec : trainee.table()) {
          if (spec.name != name) continue;
          const at::Tensor share = LocalShare(spec, whole, trainee.placement()).narrow(0, 0, gradient.size(0));
          EXPECT_THAT(gradient, TensorNear(share, kGoldenTolerance)) << name;
        }
      }
      trainee.ForwardBackward(BatchOf(golden, step));  // Gradients() may have reduced in place
    }
    EXPECT_NEAR(trainee.Step(step + 1) / expected.at("grad_norm").get<double>(), 1, kGoldenTolerance);
  }
  for (const auto& [name, weight] : trainee.local().Weights()) {
    for (const arch::ParamSpec& spec : trainee.table()) {
      if (spec.name != name) continue;
      const at::Tensor share = LocalShare(spec, golden.values.at("after." + name), trainee.placement());
      EXPECT_THAT(weight, TensorNear(share.narrow(0, 0, weight.size(0)), kGoldenTolerance)) << name;
    }
  }
}

class DecoderGoldenTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, DecoderGoldenTest,
                         ::testing::Values("llama", "qwen2", "qwen3", "qwen3_tied", "qwen3_moe"),
                         [](const auto& name) { return name.param; });

TEST_P(DecoderGoldenTest, EqualsTransformers) { CheckGolden(ReadGolden(GetParam()), comm::MakeSelfCommunicator("tp")); }

// Models without experts: those need sequence parallelism where tensor parallelism is on, and a choice of experts flips
// where two of them are near in bf16.
class DenseGoldenTest : public DecoderGoldenTest {};
INSTANTIATE_TEST_SUITE_P(All, DenseGoldenTest, ::testing::Values("llama", "qwen2", "qwen3", "qwen3_tied"),
                         [](const auto& name) { return name.param; });

TEST_P(DenseGoldenTest, EqualsTransformersOverTwoTensorParallelRanks) {
  const Golden golden = ReadGolden(GetParam());
  comm::RunRanks(2, [&](int, comm::GroupFactory& factory) { CheckGolden(golden, factory.MakeGroup("tp", {0, 1})); });
}

// bf16 compute keeps two to three digits.
TEST_P(DenseGoldenTest, Bf16IsNear) {
  const Golden golden = ReadGolden(GetParam());
  LocalModel local(arch::BuildParamTable(golden.arch), golden.weights, {}, at::kBFloat16);
  const comm::ParallelGroups groups = comm::MakeSoloGroups();
  parallel::ParallelLayerFactory factory([&](const std::string& group) { return local.Handle(group); }, groups,
                                         {.vocab_size = golden.arch.vocab_size});
  const model::StagePieces pieces = model::BuildDecoder(golden.arch, model::AllPieces(golden.arch), factory);
  const model::MicroBatch batch = BatchOf(golden, 0);
  const at::Tensor loss = model::ForwardPieces(pieces, {}, batch, {.layout = &batch.layout}) / batch.weights.sum();
  EXPECT_EQ(loss.scalar_type(), at::kFloat);
  loss.backward();
  EXPECT_NEAR(loss.item<double>() / golden.json.at("steps")[0].at("loss").get<double>(), 1, 0.01);
  for (const auto& [name, gradient] : local.Gradients()) {
    EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
    EXPECT_THAT(gradient, TensorNear(golden.values.at("grad." + name), 0.05)) << name;
  }
}

}  // namespace
}  // namespace slipway::engine
