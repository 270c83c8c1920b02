// XXH3 with 128 bits: finds every accidental change at memory speed; it does not defend against an attacker. A checksum
// is written with its algorithm, "xxh3-128:" and 32 hexadecimal digits, so that another one can follow.
#ifndef SLIPWAY_COMMON_CHECKSUM_H_
#define SLIPWAY_COMMON_CHECKSUM_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/file_system.h"

struct XXH3_state_s;

namespace slipway {

// Streaming; not thread-safe.
class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept = default;
  Checksum& operator=(Checksum&&) noexcept = default;

  void Update(std::string_view data);
  // Of everything so far; more may follow.
  std::string Digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

std::string ChecksumOf(std::string_view data);
// Reads the file in pieces; it need not fit in memory.
absl::StatusOr<std::string> FileChecksum(FileSystem& file_system, const std::string& path);
// True for a text that ChecksumOf could have made.
bool IsChecksum(std::string_view text);

}  // namespace slipway

#endif  // SLIPWAY_COMMON_CHECKSUM_H_
