// Where the server's parts count what they do. Implementations are thread-safe and never block.
#ifndef SLIPWAY_SERVER_CORE_TELEMETRY_H_
#define SLIPWAY_SERVER_CORE_TELEMETRY_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "slipway/v1/job.pb.h"

namespace slipway::server::core {

class Telemetry {
 public:
  virtual ~Telemetry() = default;
  virtual void StoreWrite(absl::Duration duration, bool ok) = 0;
  virtual void RpcHandled(const std::string& method, const std::string& code) = 0;
  virtual void Restart(v1::CauseClass cause) = 0;
  virtual void QueueWait(absl::Duration duration) = 0;
  virtual void StreamDropped(const std::string& stream, int64_t count) = 0;
};

// Counts nothing.
class NoTelemetry final : public Telemetry {
 public:
  void StoreWrite(absl::Duration, bool) override {}
  void RpcHandled(const std::string&, const std::string&) override {}
  void Restart(v1::CauseClass) override {}
  void QueueWait(absl::Duration) override {}
  void StreamDropped(const std::string&, int64_t) override {}
};

}  // namespace slipway::server::core

#endif  // SLIPWAY_SERVER_CORE_TELEMETRY_H_
