#include "common/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "common/posix_file_system.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"

namespace slipway {
namespace {

std::string_view LevelName(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
      return "trace";
    case spdlog::level::debug:
      return "debug";
    case spdlog::level::info:
      return "info";
    case spdlog::level::warn:
      return "warn";
    case spdlog::level::err:
      return "error";
    case spdlog::level::critical:
      return "critical";
    default:
      return "off";
  }
}

absl::StatusOr<spdlog::level::level_enum> ParseLevel(std::string_view name) {
  for (int level = spdlog::level::trace; level < spdlog::level::n_levels; ++level) {
    if (LevelName(static_cast<spdlog::level::level_enum>(level)) == name) {
      return static_cast<spdlog::level::level_enum>(level);
    }
  }
  return absl::InvalidArgumentError(
      StrCat("unknown log level \"", name, "\": use trace, debug, info, warn, error, critical or off"));
}

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& out) override {
    const std::string time =
        absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(message.time), absl::UTCTimeZone());
    const std::string_view logger(message.logger_name.data(), message.logger_name.size());
    const std::string_view payload(message.payload.data(), message.payload.size());
    const std::string line =
        format_ == LogFormat::kText
            ? StrCat(time, " ", LevelName(message.level), " ", logger, ": ", payload, "\n")
            : StrCat("{\"time\":\"", time, "\",\"level\":\"", LevelName(message.level),
                     "\",\"logger\":", JsonQuote(logger), ",\"message\":", JsonQuote(payload), "}\n");
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<LineFormatter>(format_); }

 private:
  const LogFormat format_;
};

}  // namespace

std::string JsonQuote(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    const char c = text[0];
    if (length == 0) {
      out += "\\ufffd";
    } else if (c == '"' || c == '\\') {
      out += {'\\', c};
    } else if (c == '\n') {
      out += "\\n";
    } else if (length == 1 && (static_cast<uint8_t>(c) < 0x20 || c == 0x7F)) {
      absl::StrAppendFormat(&out, "\\u%04x", static_cast<unsigned>(c));
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return out + "\"";
}

absl::Status SetUpLogging(const LoggingOptions& options) {
  SLIPWAY_ASSIGN_OR_RETURN(const spdlog::level::level_enum stderr_level, ParseLevel(options.stderr_level));
  SLIPWAY_ASSIGN_OR_RETURN(const spdlog::level::level_enum file_level, ParseLevel(options.file_level));
  std::vector<spdlog::sink_ptr> sinks;
  sinks.push_back(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  sinks.back()->set_level(stderr_level);
  sinks.back()->set_formatter(std::make_unique<LineFormatter>(options.stderr_format));
  if (!options.file.empty()) {
    if (options.file_max_bytes < 1 || options.file_count < 1) {
      return absl::InvalidArgumentError(StrCat("log file ", options.file, ": ", options.file_count, " files of ",
                                               options.file_max_bytes, " bytes cannot hold anything"));
    }
    SLIPWAY_RETURN_IF_ERROR(PosixFileSystem().MakeDirectories(DirName(options.file)));
    try {
      sinks.push_back(std::make_shared<spdlog::sinks::rotating_file_sink_mt>(
          options.file, static_cast<size_t>(options.file_max_bytes), static_cast<size_t>(options.file_count - 1)));
    } catch (const spdlog::spdlog_ex& error) {  // spdlog reports in no other way
      return absl::UnavailableError(StrCat("log file ", options.file, ": ", error.what()));
    }
    sinks.back()->set_level(file_level);
    sinks.back()->set_formatter(std::make_unique<LineFormatter>(options.file_format));
  }
  auto logger = std::make_shared<spdlog::logger>(options.program, sinks.begin(), sinks.end());
  logger->set_level(options.file.empty() ? stderr_level : std::min(stderr_level, file_level));
  logger->flush_on(spdlog::level::info);
  // A full disk must not turn every log line into an exception or a storm on stderr.
  logger->set_error_handler([](const std::string&) {});
  spdlog::set_default_logger(std::move(logger));
  spdlog::flush_every(std::chrono::seconds(1));
  return absl::OkStatus();
}

}  // namespace slipway
