// One decoder layer, forward + backward + AdamW, against the sum of its GEMMs' and its attention's own times on the
// same GPU.
//   layer_bench [tokens] [sequence length]        prints one line a model shape
#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "engine/arch/presets.h"
#include "tests/support/one_layer.h"

namespace {

using at::Tensor;
using slipway::engine::arch::ModelArch;

void Synchronize() { at::zeros({1}, at::kCUDA).cpu(); }

// Milliseconds of one call: the median of five groups of ten.
double Time(const std::function<void()>& call) {
  for (int i = 0; i < 5; ++i) call();
  std::vector<double> groups;
  for (int g = 0; g < 5; ++g) {
    Synchronize();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 10; ++i) call();
    Synchronize();
    groups.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count() / 10);
  }
  std::sort(groups.begin(), groups.end());
  return groups[2];
}

Tensor Bf16(at::IntArrayRef sizes) {
  return at::randn(sizes, at::TensorOptions().device(at::kCUDA).dtype(at::kBFloat16)) * 0.1;
}

// Forward, data gradient and fp32 weight gradient of one linear.
double GemmTime(int64_t tokens, int64_t in, int64_t out) {
  const Tensor x = Bf16({tokens, in}), w = Bf16({out, in}), dy = Bf16({tokens, out});
  Tensor grad = at::zeros({out, in}, x.options().dtype(at::kFloat));
  return Time([&] { at::mm(x, w.t()); }) + Time([&] { at::mm(dy, w); }) +
         Time([&] { at::mm_out(grad, dy.t(), x, at::kFloat); });
}

double AttentionTime(const ModelArch& arch, int64_t rows, int64_t length) {
  const auto heads = [&](int64_t n) { return Bf16({rows, length, n, arch.kv_channels}).transpose(1, 2); };
  const Tensor q = heads(arch.num_attention_heads), k = heads(arch.num_query_groups), v = heads(arch.num_query_groups);
  const auto forward = [&] {
    return at::_scaled_dot_product_cudnn_attention(q, k, v, std::nullopt, true, 0.0, true, false);
  };
  const auto result = forward();
  const Tensor out = std::get<0>(result), lse = std::get<1>(result),
               none = at::empty({}, out.options().dtype(at::kLong));
  return Time([&] { forward(); }) + Time([&] {
           at::_scaled_dot_product_cudnn_attention_backward(out, q, k, v, out, lse, none, none, Tensor(), Tensor(),
                                                            Tensor(), length, length, 0.0, true);
         });
}

void Run(const std::string& preset, int64_t tokens, int64_t length) {
  ModelArch arch = slipway::engine::arch::FindPreset(preset).value();
  arch.num_layers = 1;
  slipway::testing::OneLayer layer(arch, at::kBFloat16, at::Device(at::kCUDA, 0));
  const auto batch = layer.Batch(tokens / length, length);
  const Tensor x = Bf16({tokens, arch.hidden_size}), dout = Bf16({tokens, arch.hidden_size});
  const double forward_backward = Time([&] { layer.ForwardBackward(x, dout, batch); });
  const double optimizer = Time([&] { layer.Step(1e-4); });
  const double whole = Time([&] {
    layer.ForwardBackward(x, dout, batch);
    layer.Step(1e-4);
  });
  const double gemms = GemmTime(tokens, arch.hidden_size, arch.QueryRows() + 2 * arch.KeyRows()) +
                       GemmTime(tokens, arch.QueryRows(), arch.hidden_size) +
                       GemmTime(tokens, arch.hidden_size, 2 * arch.ffn_hidden_size) +
                       GemmTime(tokens, arch.ffn_hidden_size, arch.hidden_size);
  const double attention = AttentionTime(arch, tokens / length, length);
  std::printf(
      "%s: %lld tokens, rows of %lld: layer %.3f ms (forward + backward %.3f, AdamW %.3f); GEMMs %.3f + attention %.3f "
      "= %.3f ms; ratio %.3f\n",
      preset.c_str(), static_cast<long long>(tokens), static_cast<long long>(length), whole, forward_backward,
      optimizer, gemms, attention, gemms + attention, whole / (gemms + attention));
}

}  // namespace

int main(int argc, char** argv) {
  const char* directory = std::getenv("SLIPWAY_LIB_DIR");
  const std::string plugin = std::string(directory != nullptr ? directory : "lib") + "/libslipway_cuda.so";
  if (::dlopen(plugin.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "layer_bench: %s\n", ::dlerror());
    return 1;
  }
  const int64_t tokens = argc > 1 ? std::atoll(argv[1]) : 32768, length = argc > 2 ? std::atoll(argv[2]) : 4096;
  for (const char* preset : {"qwen2_5_0_5b", "qwen3_1_7b", "qwen3_4b", "llama3_1_8b"}) Run(preset, tokens, length);
}
