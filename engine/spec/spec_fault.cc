#include "engine/spec/spec_fault.h"

#include "common/str_cat.h"

namespace slipway::engine::spec {

std::string FaultText(const SpecFault& fault) {
  std::string text;
  if (!fault.location.empty()) absl::StrAppend(&text, fault.location, ": ");
  if (!fault.path.empty()) absl::StrAppend(&text, fault.path);
  if (!fault.value.empty()) absl::StrAppend(&text, fault.path.empty() ? "" : " = ", fault.value);
  if (!fault.path.empty() || !fault.value.empty()) absl::StrAppend(&text, ": ");
  absl::StrAppend(&text, fault.message);
  return text;
}

std::string FaultsText(const SpecFaults& faults) {
  std::string text;
  for (const SpecFault& fault : faults) absl::StrAppend(&text, text.empty() ? "" : "\n", FaultText(fault));
  return text;
}

absl::Status FaultsToStatus(const SpecFaults& faults, std::string_view what) {
  if (faults.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(what, " has ", faults.size(), faults.size() == 1 ? " fault" : " faults", ":\n", FaultsText(faults)));
}

void AppendFaults(const std::vector<Fault>& faults, SpecFaults* out) {
  for (const Fault& fault : faults)
    out->push_back({.path = fault.path, .value = fault.value, .message = fault.message});
}

}  // namespace slipway::engine::spec
