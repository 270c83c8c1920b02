// Element types of stored and computed tensors, without torch. The names are those of safetensors and of Hugging Face's
// `torch_dtype`. Thread-safe: pure functions.
#ifndef SLIPWAY_COMMON_DTYPE_H_
#define SLIPWAY_COMMON_DTYPE_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace slipway {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64, kInt64, kInt32, kInt16, kInt8, kUint8, kBool };

// Bytes of one element.
int64_t DTypeSize(DType dtype);
// "F32", "BF16", …: the spelling inside a safetensors header.
std::string_view SafetensorsName(DType dtype);
std::optional<DType> DTypeFromSafetensorsName(std::string_view name);
// "float32", "bfloat16", …: the spelling in config.json and in our specs.
std::string_view DTypeName(DType dtype);
std::optional<DType> DTypeFromName(std::string_view name);
bool IsFloatingPoint(DType dtype);

}  // namespace slipway

#endif  // SLIPWAY_COMMON_DTYPE_H_
