// Names that the server makes. Thread-safe: pure functions.
#ifndef SLIPWAY_SERVER_CORE_JOB_ID_H_
#define SLIPWAY_SERVER_CORE_JOB_ID_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"

namespace slipway::server::core {

// "job-" + 9 letters of time in milliseconds + 6 random ones, in Crockford's base 32: sorts by time of creation.
std::string MakeJobId(absl::Time time, uint64_t random);

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_JOB_ID_H_
