// Seconds of one training step of SmolLM2-135M (random weights) on the CPU in fp32: forward, backward, clipping, AdamW.
//   cpu_step_bench [--tokens=512] [--steps=5] [--threads=2]
// tests/bench/cpu_step_peer.py runs it next to transformers' own step and prints the ratio.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/model/stage_piece.h"
#include "engine/ops/ops.h"
#include "engine/parallel/parallel_layer_factory.h"
#include "tests/support/local_model.h"

namespace slipway::engine {
namespace {

using Clock = std::chrono::steady_clock;

double Seconds(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

double ProcessorSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int64_t Flag(int argc, char** argv, std::string_view name, int64_t value) {
  const std::string prefix = "--" + std::string(name) + "=";
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]).starts_with(prefix)) value = std::atoll(argv[i] + prefix.size());
  }
  return value;
}

arch::ModelArch SmolLm2() {
  arch::ModelArch arch;
  arch.family = arch::Family::kLlama;
  arch.num_layers = 30;
  arch.hidden_size = 576;
  arch.num_attention_heads = 9;
  arch.num_query_groups = 3;
  arch.kv_channels = 64;
  arch.ffn_hidden_size = 1536;
  arch.vocab_size = 49152;
  arch.max_position_embeddings = 8192;
  arch.rotary_base = 100000;
  arch.norm_epsilon = 1e-5;
  return arch;
}

struct Moments {
  at::Tensor first, second;
};

int Main(int argc, char** argv) {
  const int64_t tokens = Flag(argc, argv, "tokens", 512), steps = Flag(argc, argv, "steps", 5);
  at::set_num_threads(static_cast<int>(Flag(argc, argv, "threads", 2)));
  const arch::ModelArch arch = SmolLm2();
  const std::vector<arch::ParamSpec> table = arch::BuildParamTable(arch);
  testing::LocalModel local(table, testing::RandomWeights(table, 1, 0.02));
  comm::ParallelGroups groups;
  groups.tp = comm::MakeSelfCommunicator("tp");
  parallel::ParallelLayerFactory factory([&](const std::string& group) { return local.Handle(group); }, groups,
                                         {.vocab_size = arch.vocab_size});
  const model::StagePieces pieces = model::BuildDecoder(arch, model::AllPieces(arch), factory);

  std::map<nn::LocalParamHandle*, Moments> moments;
  for (const auto& [group, handle] : local.handles()) {
    const at::Tensor weight = handle->Acquire();
    moments[handle.get()] = {at::zeros_like(weight), at::zeros_like(weight)};
  }
  model::MicroBatch batch;
  batch.tokens = at::randint(0, arch.vocab_size, {tokens}, at::kLong);
  batch.labels = batch.tokens.roll(-1);
  batch.weights = at::ones({tokens});
  batch.layout = nn::MakeSequenceLayout({tokens}, {0}, tokens, at::kCPU);

  std::vector<double> forward, backward, optimizer, whole, processor;
  for (int64_t step = 1; step <= steps + 1; ++step) {
    const Clock::time_point start = Clock::now();
    const double processor_start = ProcessorSeconds();
    local.BeginStep();
    at::Tensor loss = model::ForwardPieces(pieces, {}, batch, {.layout = &batch.layout}) / batch.weights.sum();
    const Clock::time_point forward_end = Clock::now();
    loss.backward();
    const Clock::time_point backward_end = Clock::now();
    at::Tensor squares = at::zeros({}, at::kDouble);
    for (const auto& [handle, state] : moments) squares += ops::SumSquares(handle->main_grad());
    const double norm = std::sqrt(squares.item<double>());
    for (const auto& [handle, state] : moments) {
      const at::Tensor weight = handle->Acquire();
      ops::AdamW(weight, state.first, state.second, handle->main_grad(), std::nullopt,
                 at::scalar_tensor(step, at::kFloat), at::scalar_tensor(std::min(1.0, 1.0 / norm), at::kFloat),
                 at::scalar_tensor(0, at::kFloat), 1e-4, 0.9, 0.95, 1e-8, weight.dim() > 1 ? 0.1 : 0.0);
      handle->Release();
    }
    const Clock::time_point end = Clock::now();
    std::fprintf(stderr, "step %ld: loss %.4f, %.3f s\n", static_cast<long>(step), loss.item<double>(), Seconds(start));
    if (step == 1) continue;  // first touches of memory
    processor.push_back(ProcessorSeconds() - processor_start);
    forward.push_back(std::chrono::duration<double>(forward_end - start).count());
    backward.push_back(std::chrono::duration<double>(backward_end - forward_end).count());
    optimizer.push_back(std::chrono::duration<double>(end - backward_end).count());
    whole.push_back(std::chrono::duration<double>(end - start).count());
  }
  std::printf(
      "{\"forward_s\": %.4f, \"backward_s\": %.4f, \"optimizer_s\": %.4f, \"step_s\": %.4f, \"processor_s\": %.4f}\n",
      Median(forward), Median(backward), Median(optimizer), Median(whole), Median(processor));
  return 0;
}

}  // namespace
}  // namespace slipway::engine

int main(int argc, char** argv) { return slipway::engine::Main(argc, argv); }
