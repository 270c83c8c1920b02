// What the data-parallel ranks of a job share out among themselves (parallelism.data_parallel_sharding_strategy, under
// the names of Megatron-LM's --data-parallel-sharding-strategy). Each step includes those before it. Thread-safe.
#ifndef SLIPWAY_ENGINE_ARCH_SHARDING_H_
#define SLIPWAY_ENGINE_ARCH_SHARDING_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace slipway::engine::arch {

enum class Sharding : uint8_t {
  kNoShard,           // every rank holds everything
  kOptim,             // master weights and moments are cut (ZeRO-1)
  kOptimGrads,        // and main gradients (ZeRO-2)
  kOptimGradsParams,  // and compute weights (ZeRO-3, FSDP)
};
inline constexpr std::array<std::string_view, 4> kShardingNames = {"no_shard", "optim", "optim_grads",
                                                                   "optim_grads_params"};

constexpr std::string_view ShardingName(Sharding sharding) { return kShardingNames[static_cast<size_t>(sharding)]; }
constexpr std::optional<Sharding> ShardingFromName(std::string_view name) {
  for (size_t i = 0; i < kShardingNames.size(); ++i) {
    if (kShardingNames[i] == name) return static_cast<Sharding>(i);
  }
  return std::nullopt;
}

constexpr bool ShardsOptimizer(Sharding sharding) { return sharding >= Sharding::kOptim; }
constexpr bool ShardsGradients(Sharding sharding) { return sharding >= Sharding::kOptimGrads; }
constexpr bool ShardsParameters(Sharding sharding) { return sharding >= Sharding::kOptimGradsParams; }

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_SHARDING_H_
