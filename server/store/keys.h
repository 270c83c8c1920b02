// Keys of the store: a letter for the kind, then what it is found by. Numbers are big-endian so that they sort.
// Internal to server/store. The formats are on disk: never change what a letter means.
#ifndef SLIPWAY_SERVER_STORE_KEYS_H_
#define SLIPWAY_SERVER_STORE_KEYS_H_

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace slipway::server::store {

inline std::string BigEndian(int64_t value) {
  std::string bytes(8, '\0');
  auto bits = static_cast<uint64_t>(value);
  for (auto it = bytes.rbegin(); it != bytes.rend(); ++it, bits >>= 8) *it = static_cast<char>(bits & 0xff);
  return bytes;
}

inline int64_t FromBigEndian(absl::string_view bytes) {
  uint64_t bits = 0;
  for (const char byte : bytes.substr(0, 8)) bits = (bits << 8) | static_cast<unsigned char>(byte);
  return static_cast<int64_t>(bits);
}

inline constexpr absl::string_view kHeaderKey = "h";
inline std::string JobKey(absl::string_view id) { return absl::StrCat("j/", id); }
inline std::string RequestKey(absl::string_view id) { return absl::StrCat("r/", id); }
inline std::string NodeKey(absl::string_view id) { return absl::StrCat("n/", id); }
inline std::string EventKey(int64_t revision) { return absl::StrCat("e/", BigEndian(revision)); }
// Empty values: which events are of a job.
inline std::string JobEventPrefix(absl::string_view id) { return absl::StrCat("v/", id, "/"); }
inline std::string JobEventKey(absl::string_view id, int64_t revision) {
  return absl::StrCat(JobEventPrefix(id), BigEndian(revision));
}
// Records that could not be read, under their old key.
inline std::string QuarantineKey(absl::string_view key) { return absl::StrCat("q/", key); }

}  // namespace slipway::server::store

#endif  // SLIPWAY_SERVER_STORE_KEYS_H_
