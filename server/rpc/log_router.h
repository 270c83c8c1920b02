// Chunks of logs that agents send, on their way to the stream that asked for them. Thread-safe.
#ifndef SLIPWAY_SERVER_RPC_LOG_ROUTER_H_
#define SLIPWAY_SERVER_RPC_LOG_ROUTER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "slipway/v1/agent_service.pb.h"

namespace slipway::server::rpc {

class LogRouter {
 public:
  // Called for each chunk of a read, the last with `end`; must not block.
  using Callback = std::function<void(const v1::LogChunk&)>;

  // Returns the id of a new read at that node.
  int64_t Open(const std::string& node_id, Callback callback);
  void Close(int64_t read_id);
  void Deliver(const v1::LogChunk& chunk);
  // Ends every read at a node whose agent has gone.
  void NodeGone(const std::string& node_id);

 private:
  struct Read {
    std::string node_id;
    Callback callback;
  };
  absl::Mutex mutex_;
  int64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int64_t, Read> reads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_LOG_ROUTER_H_
