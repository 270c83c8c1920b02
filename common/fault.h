// One thing that is wrong with a configuration. Validators return every fault they find, not the first one, so that a
// user repairs a job in one go. An empty list means valid.
#ifndef SLIPWAY_COMMON_FAULT_H_
#define SLIPWAY_COMMON_FAULT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slipway {

struct Fault {
  std::string path;     // the field, as its user wrote it: "parallelism.tensor_model_parallel_size" or "rope_theta"
  std::string value;    // what it holds, empty when it is missing
  std::string message;  // what is wrong and what would be right

  friend bool operator==(const Fault&, const Fault&) = default;
};

inline std::string FaultText(const Fault& fault) {
  if (fault.value.empty()) return absl::StrCat(fault.path, ": ", fault.message);
  return absl::StrCat(fault.path, " = ", fault.value, ": ", fault.message);
}

// OK for an empty list, else InvalidArgument with one line a fault.
inline absl::Status FaultsToStatus(const std::vector<Fault>& faults) {
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrJoin(
      faults, "\n", [](std::string* out, const Fault& fault) { absl::StrAppend(out, FaultText(fault)); }));
}

}  // namespace slipway

#endif  // SLIPWAY_COMMON_FAULT_H_
