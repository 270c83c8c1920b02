// What a run is beside its tensors: counts that go on over attempts and are part of every checkpoint. (There is no
// state of random numbers: they are counter-based.)
#ifndef SLIPWAY_ENGINE_CHECKPOINT_RUN_STATE_H_
#define SLIPWAY_ENGINE_CHECKPOINT_RUN_STATE_H_

#include <cstdint>

namespace slipway::engine::checkpoint {

struct RunState {
  int64_t step = 0;  // attempted steps, also skipped ones
  int64_t consumed_samples = 0;
  int64_t consumed_tokens = 0;
  int64_t skipped_steps = 0;
  int64_t consecutive_skipped = 0;
  int64_t optimizer_updates = 0;  // steps that changed the weights
  int32_t threads = 0;            // CPU threads of a rank; another number changes the last bits

  friend bool operator==(const RunState&, const RunState&) = default;
};

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_RUN_STATE_H_
