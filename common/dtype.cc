#include "common/dtype.h"

#include <array>

namespace slipway {
namespace {

struct DTypeInfo {
  DType dtype;
  int64_t size;
  std::string_view safetensors;
  std::string_view name;
  bool floating;
};

constexpr std::array<DTypeInfo, 10> kDTypes = {{
    {DType::kFloat32, 4, "F32", "float32", true},
    {DType::kBFloat16, 2, "BF16", "bfloat16", true},
    {DType::kFloat16, 2, "F16", "float16", true},
    {DType::kFloat64, 8, "F64", "float64", true},
    {DType::kInt64, 8, "I64", "int64", false},
    {DType::kInt32, 4, "I32", "int32", false},
    {DType::kInt16, 2, "I16", "int16", false},
    {DType::kInt8, 1, "I8", "int8", false},
    {DType::kUint8, 1, "U8", "uint8", false},
    {DType::kBool, 1, "BOOL", "bool", false},
}};

const DTypeInfo& Info(DType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t DTypeSize(DType dtype) { return Info(dtype).size; }
std::string_view SafetensorsName(DType dtype) { return Info(dtype).safetensors; }
std::string_view DTypeName(DType dtype) { return Info(dtype).name; }
bool IsFloatingPoint(DType dtype) { return Info(dtype).floating; }

std::optional<DType> DTypeFromSafetensorsName(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.safetensors == name) return info.dtype;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

}  // namespace slipway
