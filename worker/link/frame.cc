#include "worker/link/frame.h"

#include "absl/strings/str_cat.h"

namespace slipway::worker::link {
namespace {

constexpr size_t kHeaderBytes = 4;

}  // namespace

absl::Status AppendFrame(std::string_view payload, std::string& out) {
  if (payload.size() > kMaxFrameBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a frame of ", payload.size(), " bytes is above the limit of ", kMaxFrameBytes));
  }
  const auto length = static_cast<uint32_t>(payload.size());
  for (size_t i = 0; i < kHeaderBytes; ++i) out.push_back(static_cast<char>((length >> (8 * i)) & 0xff));
  out.append(payload);
  return absl::OkStatus();
}

absl::StatusOr<bool> FrameDecoder::Next(std::string& frame) {
  if (pending_bytes() < kHeaderBytes) return false;
  uint32_t length = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    length |= static_cast<uint32_t>(static_cast<unsigned char>(buffer_[start_ + i])) << (8 * i);
  }
  if (length > kMaxFrameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a frame announces ", length, " bytes; the limit is ", kMaxFrameBytes));
  }
  if (pending_bytes() < kHeaderBytes + length) return false;
  frame.assign(buffer_, start_ + kHeaderBytes, length);
  start_ += kHeaderBytes + length;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  } else if (start_ > buffer_.size() / 2) {  // moves each byte at most twice
    buffer_.erase(0, start_);
    start_ = 0;
  }
  return true;
}

}  // namespace slipway::worker::link
