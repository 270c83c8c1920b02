// What may change when a job resumes: each field's (meta).resume rule. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_RESUME_CHANGE_H_
#define SLIPWAY_ENGINE_SPEC_RESUME_CHANGE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/spec/spec_fault.h"
#include "slipway/v1/field_meta.pb.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

struct FieldChange {
  std::string path;
  std::string before;  // as text; "unset"
  std::string after;
  v1::ResumeRule rule = v1::RESUME_RULE_UNSPECIFIED;

  friend bool operator==(const FieldChange&, const FieldChange&) = default;
};

// Every field in which two resolved specs differ, in the order of the proto.
std::vector<FieldChange> CompareSpecs(const v1::TrainingSpec& before, const v1::TrainingSpec& after);

// One fault for each change of a FIXED field, naming both values.
SpecFaults CheckResume(const v1::TrainingSpec& before, const v1::TrainingSpec& after);

struct ResumeChange {
  v1::TrainingSpec spec;  // resolved; meaningful only without faults
  SpecFaults faults;      // of the patch, the resume rules, or Validate on the result
  std::vector<FieldChange> changes;
  std::vector<std::string> notes;  // for people: "scheduler.lr_decay_iters stays 100 although …"
  bool layout_changed = false;     // the checkpoint will be resharded
};

// `before` is the job's resolved spec; `patch` holds the new values (only what is set changes; entries of maps are
// added or replaced), `clear_paths` the fields that go back to their defaults. Extending train_iters leaves
// lr_decay_iters as it was frozen at the first submission, unless the patch sets or clears it; a note says which.
ResumeChange ApplyResumePatch(const v1::TrainingSpec& before, const v1::TrainingSpec& patch,
                              absl::Span<const std::string> clear_paths);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_RESUME_CHANGE_H_
