#include "engine/optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "absl/strings/str_cat.h"

namespace slipway::engine::optim {
namespace {

// 1 at 0, 0 at 1.
double HalfCosine(double progress) { return 0.5 * (1.0 + std::cos(std::numbers::pi * progress)); }

double WsdCoefficient(const LrScheduleOptions& options, double iterations) {
  const double start = static_cast<double>(options.decay_iters - options.wsd_decay_iters);
  if (iterations <= start) return 1.0;
  const double progress = (iterations - start) / static_cast<double>(options.wsd_decay_iters);
  switch (options.wsd_style) {
    case WsdDecayStyle::kExponential:
      return 2.0 * std::pow(0.5, progress) - 1.0;
    case WsdDecayStyle::kLinear:
      return 1.0 - progress;
    case WsdDecayStyle::kCosine:
      return HalfCosine(progress);
    case WsdDecayStyle::kMinusSquareRoot:
      return 1.0 - std::sqrt(progress);
  }
  return 1.0;
}

bool IsRate(double value) { return std::isfinite(value) && value >= 0; }

}  // namespace

std::optional<LrDecayStyle> LrDecayStyleFromName(std::string_view name) {
  if (name == "constant") return LrDecayStyle::kConstant;
  if (name == "linear") return LrDecayStyle::kLinear;
  if (name == "cosine") return LrDecayStyle::kCosine;
  if (name == "inverse-square-root") return LrDecayStyle::kInverseSquareRoot;
  if (name == "WSD") return LrDecayStyle::kWarmupStableDecay;
  return std::nullopt;
}

std::optional<WsdDecayStyle> WsdDecayStyleFromName(std::string_view name) {
  if (name == "exponential") return WsdDecayStyle::kExponential;
  if (name == "linear") return WsdDecayStyle::kLinear;
  if (name == "cosine") return WsdDecayStyle::kCosine;
  if (name == "minus_sqrt") return WsdDecayStyle::kMinusSquareRoot;
  return std::nullopt;
}

absl::Status Validate(const LrScheduleOptions& options) {
  if (!IsRate(options.max_lr) || !IsRate(options.min_lr) || !IsRate(options.init_lr)) {
    return absl::InvalidArgumentError(absl::StrCat("learning rates max ", options.max_lr, ", min ", options.min_lr,
                                                   ", initial ", options.init_lr, " must be finite and not negative"));
  }
  if (options.min_lr > options.max_lr || options.init_lr > options.max_lr) {
    return absl::InvalidArgumentError(absl::StrCat("learning rates min ", options.min_lr, " and initial ",
                                                   options.init_lr, " must not be above max ", options.max_lr));
  }
  if (options.warmup_iters < 0 || options.decay_iters < 1 || options.warmup_iters >= options.decay_iters) {
    return absl::InvalidArgumentError(absl::StrCat("a warmup of ", options.warmup_iters,
                                                   " iterations must end before the decay does at iteration ",
                                                   options.decay_iters));
  }
  if (options.style == LrDecayStyle::kWarmupStableDecay &&
      (options.wsd_decay_iters < 1 || options.wsd_decay_iters > options.decay_iters)) {
    return absl::InvalidArgumentError(absl::StrCat("a WSD decay of ", options.wsd_decay_iters,
                                                   " iterations must be at least 1 and at most decay_iters ",
                                                   options.decay_iters));
  }
  return absl::OkStatus();
}

double LearningRate(const LrScheduleOptions& options, int64_t iterations_done) {
  const double n = static_cast<double>(iterations_done);
  const double warmup = static_cast<double>(options.warmup_iters);
  if (options.warmup_iters > 0 && iterations_done <= options.warmup_iters) {
    return options.init_lr + (options.max_lr - options.init_lr) * n / warmup;
  }
  if (options.style == LrDecayStyle::kConstant) return options.max_lr;
  if (iterations_done > options.decay_iters) return options.min_lr;
  if (options.style == LrDecayStyle::kInverseSquareRoot) {
    return std::max(options.min_lr, options.max_lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0)));
  }
  const double progress = (n - warmup) / (static_cast<double>(options.decay_iters) - warmup);
  double coefficient = 1.0 - progress;
  if (options.style == LrDecayStyle::kCosine) coefficient = HalfCosine(progress);
  if (options.style == LrDecayStyle::kWarmupStableDecay) coefficient = WsdCoefficient(options, n);
  return options.min_lr + coefficient * (options.max_lr - options.min_lr);
}

}  // namespace slipway::engine::optim
