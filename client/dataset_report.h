// The data of a job, looked at before it is submitted. Thread-safe: pure functions, apart from reading files.
#ifndef SLIPWAY_CLIENT_DATASET_REPORT_H_
#define SLIPWAY_CLIENT_DATASET_REPORT_H_

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/format.h"
#include "engine/arch/model_arch.h"
#include "engine/corpus/chat_dataset.h"
#include "engine/corpus/inspect.h"
#include "engine/spec/spec_fault.h"
#include "slipway/v1/training_spec.pb.h"

namespace slipway::client {

struct FileReport {
  std::vector<std::pair<std::string, std::string>> lines;  // name and value
  std::vector<std::string> notes;                          // e.g. lines that were left out, with their reasons
  engine::spec::SpecFaults faults;
};

// Special tokens, training and validation data, and the weights, as far as their files are on this machine; what is not
// here gets a note. `arch` is the model's, where it is known. `wrong` are fields with faults: what depends on them is
// not looked at.
FileReport InspectJobFiles(const v1::TrainingSpec& resolved, const std::optional<engine::arch::ModelArch>& arch,
                           const std::set<std::string>& wrong);

// "3 samples of 4 lines, 412 tokens, 120 with loss, 0 truncated, 1 left out".
std::string ChatSummary(const engine::corpus::ChatReport& report);
std::string IndexedSummary(const engine::corpus::IndexedInspection& inspection);

// The same for programs, with the lines that were left out and the samples that are shown.
Json ChatJson(const engine::corpus::ChatInspection& inspection);
Json IndexedJson(const engine::corpus::IndexedInspection& inspection, const std::string& prefix);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_DATASET_REPORT_H_
