#include "engine/format/hf_model_check.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <optional>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "common/bfloat16.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/arch/param_spec.h"

namespace slipway::engine::format {
namespace {

constexpr size_t kMaxFaults = 20;
constexpr int64_t kPieceElements = int64_t{1} << 20;

// A tensor's elements [begin, begin + count) as float32.
absl::Status ReadFloats(const HfWeights& weights, const HfTensor& tensor, int64_t begin, int64_t count,
                        std::vector<float>* out) {
  const int64_t size = DTypeSize(tensor.stored.dtype);
  std::vector<std::byte> bytes(static_cast<size_t>(count * size));
  SLIPWAY_RETURN_IF_ERROR(weights.Read(tensor, begin * size, absl::MakeSpan(bytes)));
  out->resize(static_cast<size_t>(count));
  CastReport ignored;
  return CastElements(
      bytes, tensor.stored.dtype,
      absl::MakeSpan(reinterpret_cast<std::byte*>(out->data()), static_cast<size_t>(count) * sizeof(float)),
      DType::kFloat32, &ignored);
}

// The first element in which two tensors of one shape differ; nothing when they are equal.
absl::StatusOr<std::optional<int64_t>> FirstDifference(const HfWeights& weights, const HfTensor& a, const HfTensor& b) {
  const int64_t elements = a.stored.bytes / DTypeSize(a.stored.dtype);
  std::vector<float> left, right;
  for (int64_t begin = 0; begin < elements; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, elements - begin);
    SLIPWAY_RETURN_IF_ERROR(ReadFloats(weights, a, begin, count, &left));
    SLIPWAY_RETURN_IF_ERROR(ReadFloats(weights, b, begin, count, &right));
    if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) == 0) continue;
    for (int64_t i = 0; i < count; ++i) {
      if (std::memcmp(&left[i], &right[i], sizeof(float)) != 0) return std::optional<int64_t>(begin + i);
    }
  }
  return std::optional<int64_t>();
}

std::string MissingText(const arch::ParamSpec& spec) {
  // Only an untied output layer is asked for.
  return StrCat(spec.name, spec.name == arch::kHeadName ? " is missing (tie_word_embeddings is false)" : " is missing");
}

void CheckTensor(const HfTensor& tensor, const arch::ParamSpec& spec, std::vector<std::string>* faults) {
  if (tensor.stored.shape != spec.shape) {
    faults->push_back(StrCat(spec.name, " has shape [", absl::StrJoin(tensor.stored.shape, ", "),
                             "], config.json makes it [", absl::StrJoin(spec.shape, ", "), "]"));
  } else if (!IsFloatingPoint(tensor.stored.dtype)) {
    faults->push_back(
        StrCat(spec.name, " is stored as ", DTypeName(tensor.stored.dtype), "; expected a floating-point type"));
  }
}

absl::Status CheckTied(const HfWeights& weights, const HfTensor& tied, const std::string& target,
                       std::vector<std::string>* faults) {
  const HfTensor* embedding = weights.Find(target);
  if (embedding == nullptr || embedding->stored.shape != tied.stored.shape || !IsFloatingPoint(tied.stored.dtype) ||
      !IsFloatingPoint(embedding->stored.dtype)) {
    return absl::OkStatus();  // a fault of its own
  }
  SLIPWAY_ASSIGN_OR_RETURN(const std::optional<int64_t> difference, FirstDifference(weights, tied, *embedding));
  if (!difference.has_value()) return absl::OkStatus();
  faults->push_back(StrCat(tied.stored.name, " differs from ", target,
                           " although config.json says tie_word_embeddings = true (first in row ",
                           *difference / tied.stored.shape.back(), "): set it to false to keep both, or remove ",
                           tied.stored.name));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HfModelFindings> CheckHfModel(const HfWeights& weights, const arch::ModelArch& arch) {
  HfModelFindings findings;
  std::set<std::string> known;
  for (const arch::ParamSpec& spec : arch::BuildParamTable(arch)) {
    known.insert(spec.name);
    const HfTensor* tensor = weights.Find(spec.name);
    if (tensor != nullptr) {
      CheckTensor(*tensor, spec, &findings.faults);
      if (spec.tied_to.has_value())
        SLIPWAY_RETURN_IF_ERROR(CheckTied(weights, *tensor, *spec.tied_to, &findings.faults));
    } else if (!spec.tied_to.has_value()) {
      findings.faults.push_back(MissingText(spec));
    }
  }
  if (findings.faults.size() > kMaxFaults) {
    const size_t more = findings.faults.size() - kMaxFaults;
    findings.faults.resize(kMaxFaults);
    findings.faults.push_back(StrCat("and ", more, " more faults of this kind"));
  }
  std::vector<std::string> unused;
  for (const HfTensor& tensor : weights.tensors()) {
    // Old files carry the rotary frequencies, which config.json gives exactly.
    if (!known.contains(tensor.stored.name) && !absl::EndsWith(tensor.stored.name, "rotary_emb.inv_freq")) {
      unused.push_back(tensor.stored.name);
    }
  }
  if (!unused.empty()) {
    findings.notes.push_back(
        StrCat("the model has no use for ", unused.size(), " tensors of its weight files, e.g. ", unused.front()));
  }
  return findings;
}

}  // namespace slipway::engine::format
