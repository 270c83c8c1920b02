#include "engine/checkpoint/manifest_counters.h"

#include <array>
#include <string>
#include <utility>

namespace slipway::engine::checkpoint {
namespace {

// Step, samples and tokens have fields of their own.
constexpr std::array<std::pair<const char*, int64_t RunState::*>, 3> kCounters = {{
    {"skipped_steps", &RunState::skipped_steps},
    {"consecutive_skipped", &RunState::consecutive_skipped},
    {"optimizer_updates", &RunState::optimizer_updates},
}};
constexpr char kThreads[] = "threads";

}  // namespace

void StateToManifest(const RunState& state, format::Manifest& manifest) {
  manifest.step = state.step;
  manifest.consumed_samples = state.consumed_samples;
  manifest.consumed_tokens = state.consumed_tokens;
  for (const auto& [name, member] : kCounters) manifest.counters[name] = state.*member;
  manifest.counters[kThreads] = state.threads;
}

absl::StatusOr<RunState> StateFromManifest(const format::Manifest& manifest) {
  RunState state;
  state.step = manifest.step;
  state.consumed_samples = manifest.consumed_samples;
  state.consumed_tokens = manifest.consumed_tokens;
  for (const auto& [name, member] : kCounters) {
    const auto found = manifest.counters.find(name);
    if (found == manifest.counters.end())
      return absl::DataLossError(std::string("the manifest has no counter ") + name);
    state.*member = found->second;
  }
  if (const auto threads = manifest.counters.find(kThreads); threads != manifest.counters.end()) {
    state.threads = static_cast<int32_t>(threads->second);
  }
  return state;
}

}  // namespace slipway::engine::checkpoint
