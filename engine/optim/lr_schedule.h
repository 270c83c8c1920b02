// The learning rate as a function of the iterations done, with Megatron-LM's styles (megatron/core/
// optimizer_param_scheduler.py) and the iteration as the unit. Iterations count when they are attempted, also those
// that were skipped for a non-finite gradient (Megatron-LM counts successful ones only). Step k, from 1, trains at
// LearningRate(options, k - 1): with a warmup from 0 the first step does not move the weights.
// Thread-safe: pure functions; no torch.
#ifndef SLIPWAY_ENGINE_OPTIM_LR_SCHEDULE_H_
#define SLIPWAY_ENGINE_OPTIM_LR_SCHEDULE_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace slipway::engine::optim {

enum class LrDecayStyle : uint8_t { kConstant, kLinear, kCosine, kInverseSquareRoot, kWarmupStableDecay };
enum class WsdDecayStyle : uint8_t { kExponential, kLinear, kCosine, kMinusSquareRoot };

// "constant", "linear", "cosine", "inverse-square-root", "WSD".
std::optional<LrDecayStyle> LrDecayStyleFromName(std::string_view name);
// "exponential", "linear", "cosine", "minus_sqrt".
std::optional<WsdDecayStyle> WsdDecayStyleFromName(std::string_view name);

struct LrScheduleOptions {
  LrDecayStyle style = LrDecayStyle::kLinear;
  double max_lr = 0;
  double min_lr = 0;
  double init_lr = 0;  // where the warmup starts
  int64_t warmup_iters = 0;
  int64_t decay_iters = 0;      // the iteration at which min_lr is reached
  int64_t wsd_decay_iters = 0;  // kWarmupStableDecay: length of the decay at the end
  WsdDecayStyle wsd_style = WsdDecayStyle::kExponential;
};

// InvalidArgument with the numbers: rates that are negative, not finite or out of order, a warmup that does not end
// before the decay, a WSD decay that is longer than the run.
absl::Status Validate(const LrScheduleOptions& options);

// REQUIRES: Validate(options) is OK and iterations_done >= 0.
double LearningRate(const LrScheduleOptions& options, int64_t iterations_done);

}  // namespace slipway::engine::optim

#endif  // SLIPWAY_ENGINE_OPTIM_LR_SCHEDULE_H_
