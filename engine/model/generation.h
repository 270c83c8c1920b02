// Text generation, one row: the prompt in one pass, then a token at a time over cached keys and values. Each token is a
// pure function of the weights, the tokens before it and the options; the random numbers are counter-based.
//
//   GenerationOptions options{.max_new_tokens = 64, .stop_ids = arch.eos_token_ids};
//   std::vector<int64_t> reply = Generate(pieces, prompt_ids, options);
#ifndef SLIPWAY_ENGINE_MODEL_GENERATION_H_
#define SLIPWAY_ENGINE_MODEL_GENERATION_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/model/stage_piece.h"

namespace slipway::engine::model {

struct GenerationOptions {
  int64_t max_new_tokens = 0;
  double temperature = 0;  // 0: the most likely token (of equals the lowest id)
  double top_p = 1;        // sample among the fewest tokens whose probabilities reach this sum
  uint64_t seed = 0;
  std::vector<int64_t> stop_ids;             // ends the reply; the id that did is part of it
  std::function<bool(int64_t id)> on_token;  // called as tokens come; false ends the reply
};

// The tokens after `prompt` (not empty). `pieces` are a whole model on this rank. With several tensor-parallel ranks,
// all call it alike and get the same. Throws c10::Error on an empty prompt.
std::vector<int64_t> Generate(const StagePieces& pieces, const std::vector<int64_t>& prompt,
                              const GenerationOptions& options, at::Device device = at::kCPU);

// The id drawn from fp32 logits [vocabulary] with a random number in (0, 1).
int64_t SampleToken(const at::Tensor& logits, double temperature, double top_p, float uniform);

}  // namespace slipway::engine::model

#endif  // SLIPWAY_ENGINE_MODEL_GENERATION_H_
