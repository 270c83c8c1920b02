// A model for the commands: from a Hugging Face directory or from a checkpoint, whole on this process.
#ifndef SLIPWAY_WORKER_HOST_LOADED_MODEL_H_
#define SLIPWAY_WORKER_HOST_LOADED_MODEL_H_

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/file_system.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/model_instance.h"
#include "worker/host/model_commands.h"

namespace slipway::worker::host {

struct LoadedModel {
  engine::train::ModelInstance instance;
  at::Device device;
  std::string tokenizer_dir;       // empty: none is known
  std::string chat_template_path;  // replaces the tokenizer's own; empty: it does not
};

// Sets the process's threads, opens the device and loads the weights. Errors name the file that is at fault.
absl::StatusOr<LoadedModel> LoadModel(FileSystem& files, const ComputeOptions& options);

// FailedPrecondition when no tokenizer is known.
absl::StatusOr<std::shared_ptr<const engine::tokenizer::Tokenizer>> LoadTokenizer(const LoadedModel& model);

// Token ids as the model takes them. InvalidArgument, with both numbers, for an id that the embedding has no row for,
// and for more tokens than the model has positions.
absl::StatusOr<std::vector<int64_t>> ModelIds(const std::vector<int32_t>& ids, const engine::arch::ModelArch& arch);

}  // namespace slipway::worker::host

#endif  // SLIPWAY_WORKER_HOST_LOADED_MODEL_H_
