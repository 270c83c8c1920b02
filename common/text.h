// Text for people: suggestions and quantities. Thread-safe: pure functions.
#ifndef SLIPWAY_COMMON_TEXT_H_
#define SLIPWAY_COMMON_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace slipway {

// The candidate that `word` most likely meant ("did you mean"), or nothing when none is near: at most a third of the
// word's letters may differ (one at least). Neighbours swapped count as one change; case does not count. The earlier
// candidate wins a tie.
std::optional<std::string> NearestKey(std::string_view word, absl::Span<const std::string> candidates);

// Length of the well-formed UTF-8 sequence at the front of `text`, which is not empty; 0 when there is none.
size_t Utf8SequenceLength(std::string_view text);
bool IsUtf8(std::string_view text);

// 512 -> "512 B", 1536 -> "1.5 KiB", 5368709120 -> "5.0 GiB".
std::string FormatBytes(int64_t bytes);

// For a person who waits: "0.25s", "12.3s", "4m05s", "2h07m", "3d04h"; negative durations get a minus; "forever".
std::string FormatElapsed(absl::Duration duration);

}  // namespace slipway

#endif  // SLIPWAY_COMMON_TEXT_H_
