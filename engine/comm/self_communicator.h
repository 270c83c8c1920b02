// A group of one rank: every operation is a copy at most. Thread-safe.
#ifndef SLIPWAY_ENGINE_COMM_SELF_COMMUNICATOR_H_
#define SLIPWAY_ENGINE_COMM_SELF_COMMUNICATOR_H_

#include <string>

#include "engine/comm/communicator.h"

namespace slipway::engine::comm {

// Send keeps nothing and Recv has nothing to receive: both throw CommError.
CommPtr MakeSelfCommunicator(const std::string& name);

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_SELF_COMMUNICATOR_H_
