#include "server/rpc/submit.h"

#include <algorithm>
#include <filesystem>
#include <random>
#include <system_error>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/spec/resolve.h"
#include "engine/spec/resume_change.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/validate.h"
#include "server/core/job_id.h"
#include "server/rpc/rich_status.h"

namespace slipway::server::rpc {
namespace {

namespace spec = engine::spec;

// Both without "..", "." and a final slash.
bool IsUnder(const std::filesystem::path& path, const std::filesystem::path& root) {
  const auto [root_end, path_at] = std::mismatch(root.begin(), root.end(), path.begin(), path.end());
  return root_end == root.end();
}

std::filesystem::path Normal(const std::string& path) {
  std::filesystem::path normal = std::filesystem::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

// With links followed, as far as the path exists on this machine: two names of one directory are one.
std::filesystem::path Real(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(Normal(path), error);
  return error ? Normal(path) : Normal(real.string());
}

}  // namespace

spec::SpecFaults CheckRoots(const v1::TrainingSpec& training, const std::vector<std::string>& roots) {
  spec::SpecFaults faults;
  if (roots.empty()) return faults;
  for (const spec::FieldPath& field : spec::AllFields()) {
    if (spec::MetaOf(field.field()).path_kind().empty() || !spec::HasValue(training, field)) continue;
    const std::string value = spec::ValueText(training, field);
    const bool allowed = std::any_of(roots.begin(), roots.end(),
                                     [&](const std::string& root) { return IsUnder(Normal(value), Normal(root)); });
    if (allowed) continue;
    faults.push_back({.path = field.path,
                      .value = value,
                      .message = absl::StrCat("lies outside of the directories that this server allows: ",
                                              absl::StrJoin(roots, ", "), " (slipwayd --allow-root adds one)")});
  }
  return faults;
}

absl::StatusOr<core::CreateJob> MakeCreateJob(const v1::CreateJobRequest& request, const SubmitOptions& options,
                                              absl::Time now) {
  spec::SpecFaults faults = spec::Validate(request.spec());
  core::CreateJob create;
  create.submitted_spec = request.spec();
  create.spec = spec::Resolve(request.spec());
  for (spec::SpecFault& fault : CheckRoots(create.spec, options.allowed_roots)) faults.push_back(std::move(fault));
  if (!faults.empty()) return FaultsStatus(faults, "spec.");
  thread_local absl::BitGen random;
  create.id = core::MakeJobId(now, absl::Uniform<uint64_t>(random));
  create.nonce = absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
  create.output_dir = absl::StrCat(options.output_root, "/", create.spec.project(), "/", create.id);
  create.checkpoint_dir = create.spec.checkpoint().path().empty() ? absl::StrCat(create.output_dir, "/checkpoints")
                                                                  : create.spec.checkpoint().path();
  return create;
}

absl::Status CheckCheckpointDir(const core::ClusterState& state, const core::CreateJob& create) {
  if (create.spec.checkpoint().path().empty()) return absl::OkStatus();  // a directory of its own
  const std::filesystem::path wanted = Real(create.checkpoint_dir);
  for (const auto& [id, entry] : state.jobs) {
    if (core::IsFinal(entry.job.state()) || Real(entry.job.checkpoint_dir()) != wanted) continue;
    return WithReason(
        absl::FailedPreconditionError(absl::StrCat(
            "checkpoint.path = ", create.spec.checkpoint().path(), ": job ", id, " (\"", entry.job.name(), "\", ",
            core::StateName(entry.job.state()), ") saves there; give this job a checkpoint.path of its own, or none")),
        "CHECKPOINT_PATH_IN_USE", {{"job", id}, {"path", create.checkpoint_dir}});
  }
  return absl::OkStatus();
}

absl::StatusOr<core::ResumeJob> MakeResumeJob(const v1::ResumeJobRequest& request, const core::JobEntry& entry,
                                              const SubmitOptions& options) {
  const std::vector<std::string> clear(request.clear_paths().begin(), request.clear_paths().end());
  spec::ResumeChange change = spec::ApplyResumePatch(entry.job.spec(), request.spec_patch(), clear);
  for (spec::SpecFault& fault : CheckRoots(change.spec, options.allowed_roots)) {
    change.faults.push_back(std::move(fault));
  }
  const int64_t reached = entry.job.progress().last_checkpoint_step();
  if (const int64_t last = change.spec.training().train_iters(); last < reached) {
    change.faults.push_back({.path = "training.train_iters",
                             .value = absl::StrCat(last),
                             .message = absl::StrCat("is below the step that the job has reached, ", reached)});
  }
  if (!change.faults.empty()) return FaultsStatus(change.faults, "spec_patch.");
  std::vector<std::string> lines;
  for (const spec::FieldChange& field : change.changes) {
    lines.push_back(absl::StrCat(field.path, " ", field.before, " -> ", field.after));
  }
  lines.insert(lines.end(), change.notes.begin(), change.notes.end());
  return core::ResumeJob{.id = entry.job.id(),
                         .etag = request.etag(),
                         .spec = std::move(change.spec),
                         .changed = !change.changes.empty(),
                         .changes = absl::StrJoin(lines, "; ")};
}

}  // namespace slipway::server::rpc
