#include "worker/host/loaded_model.h"

#include <thread>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/arch/hf_config.h"
#include "engine/checkpoint/checkpoint_io.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/format/hf_model_check.h"
#include "engine/train/guarded_call.h"
#include "worker/host/device_setup.h"

namespace slipway::worker::host {
namespace {

namespace checkpoint = engine::checkpoint;
namespace train = engine::train;

absl::StatusOr<LoadedModel> LoadFromCheckpoint(FileSystem& files, const std::string& directory, at::ScalarType dtype,
                                               at::Device device) {
  SLIPWAY_ASSIGN_OR_RETURN(const checkpoint::StoredModel stored, checkpoint::OpenStoredModel(files, directory));
  SLIPWAY_ASSIGN_OR_RETURN(train::ModelInstance instance,
                           train::ModelInstance::CreateSingle(stored.arch, dtype, device));
  SLIPWAY_RETURN_IF_ERROR(checkpoint::LoadCheckpointWeights(files, directory, instance.store()));
  return LoadedModel{std::move(instance), device, stored.spec.tokenizer().path(),
                     stored.spec.tokenizer().chat_template_path()};
}

absl::StatusOr<LoadedModel> LoadFromHf(FileSystem& files, const std::string& directory, at::ScalarType dtype,
                                       at::Device device) {
  SLIPWAY_ASSIGN_OR_RETURN(const engine::arch::ModelArch arch,
                           engine::arch::ReadHfConfig(JoinPath(directory, "config.json")));
  SLIPWAY_ASSIGN_OR_RETURN(const engine::format::HfWeights weights, engine::format::HfWeights::Open(files, directory));
  SLIPWAY_ASSIGN_OR_RETURN(const engine::format::HfModelFindings findings, engine::format::CheckHfModel(weights, arch));
  if (!findings.faults.empty()) return absl::InvalidArgumentError(StrCat(directory, ": ", findings.faults.front()));
  SLIPWAY_ASSIGN_OR_RETURN(train::ModelInstance instance, train::ModelInstance::CreateSingle(arch, dtype, device));
  SLIPWAY_RETURN_IF_ERROR(checkpoint::LoadHfWeights(files, directory, instance.store()));
  return LoadedModel{std::move(instance), device, directory, ""};
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(FileSystem& files, const ComputeOptions& options) {
  SetThreads(options.threads > 0 ? options.threads : static_cast<int>(std::thread::hardware_concurrency()));
  SLIPWAY_ASSIGN_OR_RETURN(const at::Device device, OpenDevice(options.device));
  const bool bfloat16 = options.dtype.empty() ? device.is_cuda() : options.dtype == "bfloat16";
  const at::ScalarType dtype = bfloat16 ? at::kBFloat16 : at::kFloat;
  SLIPWAY_ASSIGN_OR_RETURN(const bool is_checkpoint,
                           files.Exists(JoinPath(options.model, engine::format::kManifestFile)));
  return train::Guarded("loading the model", [&]() -> absl::StatusOr<LoadedModel> {
    return is_checkpoint ? LoadFromCheckpoint(files, options.model, dtype, device)
                         : LoadFromHf(files, options.model, dtype, device);
  });
}

absl::StatusOr<std::shared_ptr<const engine::tokenizer::Tokenizer>> LoadTokenizer(const LoadedModel& model) {
  if (model.tokenizer_dir.empty()) {
    return absl::FailedPreconditionError("the run that wrote this checkpoint had no tokenizer (tokenizer.path)");
  }
  return engine::tokenizer::Tokenizer::Load(model.tokenizer_dir, model.chat_template_path);
}

absl::StatusOr<std::vector<int64_t>> ModelIds(const std::vector<int32_t>& ids, const engine::arch::ModelArch& arch) {
  for (const int32_t id : ids) {
    if (id >= arch.vocab_size) {
      return absl::InvalidArgumentError(StrCat("the tokenizer gives token id ", id, ", but the model's embedding has ",
                                               arch.vocab_size, " rows: they do not belong together"));
    }
  }
  if (static_cast<int64_t>(ids.size()) > arch.max_position_embeddings) {
    return absl::InvalidArgumentError(
        StrCat("the text has ", ids.size(), " tokens, the model has ", arch.max_position_embeddings, " positions"));
  }
  return std::vector<int64_t>(ids.begin(), ids.end());
}

}  // namespace slipway::worker::host
