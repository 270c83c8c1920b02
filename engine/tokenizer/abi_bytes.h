// Private to this folder: owned bytes and results from the C border as C++ values.
#ifndef SLIPWAY_ENGINE_TOKENIZER_ABI_BYTES_H_
#define SLIPWAY_ENGINE_TOKENIZER_ABI_BYTES_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "engine/tokenizer/tokenizer_abi.h"

namespace slipway::engine::tokenizer::internal {

inline const uint8_t* BytesOf(std::string_view text) { return reinterpret_cast<const uint8_t*>(text.data()); }

class AbiBytes {
 public:
  AbiBytes() = default;
  AbiBytes(const AbiBytes&) = delete;
  AbiBytes& operator=(const AbiBytes&) = delete;
  ~AbiBytes() { slipway_bytes_free(bytes_); }

  SlipwayBytes* out() { return &bytes_; }
  std::string ToString() const { return std::string(reinterpret_cast<const char*>(bytes_.data), bytes_.size); }

 private:
  SlipwayBytes bytes_{nullptr, 0};
};

inline absl::Status ToStatus(SlipwayTokenizerCode code, const AbiBytes& error) {
  if (code == kSlipwayOk) return absl::OkStatus();
  return absl::Status(code == kSlipwayInvalid ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal,
                      error.ToString());
}

}  // namespace slipway::engine::tokenizer::internal

#endif  // SLIPWAY_ENGINE_TOKENIZER_ABI_BYTES_H_
