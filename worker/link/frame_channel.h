// Protobuf messages over a non-blocking stream socket. Owns the socket. Not thread-safe: one thread polls and uses it.
#ifndef SLIPWAY_WORKER_LINK_FRAME_CHANNEL_H_
#define SLIPWAY_WORKER_LINK_FRAME_CHANNEL_H_

#include <google/protobuf/message_lite.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/unique_fd.h"
#include "worker/link/frame.h"

namespace slipway::worker::link {

class FrameChannel {
 public:
  // `socket` must be connected and non-blocking.
  explicit FrameChannel(UniqueFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }
  // Bytes wait for the socket: poll for writing and call Flush.
  bool wants_write() const { return sent_ < outgoing_.size(); }
  size_t unsent_bytes() const { return outgoing_.size() - sent_; }

  // Puts the message behind what waits and sends what the socket takes. An error means that the connection is gone,
  // or (ResourceExhausted) that this message is too large; then nothing of it was sent.
  absl::Status Send(const google::protobuf::MessageLite& message);
  absl::Status Flush();

  // Appends all frames that have arrived; returns at once when there are none. Unavailable when the peer is gone;
  // frames that came before are still delivered.
  absl::Status Receive(std::vector<std::string>& frames);

 private:
  UniqueFd socket_;
  FrameDecoder decoder_;
  std::string outgoing_;
  size_t sent_ = 0;
};

}  // namespace slipway::worker::link

#endif  // SLIPWAY_WORKER_LINK_FRAME_CHANNEL_H_
