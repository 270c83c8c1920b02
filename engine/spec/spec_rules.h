// Parts of Validate. Internal to engine/spec. Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_RULES_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_RULES_H_

#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "engine/spec/spec_fault.h"
#include "engine/spec/validate.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

// Each field by itself: its (meta) option, texts, names, paths, environment, labels.
void CheckFields(const v1::TrainingSpec& spec, const ValidateOptions& options, SpecFaults* faults);

// The fields that are wrong by themselves, whatever the others hold.
class WrongFields {
 public:
  explicit WrongFields(std::set<std::string> paths) : paths_(std::move(paths)) {}
  // False when it was known.
  bool Add(const std::string& path) { return paths_.insert(path).second; }
  // True when neither any of the fields nor a section around it is wrong; of a section: nor any field in it.
  bool Sound(std::initializer_list<std::string_view> paths) const;

 private:
  std::set<std::string> paths_;
};

// Rules between fields that are sound. `resolved` is what Resolve makes of a spec.
void CheckModel(const v1::TrainingSpec& resolved, const ValidateOptions& options, const WrongFields& wrong,
                SpecFaults* faults);
void CheckData(const v1::TrainingSpec& resolved, const WrongFields& wrong, SpecFaults* faults);
void CheckSchedule(const v1::TrainingSpec& resolved, const WrongFields& wrong, SpecFaults* faults);
void CheckLayout(const v1::TrainingSpec& resolved, const ValidateOptions& options, const WrongFields& wrong,
                 SpecFaults* faults);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_RULES_H_
