// Numbers at any address in files whose bytes are little-endian. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_FORMAT_LITTLE_ENDIAN_H_
#define SLIPWAY_ENGINE_FORMAT_LITTLE_ENDIAN_H_

#include <bit>
#include <cstring>
#include <string>

namespace slipway::engine::format {

static_assert(std::endian::native == std::endian::little, "the formats here are read and written without byte swaps");

template <typename T>
T LoadLittleEndian(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

template <typename T>
void StoreLittleEndian(T value, void* to) {
  std::memcpy(to, &value, sizeof(value));
}

template <typename T>
void AppendLittleEndian(T value, std::string* to) {
  to->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_LITTLE_ENDIAN_H_
