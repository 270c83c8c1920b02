#include "worker/link/frame_channel.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace slipway::worker::link {
namespace {

// One call of Receive takes at most this much, so that a busy peer cannot hold a thread that serves several.
constexpr size_t kReceiveBudgetBytes = size_t{32} << 20;

}  // namespace

absl::Status FrameChannel::Send(const google::protobuf::MessageLite& message) {
  std::string payload;
  if (!message.SerializeToString(&payload)) return absl::InternalError("a message could not be serialized");
  SLIPWAY_RETURN_IF_ERROR(AppendFrame(payload, outgoing_));
  return Flush();
}

absl::Status FrameChannel::Flush() {
  while (wants_write()) {
    const ssize_t n = ::send(socket_.get(), outgoing_.data() + sent_, unsent_bytes(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return absl::OkStatus();
      return absl::UnavailableError(absl::StrCat("sending to the peer: ", std::strerror(errno)));
    }
    sent_ += static_cast<size_t>(n);
  }
  outgoing_.clear();
  sent_ = 0;
  return absl::OkStatus();
}

absl::Status FrameChannel::Receive(std::vector<std::string>& frames) {
  std::array<char, 65536> chunk;
  absl::Status status;
  for (size_t taken = 0; taken < kReceiveBudgetBytes;) {
    const ssize_t n = ::recv(socket_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      status = absl::UnavailableError(n == 0 ? "the peer closed the connection"
                                             : absl::StrCat("receiving from the peer: ", std::strerror(errno)));
      break;
    }
    decoder_.Append(std::string_view(chunk.data(), static_cast<size_t>(n)));
    taken += static_cast<size_t>(n);
    std::string frame;
    while (true) {
      SLIPWAY_ASSIGN_OR_RETURN(const bool found, decoder_.Next(frame));
      if (!found) break;
      frames.push_back(std::move(frame));
    }
  }
  return status;
}

}  // namespace slipway::worker::link
