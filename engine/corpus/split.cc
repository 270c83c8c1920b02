#include "engine/corpus/split.h"

#include <cmath>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/str_cat.h"

namespace slipway::engine::corpus {

std::string_view SplitPartName(SplitPart part) {
  switch (part) {
    case SplitPart::kTraining:
      return "training";
    case SplitPart::kValidation:
      return "validation";
    case SplitPart::kTest:
      return "test";
  }
  return "unknown";
}

absl::StatusOr<SplitShares> ParseSplit(std::string_view text) {
  const std::vector<std::string> fields = absl::StrSplit(ToAbsl(text), ',');
  SplitShares shares = {0, 0, 0};
  const auto fault = [&] {
    return absl::InvalidArgumentError(
        StrCat("split is \"", text, "\"; expected up to three numbers, none negative, such as \"969,30,1\""));
  };
  if (fields.size() > shares.size()) return fault();
  double sum = 0;
  for (size_t i = 0; i < fields.size(); ++i) {
    if (!absl::SimpleAtod(fields[i], &shares[i]) || !std::isfinite(shares[i]) || shares[i] < 0) return fault();
    sum += shares[i];
  }
  if (!(sum > 0) || !std::isfinite(sum)) return fault();
  for (double& share : shares) share /= sum;
  return shares;
}

SequenceRange RangeOf(const SplitShares& shares, SplitPart part, int64_t count) {
  double bound = 0;
  for (size_t i = 0; i < static_cast<size_t>(part); ++i) bound += shares[i];
  // nearbyint rounds half to even, as Python's round does.
  const auto place = [&](double share) {
    return static_cast<int64_t>(std::nearbyint(share * static_cast<double>(count)));
  };
  return {place(bound), place(bound + shares[static_cast<size_t>(part)])};
}

}  // namespace slipway::engine::corpus
