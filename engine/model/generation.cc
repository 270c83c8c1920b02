#include "engine/model/generation.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "common/philox.h"
#include "engine/nn/key_value_cache.h"

namespace slipway::engine::model {
namespace {

// The logits that follow `tokens`, which stand at positions first, first + 1, … of the row in the cache.
at::Tensor NextLogits(const StagePieces& pieces, const std::vector<int64_t>& tokens, int64_t first,
                      nn::KeyValueCache& cache, at::Device device) {
  const int64_t count = static_cast<int64_t>(tokens.size());
  MicroBatch batch;
  batch.tokens = at::tensor(at::ArrayRef<int64_t>(tokens), at::kLong).to(device);
  batch.layout = nn::MakeSequenceLayout({count}, {0}, count, device);
  batch.layout.positions.add_(first);
  const nn::ForwardContext context{.layout = &batch.layout, .training = false, .cache = &cache};
  at::Tensor x;
  for (const auto& piece : pieces) {
    if (piece->piece().kind == arch::Piece::Kind::kHead) x = x.narrow(0, count - 1, 1);
    x = piece->Forward(x, batch, context);
  }
  return x.squeeze(0);
}

}  // namespace

int64_t SampleToken(const at::Tensor& logits, double temperature, double top_p, float uniform) {
  if (temperature == 0) return logits.argmax().item<int64_t>();
  const at::Tensor probabilities = at::softmax(logits.to(at::kCPU, at::kDouble) / temperature, 0);
  // A stable sort keeps the order of equals the same everywhere.
  const auto [sorted, ids] = at::sort(probabilities, /*stable=*/true, /*dim=*/0, /*descending=*/true);
  const double* p = sorted.const_data_ptr<double>();
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const int64_t vocabulary = sorted.size(0);
  double nucleus = 0;
  int64_t kept = 0;
  while (kept < vocabulary && (kept == 0 || nucleus < top_p)) nucleus += p[kept++];
  double left = uniform * nucleus;
  for (int64_t i = 0; i < kept; ++i) {
    left -= p[i];
    if (left < 0) return id[i];
  }
  return id[kept - 1];
}

std::vector<int64_t> Generate(const StagePieces& pieces, const std::vector<int64_t>& prompt,
                              const GenerationOptions& options, at::Device device) {
  TORCH_CHECK(!prompt.empty(), "generation needs a prompt of at least one token");
  const at::NoGradGuard no_grad;
  nn::KeyValueCache cache(static_cast<int64_t>(prompt.size()) + options.max_new_tokens);
  const PhiloxKey key = GenerationKey(options.seed);
  std::vector<int64_t> reply;
  std::vector<int64_t> tokens = prompt;
  int64_t position = 0;
  while (static_cast<int64_t>(reply.size()) < options.max_new_tokens) {
    const at::Tensor logits = NextLogits(pieces, tokens, position, cache, device);
    position += static_cast<int64_t>(tokens.size());
    const float uniform = PhiloxUniform(Philox(key, GenerationCounter(static_cast<uint64_t>(position))).v[0]);
    const int64_t id = SampleToken(logits, options.temperature, options.top_p, uniform);
    reply.push_back(id);
    tokens = {id};
    const bool wanted = !options.on_token || options.on_token(id);
    if (!wanted || std::find(options.stop_ids.begin(), options.stop_ids.end(), id) != options.stop_ids.end()) break;
  }
  return reply;
}

}  // namespace slipway::engine::model
