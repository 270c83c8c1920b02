#include "client/job_file.h"

#include <iostream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/spec_overrides.h"
#include "engine/spec/validate.h"

namespace slipway::client {
namespace {

using engine::spec::FieldPath;

struct Source {
  std::string text;
  std::string name;
  std::string directory;
};

absl::StatusOr<Source> ReadSource(const std::string& path, const Environment& environment) {
  if (path == "-") {
    return Source{std::string(std::istreambuf_iterator<char>(std::cin), {}), "stdin", environment.working_directory};
  }
  PosixFileSystem files;
  const std::string absolute = AbsolutePath(path, environment.working_directory, environment);
  // One byte more than allowed, so that the reader can say what is wrong.
  SLIPWAY_ASSIGN_OR_RETURN(std::string text,
                           files.ReadFile(absolute, static_cast<int64_t>(engine::spec::kMaxSpecBytes) * 16));
  return Source{std::move(text), path, DirName(absolute)};
}

// The architecture, or a fault where the files are here and wrong.
void FindArch(JobFile* job) {
  const v1::TrainingSpec resolved = engine::spec::Resolve(job->spec);
  absl::StatusOr<engine::arch::ModelArch> arch = engine::spec::ArchFromSpec(resolved);
  if (arch.ok()) {
    job->arch = *std::move(arch);
  } else if (job->spec.model().has_hf_path() && arch.status().code() != absl::StatusCode::kNotFound) {
    job->faults.push_back({.path = "model.hf_path", .message = std::string(arch.status().message())});
  }
}

}  // namespace

void ResolvePaths(const std::string& directory, const Environment& environment,
                  const engine::spec::SpecLocations& locations, v1::TrainingSpec* spec) {
  for (const FieldPath& field : engine::spec::AllFields()) {
    if (engine::spec::MetaOf(field.field()).path_kind().empty() || !engine::spec::HasValue(*spec, field)) continue;
    const std::string value = engine::spec::ValueText(*spec, field);
    if (value.empty()) continue;
    const auto location = locations.find(field.path);
    const bool from_flag = location != locations.end() && absl::StartsWith(location->second, "--set");
    const std::string absolute =
        AbsolutePath(value, from_flag ? environment.working_directory : directory, environment);
    google::protobuf::Message* holder = spec;
    for (size_t i = 0; i + 1 < field.fields.size(); ++i) {
      holder = holder->GetReflection()->MutableMessage(holder, field.fields[i]);
    }
    holder->GetReflection()->SetString(holder, field.field(), absolute);
  }
}

absl::StatusOr<JobFile> LoadJobFile(const std::string& path, const std::vector<std::string>& overrides,
                                    const Environment& environment) {
  SLIPWAY_ASSIGN_OR_RETURN(const Source source, ReadSource(path, environment));
  engine::spec::ReadSpecResult read = engine::spec::ReadSpec(source.text, source.name);
  const bool unreadable = !read.faults.empty() && read.faults.front().path.empty() && read.locations.empty();
  for (engine::spec::SpecFault& fault : engine::spec::ApplyOverrides(overrides, &read.spec, &read.locations)) {
    read.faults.push_back(std::move(fault));
  }
  ResolvePaths(source.directory, environment, read.locations, &read.spec);
  JobFile job{.spec = read.spec, .locations = read.locations};
  if (unreadable) {
    job.faults = read.faults;
    return job;
  }
  FindArch(&job);
  engine::spec::SpecFaults validation =
      engine::spec::Validate(job.spec, {.arch = job.arch, .unread = engine::spec::UnreadPaths(read)});
  validation.insert(validation.begin(), job.faults.begin(), job.faults.end());
  job.faults = engine::spec::MergeFaults(read, std::move(validation));
  return job;
}

absl::Status WithLocations(const absl::Status& status, const JobFile& job) {
  if (!absl::IsInvalidArgument(status)) return status;
  std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  for (std::string& line : lines) {
    const size_t colon = line.find(": ");
    if (!absl::StartsWith(line, "  ") || colon == std::string::npos) continue;
    engine::spec::SpecFaults fault = {{.path = line.substr(2, colon - 2)}};
    engine::spec::AddLocations(job.locations, &fault);
    if (!fault.front().location.empty()) line = absl::StrCat(fault.front().location, ": ", line.substr(2));
  }
  return absl::Status(status.code(), absl::StrJoin(lines, "\n"));
}

}  // namespace slipway::client
