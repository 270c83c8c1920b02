// A job file with its overrides, read and checked before it goes to a server. Thread-safe: pure functions, apart from
// reading files.
#ifndef SLIPWAY_CLIENT_JOB_FILE_H_
#define SLIPWAY_CLIENT_JOB_FILE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/environment.h"
#include "engine/arch/model_arch.h"
#include "engine/spec/spec_reader.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::client {

struct JobFile {
  v1::TrainingSpec spec;            // as written, with absolute paths
  engine::spec::SpecFaults faults;  // all of them: reading, overrides, validation
  engine::spec::SpecLocations locations;
  // Of the model, where it can be known on this machine: not when model.hf_path lies elsewhere.
  std::optional<engine::arch::ModelArch> arch;
};

// Reads `path` ("-": standard input). Paths inside are relative to the job file's directory, those of
// overrides to the working directory. An error only when the file cannot be read; what is wrong inside is in `faults`.
absl::StatusOr<JobFile> LoadJobFile(const std::string& path, const std::vector<std::string>& overrides,
                                    const Environment& environment);

// A server's refusal with the place of each field it names ("  training.seq_length: …"), as far as the file has it.
absl::Status WithLocations(const absl::Status& status, const JobFile& job);

// Makes every path of the spec absolute.
void ResolvePaths(const std::string& directory, const Environment& environment,
                  const engine::spec::SpecLocations& locations, v1::TrainingSpec* spec);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_JOB_FILE_H_
