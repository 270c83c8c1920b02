// Keys and values of the tokens that a generation has seen, so that each new token costs one position. One row; every
// rank holds its own heads. Not differentiable. Thread-safety: one thread.
#ifndef SLIPWAY_ENGINE_NN_KEY_VALUE_CACHE_H_
#define SLIPWAY_ENGINE_NN_KEY_VALUE_CACHE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "engine/nn/functions.h"

namespace slipway::engine::nn {

class KeyValueCache {
 public:
  // Room for this many tokens; memory is taken as layers first use it.
  explicit KeyValueCache(int64_t capacity) : capacity_(capacity) {}

  // Appends the keys and values of qkv [n, (heads + 2 · groups) · head_dim] (positions already applied) to those of
  // `layer`, and returns the causal attention of its n queries over all of them, [n, heads · head_dim].
  // Throws c10::Error when the capacity is exceeded.
  at::Tensor Attend(const std::string& layer, const at::Tensor& qkv, HeadCounts counts);

 private:
  struct Rows {
    at::Tensor keys, values;  // [groups, capacity, head_dim]
    int64_t length = 0;
  };
  int64_t capacity_;
  std::map<std::string, Rows> layers_;
};

}  // namespace slipway::engine::nn

#endif  // SLIPWAY_ENGINE_NN_KEY_VALUE_CACHE_H_
