// One whole decoder layer in bf16 with fp32 main gradients on the GPU, against the CPU reference in fp32 on the same
// (bf16-rounded) weights and inputs: output, gradient of the input, every main gradient, and the AdamW step.
#include <gtest/gtest.h>

#include "engine/arch/presets.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/support/one_layer.h"

namespace slipway::testing {
namespace {

double RelativeError(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor a = got.cpu().to(at::kDouble), b = want.cpu().to(at::kDouble);
  return (a - b).norm().item<double>() / std::max(b.norm().item<double>(), 1e-30);
}

engine::arch::ModelArch SmallArch(const std::string& preset) {
  engine::arch::ModelArch arch = engine::arch::FindPreset(preset).value();
  arch.num_layers = 1;
  arch.hidden_size = 256;
  arch.num_attention_heads = 8;
  arch.num_query_groups = 2;
  arch.kv_channels = 64;
  arch.ffn_hidden_size = 704;
  if (arch.moe.has_value()) {
    // Every token uses every expert: a choice between two that are near would not be the same in bf16.
    arch.moe->num_experts = 4;
    arch.moe->topk = 4;
    arch.moe->ffn_hidden_size = 96;
  }
  return arch;
}

class LayerGpuTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LayerGpuTest, EqualsTheReference) {
  const engine::arch::ModelArch arch = SmallArch(GetParam());
  OneLayer gpu(arch, at::kBFloat16, at::Device(at::kCUDA, 0)), cpu(arch, at::kFloat, at::kCPU);
  for (size_t b = 0; b < gpu.store().buckets().size(); ++b) {
    cpu.store().buckets()[b].weights.copy_(gpu.store().buckets()[b].weights.cpu());
  }
  cpu.store().AdoptWeights();
  at::manual_seed(3);
  const at::Tensor x = at::randn({4 * 64, 256}).to(at::kBFloat16), dout = at::randn({4 * 64, 256}).to(at::kBFloat16);
  const auto batch_gpu = gpu.Batch(4, 64), batch_cpu = cpu.Batch(4, 64);
  const auto got = gpu.ForwardBackward(x.cuda(), dout.cuda(), batch_gpu);
  const auto want = cpu.ForwardBackward(x.to(at::kFloat), dout.to(at::kFloat), batch_cpu);
  EXPECT_LE(RelativeError(got.out, want.out), 1e-2);
  EXPECT_LE(RelativeError(got.dx, want.dx), 1e-2);
  for (const auto& share : gpu.store().shares()) {
    const auto slice = [&](engine::parallel::FlatStore& store) {
      return store.buckets()[share.bucket].main_grads.narrow(0, share.offset, share.elements);
    };
    EXPECT_EQ(slice(gpu.store()).scalar_type(), at::kFloat);
    EXPECT_LE(RelativeError(slice(gpu.store()), slice(cpu.store())), 1.5e-2) << share.spec->name;
  }
  // The same gradients on both sides, so that only the optimizer is compared.
  for (size_t b = 0; b < gpu.store().buckets().size(); ++b) {
    cpu.store().buckets()[b].main_grads.copy_(gpu.store().buckets()[b].main_grads.cpu());
    cpu.store().buckets()[b].master.copy_(gpu.store().buckets()[b].master.cpu());
  }
  const auto gpu_step = gpu.Step(1e-3), cpu_step = cpu.Step(1e-3);
  EXPECT_NEAR(gpu_step.grad_norm.item<float>() / cpu_step.grad_norm.item<float>(), 1.0, 1e-5);
  for (size_t b = 0; b < gpu.store().buckets().size(); ++b) {
    EXPECT_LE(RelativeError(gpu.store().buckets()[b].master, cpu.store().buckets()[b].master), 1e-6);
    EXPECT_LE(RelativeError(gpu.store().buckets()[b].weights, cpu.store().buckets()[b].master), 4e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, LayerGpuTest,
                         ::testing::Values("tiny_llama", "tiny_qwen2", "tiny_qwen3", "tiny_qwen3_moe"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace slipway::testing
