#include "engine/spec/resume_change.h"

#include <algorithm>

#include "common/str_cat.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/validate.h"

namespace slipway::engine::spec {
namespace {

constexpr char kDecayPath[] = "scheduler.lr_decay_iters";

bool Clears(absl::Span<const std::string> clear_paths, std::string_view path) {
  return std::any_of(clear_paths.begin(), clear_paths.end(), [&](const std::string& cleared) {
    return path == cleared ||
           (path.size() > cleared.size() && path.substr(0, cleared.size()) == cleared && path[cleared.size()] == '.');
  });
}

std::string DecayNote(const v1::TrainingSpec& before, const v1::TrainingSpec& after, bool named) {
  const int64_t old_decay = before.scheduler().lr_decay_iters();
  const int64_t new_decay = after.scheduler().lr_decay_iters();
  const int64_t old_iters = before.training().train_iters();
  const int64_t new_iters = after.training().train_iters();
  if (named && new_decay != old_decay) {
    return StrCat(kDecayPath, " goes from ", old_decay, " to ", new_decay,
                  ": the learning rate follows the new schedule from the resumed step on");
  }
  if (new_iters != old_iters && old_decay == old_iters) {
    return StrCat(kDecayPath, " stays ", old_decay, " although training.train_iters goes from ", old_iters, " to ",
                  new_iters, ": the schedule is not stretched; set ", kDecayPath, " to change it");
  }
  return "";
}

}  // namespace

std::vector<FieldChange> CompareSpecs(const v1::TrainingSpec& before, const v1::TrainingSpec& after) {
  std::vector<FieldChange> changes;
  for (const FieldPath& field : AllFields()) {
    std::string old_value = ValueText(before, field);
    std::string new_value = ValueText(after, field);
    if (old_value == new_value && HasValue(before, field) == HasValue(after, field)) continue;
    changes.push_back({field.path, std::move(old_value), std::move(new_value), MetaOf(field.field()).resume()});
  }
  return changes;
}

SpecFaults CheckResume(const v1::TrainingSpec& before, const v1::TrainingSpec& after) {
  SpecFaults faults;
  for (const FieldChange& change : CompareSpecs(before, after)) {
    if (change.rule == v1::RESUME_RULE_MUTABLE || change.rule == v1::RESUME_RULE_LAYOUT) continue;
    faults.push_back({.path = change.path,
                      .value = change.after,
                      .message = StrCat("cannot change on resume: the job was submitted with ", change.before)});
  }
  return faults;
}

ResumeChange ApplyResumePatch(const v1::TrainingSpec& before, const v1::TrainingSpec& patch,
                              absl::Span<const std::string> clear_paths) {
  ResumeChange result;
  v1::TrainingSpec merged = before;
  for (const std::string& path : clear_paths) {
    const auto field = FindField(path);
    if (!field.ok()) {
      result.faults.push_back({.path = path, .message = std::string(field.status().message())});
    } else {
      ClearField(&merged, *field);
    }
  }
  // Merging would append to a list.
  for (const FieldPath& field : AllFields()) {
    if (IsList(field.field()) && HasValue(patch, field)) ClearField(&merged, field);
  }
  merged.MergeFrom(patch);
  result.spec = Resolve(merged);
  result.changes = CompareSpecs(before, result.spec);
  result.layout_changed = std::any_of(result.changes.begin(), result.changes.end(),
                                      [](const FieldChange& change) { return change.rule == v1::RESUME_RULE_LAYOUT; });
  for (SpecFault& fault : CheckResume(before, result.spec)) result.faults.push_back(std::move(fault));
  for (SpecFault& fault : Validate(result.spec)) result.faults.push_back(std::move(fault));
  const bool decay_named = patch.scheduler().has_lr_decay_iters() || Clears(clear_paths, kDecayPath);
  if (std::string note = DecayNote(before, result.spec, decay_named); !note.empty())
    result.notes.push_back(std::move(note));
  return result;
}

}  // namespace slipway::engine::spec
