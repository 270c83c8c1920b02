#include <CLI/CLI.hpp>
#include <iostream>

#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/checkpoint/hf_export.h"
#include "worker/host/command_line.h"
#include "worker/host/model_commands.h"

namespace slipway::worker::host {

void AddExportFlags(CLI::App& app, ExportOptions& options) {
  app.add_option("--checkpoint", options.checkpoint, "A step-… directory")->required()->type_name("DIR");
  app.add_option("--out", options.out, "Directory to write")->required()->type_name("DIR");
  app.add_option("--dtype", options.dtype, "Type of the weights [that of the model it started from]")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->type_name("TYPE");
  app.add_option("--source", options.source, "Model directory whose tokenizer is copied [the one it started from]")
      ->type_name("DIR");
  AddOutputFlag(app, options.output);
}

absl::Status Export(const ExportOptions& options, std::ostream& out, std::ostream& notes) {
  PosixFileSystem files;
  engine::checkpoint::ExportOptions request;
  request.out_dir = options.out;
  request.model_dir = options.source;
  request.verify_checksums = true;
  if (!options.dtype.empty()) {
    request.dtype = DTypeFromName(options.dtype);
    if (!request.dtype.has_value())
      return absl::InvalidArgumentError(StrCat("--dtype ", options.dtype, ": not a type"));
  }
  SLIPWAY_ASSIGN_OR_RETURN(const engine::checkpoint::ExportResult result,
                           engine::checkpoint::ExportCheckpoint(files, options.checkpoint, request));
  for (const std::string& note : result.notes) notes << "note: " << note << "\n";
  for (const engine::format::HfOverflow& overflow : result.weights.overflows) {
    notes << "warning: " << overflow.elements << " elements of " << overflow.tensor
          << " are too large for the type and became infinite\n";
  }
  const size_t file_count = result.weights.files.size();
  nlohmann::ordered_json overflows = nlohmann::ordered_json::array();
  for (const engine::format::HfOverflow& overflow : result.weights.overflows) {
    overflows.push_back({{"tensor", overflow.tensor}, {"elements", overflow.elements}});
  }
  PrintAnswer(options.output,
              {{"directory", options.out},
               {"weight_bytes", result.weights.total_bytes},
               {"weight_files", result.weights.files},
               {"copied_files", result.copied},
               {"overflows", overflows},
               {"notes", result.notes}},
              StrCat(options.out, ": ", result.weights.total_bytes, " bytes of weights in ", file_count,
                     file_count == 1 ? " file" : " files"),
              options.out, out);
  return absl::OkStatus();
}

int ExportCommand(const ExportOptions& options) { return Report(Export(options, std::cout, std::cerr)); }

}  // namespace slipway::worker::host
