// A checkpoint as a Hugging Face model directory, which transformers, vLLM and this product load.
//
//   SLIPWAY_ASSIGN_OR_RETURN(ExportResult result, ExportCheckpoint(files, ".../step-00000120-e3", {.out_dir =
//   "/models/mine"}));
//
// Streams: no more than a few megabytes of one tensor are held at a time. Thread-safe: no state.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_HF_EXPORT_H_
#define SLIPWAY_ENGINE_CHECKPOINT_HF_EXPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dtype.h"
#include "common/file_system.h"
#include "engine/format/hf_weights.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::checkpoint {

struct ExportOptions {
  std::string out_dir;
  // Of every tensor, and config.json says so. Unset: each tensor keeps the type that it has in the model directory, so
  // that what was not trained is written back bit for bit; float32 where there was no such directory.
  std::optional<DType> dtype;
  // The model directory that generation_config.json, tokenizer and chat template are copied from; empty: the one that
  // the run started from, if it is still there.
  std::string model_dir;
  bool replace = false;           // an existing directory at out_dir is replaced
  bool verify_checksums = false;  // read the checkpoint's files twice, so that a damaged one is found
  int64_t max_file_bytes = format::HfWriteOptions{}.max_file_bytes;
};

struct ExportResult {
  format::HfWriteReport weights;    // names, bytes, and which tensors overflowed their new type
  std::vector<std::string> copied;  // files taken over from the model directory
  std::vector<std::string> notes;   // what a user should know
};

// Written to a temporary directory beside out_dir and renamed: out_dir is complete or not there. AlreadyExists when
// out_dir is a file or not empty and is not to be replaced; errors leave nothing behind (as far as the disk lets us).
absl::StatusOr<ExportResult> ExportCheckpoint(FileSystem& files, const std::string& checkpoint_dir,
                                              const ExportOptions& options);

// The job's newest checkpoint of the lineage, at the end of a run, as spec.checkpoint.export_dtype wants it. What an
// earlier attempt exported there is replaced. NotFound when the lineage has no checkpoint.
absl::Status ExportLatest(FileSystem& files, const std::string& checkpoint_root, const std::string& job_id,
                          const std::vector<v1::LineageEntry>& lineage, const v1::TrainingSpec& spec,
                          const std::string& out_dir);

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_HF_EXPORT_H_
