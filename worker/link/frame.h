// How messages are cut out of a byte stream: 4 bytes little-endian length, then that many bytes. Pure: no I/O. Not
// thread-safe.
#ifndef SLIPWAY_WORKER_LINK_FRAME_H_
#define SLIPWAY_WORKER_LINK_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace slipway::worker::link {

// A longer frame is refused on both sides: nobody can make the other one allocate without limit.
inline constexpr size_t kMaxFrameBytes = size_t{16} << 20;

// ResourceExhausted, and `out` untouched, when the payload is longer than kMaxFrameBytes.
absl::Status AppendFrame(std::string_view payload, std::string& out);

// Takes bytes in any pieces and gives back whole frames. After an error the stream is useless: there is no way to find
// the next frame.
class FrameDecoder {
 public:
  void Append(std::string_view bytes) { buffer_.append(bytes); }
  // True and the payload in `frame`; false when more bytes are needed; InvalidArgument for a length above the limit.
  absl::StatusOr<bool> Next(std::string& frame);
  // Bytes that have not become a frame yet.
  size_t pending_bytes() const { return buffer_.size() - start_; }

 private:
  std::string buffer_;
  size_t start_ = 0;  // of the next frame in buffer_
};

}  // namespace slipway::worker::link

#endif  // SLIPWAY_WORKER_LINK_FRAME_H_
