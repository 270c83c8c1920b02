// Whether a directory of weights is the model that its config.json describes. Thread-safe: no state.
#ifndef SLIPWAY_ENGINE_FORMAT_HF_MODEL_CHECK_H_
#define SLIPWAY_ENGINE_FORMAT_HF_MODEL_CHECK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/arch/model_arch.h"
#include "engine/format/hf_weights.h"

namespace slipway::engine::format {

struct HfModelFindings {
  std::vector<std::string> faults;  // the model cannot be used; empty when it can
  std::vector<std::string> notes;   // worth knowing, e.g. tensors that the model has no use for
};

// Every parameter must be there with its shape and a floating-point type. Where the output layer is tied, an
// lm_head.weight that the directory has all the same must equal the embedding (its bytes are read and compared): models
// whose two matrices were trained apart under a wrong flag would silently lose one. An error only when reading fails.
// REQUIRES: arch::Validate(arch) is empty.
absl::StatusOr<HfModelFindings> CheckHfModel(const HfWeights& weights, const arch::ModelArch& arch);

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_HF_MODEL_CHECK_H_
