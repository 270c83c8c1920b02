#include "common/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "common/str_cat.h"

namespace slipway {
namespace {

// Optimal string alignment distance: insert, delete, replace, or swap two neighbours.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

std::optional<std::string> NearestKey(std::string_view word, absl::Span<const std::string> candidates) {
  constexpr size_t kLongestWord = 256;  // nobody meant a key by a page of text
  if (word.empty() || word.size() > kLongestWord) return std::nullopt;
  const std::string wanted = absl::AsciiStrToLower(std::string(word));
  std::optional<std::string> best;
  size_t best_distance = std::max<size_t>(1, wanted.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() + best_distance <= wanted.size() || wanted.size() + best_distance <= candidate.size())
      continue;
    const size_t distance = EditDistance(wanted, absl::AsciiStrToLower(candidate));
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

size_t Utf8SequenceLength(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
  const bool too_large = lead == 0xF4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : length;
}

bool IsUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = std::abs(static_cast<double>(bytes));
  if (value < 1024) return StrCat(bytes, " B");
  size_t unit = 0;
  value /= 1024;
  // 1023.95 would round to "1024.0".
  while (value >= 1023.95 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%s%.1f %s", bytes < 0 ? "-" : "", value, kUnits[unit]);
}

std::string FormatElapsed(absl::Duration duration) {
  if (duration == absl::InfiniteDuration()) return "forever";
  if (duration < absl::ZeroDuration()) return StrCat("-", FormatElapsed(-duration));
  const double seconds = absl::ToDoubleSeconds(duration);
  if (seconds < 9.995) return absl::StrFormat("%.2fs", seconds);
  if (seconds < 59.95) return absl::StrFormat("%.1fs", seconds);
  const int64_t whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  if (whole < 86400) return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
  return absl::StrFormat("%dd%02dh", whole / 86400, whole % 86400 / 3600);
}

}  // namespace slipway
