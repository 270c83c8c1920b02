// Logging of a whole process through spdlog: once SetUpLogging has run, spdlog::info("…") and its sisters go to the
// sinks chosen here. Thread-safe after set-up.
#ifndef SLIPWAY_COMMON_LOGGING_H_
#define SLIPWAY_COMMON_LOGGING_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace slipway {

enum class LogFormat {
  kText,  // 2026-11-30T06:00:00.123Z info slipwayd: message
  kJson,  // one object a line: time, level, logger, message
};

// Levels are "trace", "debug", "info", "warn", "error", "critical" and "off".
struct LoggingOptions {
  std::string program;  // shown in each line
  std::string stderr_level = "info";
  LogFormat stderr_format = LogFormat::kText;
  // No file when empty. The directory is made. Old files become <stem>.1.<ext>, <stem>.2.<ext>, …
  std::string file;
  std::string file_level = "debug";
  LogFormat file_format = LogFormat::kText;
  int64_t file_max_bytes = int64_t{64} << 20;
  int file_count = 4;  // including the one being written
};

// Replaces whatever logged before; may be called again, not while other threads log. stderr is never buffered, and the
// file gets every line at info and above at once (so it survives a kill -9 right after), lower ones within a second.
// InvalidArgument for an unknown level, else the file's error.
absl::Status SetUpLogging(const LoggingOptions& options);

// Text as a JSON string with its quotes. Bytes that are not UTF-8 become U+FFFD.
std::string JsonQuote(std::string_view text);

}  // namespace slipway

#endif  // SLIPWAY_COMMON_LOGGING_H_
