#include "worker/host/preflight_command.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "common/checksum.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/arch/model_arch.h"
#include "engine/arch/param_spec.h"
#include "engine/checkpoint/stored_model.h"
#include "engine/format/checkpoint_directory.h"
#include "engine/format/hf_weights.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/validate.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/datasets.h"
#include "worker/link/rank_files.h"

namespace slipway::worker::host {
namespace {

using slipway::v1::PreflightResult;
using slipway::v1::TrainingSpec;

void AddFault(const std::string& path, std::string message, PreflightResult* result) {
  slipway::v1::SpecFault* fault = result->add_faults();
  fault->set_path(path);
  fault->set_message(std::move(message));
}
void AddFault(const std::string& path, const absl::Status& status, PreflightResult* result) {
  if (!status.ok()) AddFault(path, std::string(status.message()), result);
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// The same bytes in both tensors?
absl::StatusOr<bool> Equal(const engine::format::HfWeights& weights, const engine::format::HfTensor& a,
                           const engine::format::HfTensor& b) {
  if (a.stored.dtype != b.stored.dtype || a.stored.shape != b.stored.shape) return false;
  constexpr int64_t kChunk = int64_t{4} << 20;
  std::vector<std::byte> left, right;
  for (int64_t at = 0; at < a.stored.bytes; at += kChunk) {
    const auto size = static_cast<size_t>(std::min(kChunk, a.stored.bytes - at));
    left.resize(size);
    right.resize(size);
    SLIPWAY_RETURN_IF_ERROR(weights.Read(a, at, absl::MakeSpan(left)));
    SLIPWAY_RETURN_IF_ERROR(weights.Read(b, at, absl::MakeSpan(right)));
    if (left != right) return false;
  }
  return true;
}

void CheckHfWeights(FileSystem& files, const TrainingSpec& spec, const engine::arch::ModelArch& arch, PreflightResult* result) {
  const std::string& directory = spec.model().hf_path();
  const auto weights = engine::format::HfWeights::Open(files, directory);
  if (!weights.ok()) return AddFault("model.hf_path", weights.status(), result);
  for (const engine::arch::ParamSpec& parameter : engine::arch::BuildParamTable(arch)) {
    const engine::format::HfTensor* tensor = weights->Find(parameter.name);
    if (parameter.tied_to.has_value()) {
      const engine::format::HfTensor* target = weights->Find(*parameter.tied_to);
      if (tensor == nullptr || target == nullptr) continue;
      const absl::StatusOr<bool> equal = Equal(*weights, *tensor, *target);
      if (!equal.ok()) AddFault("model.hf_path", equal.status(), result);
      else if (!*equal) {
        AddFault("model.hf_path", StrCat(directory, ": tie_word_embeddings is true, but ", parameter.name, " differs from ",
                                         *parameter.tied_to, "; untie them in config.json or drop the tensor"), result);
      }
      continue;
    }
    if (tensor == nullptr) {
      AddFault("model.hf_path", StrCat(directory, ": there is no tensor ", parameter.name, ", which the model needs"), result);
    } else if (tensor->stored.shape != parameter.shape) {
      AddFault("model.hf_path", StrCat(directory, ": ", parameter.name, " has shape ", ShapeText(tensor->stored.shape),
                                       ", config.json makes it ", ShapeText(parameter.shape)), result);
    }
  }
}

void CheckWeights(FileSystem& files, const TrainingSpec& spec, const engine::arch::ModelArch& arch, PreflightResult* result) {
  if (spec.model().has_pretrained_checkpoint()) {
    const auto stored = engine::checkpoint::OpenStoredModel(files, spec.model().pretrained_checkpoint());
    if (!stored.ok()) return AddFault("model.pretrained_checkpoint", stored.status(), result);
    for (const engine::arch::ParamSpec& parameter : engine::arch::BuildParamTable(arch)) {
      if (parameter.tied_to.has_value()) continue;
      AddFault("model.pretrained_checkpoint", engine::checkpoint::WeightsOf(*stored, parameter).status(), result);
    }
  } else if (spec.model().has_hf_path() && !spec.model().random_init()) {
    CheckHfWeights(files, spec, arch, result);
  }
}

// Ids that the data can hold must have a row in the embedding.
void CheckTokenizer(const TrainingSpec& spec, const engine::arch::ModelArch& arch, PreflightResult* result) {
  if (spec.dataset().kind() != "chat") return;
  const auto tokenizer = engine::tokenizer::Tokenizer::Load(spec.tokenizer().path(), spec.tokenizer().chat_template_path());
  if (!tokenizer.ok()) return AddFault("tokenizer.path", tokenizer.status(), result);
  if ((*tokenizer)->vocab_size() > arch.vocab_size) {
    AddFault("tokenizer.path", StrCat(spec.tokenizer().path(), ": has token id ", (*tokenizer)->vocab_size() - 1,
                                      ", the model's embedding has ", arch.vocab_size, " rows"), result);
  }
}

absl::Status CheckWritable(FileSystem& files, const std::string& directory) {
  SLIPWAY_RETURN_IF_ERROR(files.MakeDirectories(directory));
  const std::string probe = JoinPath(directory, ".slipway-preflight");
  SLIPWAY_RETURN_IF_ERROR(files.WriteFileAtomically(probe, "may be removed\n"));
  return files.RemoveFile(probe);
}

void CheckSpace(FileSystem& files, const std::string& directory, const TrainingSpec& spec, const engine::arch::ModelArch& arch,
                PreflightResult* result) {
  int64_t parameters = 0;
  for (const engine::arch::ParamSpec& parameter : engine::arch::BuildParamTable(arch)) {
    if (!parameter.tied_to.has_value()) parameters += parameter.NumElements();
  }
  const int64_t one = parameters * 3 * DTypeSize(DType::kFloat32);
  AddFault("checkpoint.path", engine::format::CheckSpace(files, directory, one), result);
  const int64_t kept = one * (spec.checkpoint().keep_last() + 1);
  const absl::StatusOr<int64_t> free = files.FreeBytes(directory);
  if (free.ok() && *free >= one && *free < kept) {
    result->mutable_dataset()->add_notes(StrCat(directory, ": ", spec.checkpoint().keep_last(), " checkpoints and the one being written take ",
                                                kept, " bytes and ", *free, " are free"));
  }
}

}  // namespace

PreflightResult Preflight(FileSystem& files, const slipway::worker::v1::WorkerLaunch& launch) {
  PreflightResult result;
  const TrainingSpec& spec = launch.spec();
  const auto arch = engine::spec::ArchFromSpec(spec);
  if (!arch.ok()) {
    AddFault(spec.model().has_hf_path() ? "model.hf_path" : "model", arch.status(), &result);
  } else {
    for (const Fault& fault : engine::arch::Validate(*arch)) AddFault(fault.path, fault.message, &result);
    engine::spec::ValidateOptions options;
    options.arch = *arch;
    for (const engine::spec::SpecFault& fault : engine::spec::Validate(spec, options)) {
      AddFault(fault.path, fault.value.empty() ? fault.message : StrCat(fault.value, ": ", fault.message), &result);
    }
    CheckWeights(files, spec, *arch, &result);
    CheckTokenizer(spec, *arch, &result);
  }
  for (const auto& [path, directory] : {std::pair{"checkpoint.path", launch.checkpoint_dir()}, std::pair{"output", launch.output_dir()}}) {
    if (!directory.empty()) AddFault(path, CheckWritable(files, directory), &result);
  }
  // With a fault so far the data could only repeat it.
  if (result.faults().empty()) {
    const auto datasets = engine::train::OpenDatasets(spec, *arch, JoinPath(launch.output_dir(), "cache"), files);
    if (datasets.ok()) *result.mutable_dataset() = datasets->report;
    else AddFault("dataset.path", datasets.status(), &result);
    CheckSpace(files, launch.checkpoint_dir(), spec, *arch, &result);
  }
  result.set_ok(result.faults().empty());
  return result;
}

int PreflightCommand(const std::string& launch_file) {
  PosixFileSystem files;
  const auto launch = link::ReadLaunch(files, launch_file);
  if (!launch.ok()) {
    spdlog::critical("{}", launch.status().ToString());
    return 2;
  }
  const PreflightResult result = Preflight(files, *launch);
  for (const slipway::v1::SpecFault& fault : result.faults()) spdlog::error("{}: {}", fault.path(), fault.message());
  if (const absl::Status written = link::WritePreflightResult(files, launch->state_dir(), result); !written.ok()) {
    spdlog::critical("{}", written.ToString());
    return 1;
  }
  return 0;
}

}  // namespace slipway::worker::host
