// Reads a small safetensors file (fp32 and int64) into tensors: a reader of its own, so that tests of the engine do not
// lean on the engine's. Throws on anything that it does not expect.
#ifndef SLIPWAY_TESTS_SUPPORT_SAFETENSORS_TENSORS_H_
#define SLIPWAY_TESTS_SUPPORT_SAFETENSORS_TENSORS_H_

#include <ATen/ATen.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace slipway::testing {

inline std::string ReadWholeFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline std::map<std::string, at::Tensor> ReadSafetensors(const std::string& path) {
  const std::string bytes = ReadWholeFile(path);
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string dtype = entry.at("dtype");
    if (dtype != "F32" && dtype != "I64") throw std::runtime_error(path + ": " + name + " is " + dtype);
    const at::Tensor tensor =
        at::empty(entry.at("shape").get<std::vector<int64_t>>(), dtype == "F32" ? at::kFloat : at::kLong);
    const size_t begin = entry.at("data_offsets")[0], end = entry.at("data_offsets")[1];
    if (end - begin != tensor.nbytes()) throw std::runtime_error(path + ": size of " + name);
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + 8 + header_size + begin, tensor.nbytes());
    tensors[name] = tensor;
  }
  return tensors;
}

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_SAFETENSORS_TENSORS_H_
