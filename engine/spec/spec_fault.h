// What is wrong with a job's configuration: everything at once, each with the place where it was written, the field,
// its value and what would be right. An empty list means valid. Plain data; thread-safe as such.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_FAULT_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_FAULT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/fault.h"

namespace slipway::engine::spec {

struct SpecFault {
  std::string location;  // "job.yaml:5:31" or "--set #2"; empty where the spec did not come as text
  std::string path;      // "training.seq_length"; empty for a fault of the whole text
  std::string value;     // what the field holds; empty when it is missing or the message says it
  std::string message;   // what is wrong and what would be right

  friend bool operator==(const SpecFault&, const SpecFault&) = default;
};
using SpecFaults = std::vector<SpecFault>;

// "job.yaml:5:31: training.seq_length = -1: must be at least 1".
std::string FaultText(const SpecFault& fault);
// One line a fault.
std::string FaultsText(const SpecFaults& faults);

// OK for an empty list, else InvalidArgument: "<what> has 2 faults:" and one line a fault.
absl::Status FaultsToStatus(const SpecFaults& faults, std::string_view what = "the job");

void AppendFaults(const std::vector<Fault>& faults, SpecFaults* out);

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_FAULT_H_
