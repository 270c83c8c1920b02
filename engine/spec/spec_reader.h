// YAML or JSON text → TrainingSpec, over proto reflection. Strict: an unknown key, a
// key given twice, a quoted number for a number, an alias, a merge key or a second document is a fault, never a guess.
// `null` leaves a field unset. All faults come at once. Ranges, choices and required fields are Validate's
// (validate.h). Thread-safe: pure functions.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_READER_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_READER_H_

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/spec/spec_fault.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::engine::spec {

inline constexpr size_t kMaxSpecBytes = size_t{1} << 20;
inline constexpr int kSpecVersion = 1;

// Where each field was written: "training.seq_length" → "job.yaml:5:31".
using SpecLocations = std::map<std::string, std::string>;

struct ReadSpecResult {
  v1::TrainingSpec spec;  // what could be read, also when there are faults
  SpecFaults faults;
  SpecLocations locations;
};

// `name` stands in messages for the file. An empty text is a fault. Never fails otherwise: what is wrong is in
// `faults`.
ReadSpecResult ReadSpec(std::string_view text, std::string_view name);

// The fields and sections that reading found wrong: for ValidateOptions.unread.
std::set<std::string> UnreadPaths(const ReadSpecResult& read);

// Puts the location of each fault's field (else of its nearest section) into faults that have none.
void AddLocations(const SpecLocations& locations, SpecFaults* faults);

// The faults of reading and then those of validation, without what only follows from a field that could not be read
// ("required" for a field whose value was of the wrong type), in the order of the text.
SpecFaults MergeFaults(const ReadSpecResult& read, SpecFaults validation);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_READER_H_
