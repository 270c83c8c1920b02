// The coordinator's one function: an event happens at a time, the state changes, effects follow. Pure apart from the
// state that it is given: no I/O, no clock, no threads, no randomness.
//
//   core::Effects effects = core::Step(state, core::PauseJob{.id = "job-1"}, now);
//   // store effects.jobs, .events and .nodes in one batch; then reply with effects.status and publish DesiredFor(node)
//   // for each node of effects.publish.
//
// Rules (docs/architecture.md has the table of states): terminal is final; a new attempt starts only after every
// process of the last one is known to be gone or its node's lease has run out; the first primary cause of an attempt is
// kept.
#ifndef SLIPWAY_SERVER_CORE_STEP_H_
#define SLIPWAY_SERVER_CORE_STEP_H_

#include "server/core/event.h"
#include "server/core/state.h"

namespace slipway::server::core {

Effects Step(ClusterState& state, const Event& event, const Now& now);

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_STEP_H_
