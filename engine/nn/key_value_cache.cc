#include "engine/nn/key_value_cache.h"

#include <ATen/ATen.h>

namespace slipway::engine::nn {

at::Tensor KeyValueCache::Attend(const std::string& layer, const at::Tensor& qkv, HeadCounts counts) {
  const at::NoGradGuard no_grad;
  const int64_t count = qkv.size(0), all_heads = counts.heads + 2 * counts.groups, size = qkv.size(1) / all_heads;
  const at::Tensor heads = qkv.view({count, all_heads, size}).transpose(0, 1);  // [heads, n, D]
  Rows& rows = layers_[layer];
  if (!rows.keys.defined()) {
    rows.keys = at::empty({counts.groups, capacity_, size}, qkv.options());
    rows.values = at::empty_like(rows.keys);
  }
  TORCH_CHECK(rows.length + count <= capacity_, "a row of ", rows.length + count, " tokens in a cache for ", capacity_);
  rows.keys.narrow(1, rows.length, count).copy_(heads.narrow(0, counts.heads, counts.groups));
  rows.values.narrow(1, rows.length, count).copy_(heads.narrow(0, counts.heads + counts.groups, counts.groups));
  rows.length += count;

  // Query i stands at position length − count + i. A single query sees everything; a first chunk is plainly causal.
  std::optional<at::Tensor> mask;
  const bool first = rows.length == count;
  if (!first && count > 1) {
    mask = at::ones({count, rows.length}, qkv.options().dtype(at::kBool)).tril(rows.length - count);
  }
  const at::Tensor out = at::scaled_dot_product_attention(
      heads.narrow(0, 0, counts.heads).unsqueeze(0), rows.keys.narrow(1, 0, rows.length).unsqueeze(0),
      rows.values.narrow(1, 0, rows.length).unsqueeze(0), mask, /*dropout_p=*/0.0, /*is_causal=*/first,
      /*scale=*/std::nullopt, /*enable_gqa=*/true);
  return out.squeeze(0).transpose(0, 1).reshape({count, counts.heads * size});
}

}  // namespace slipway::engine::nn
