// Data for people and for programs: tables, JSON and YAML of protobuf messages. Thread-safe: pure functions.
#ifndef SLIPWAY_CLIENT_FORMAT_H_
#define SLIPWAY_CLIENT_FORMAT_H_

#include <google/protobuf/message.h>
#include <google/protobuf/timestamp.pb.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace slipway::client {

enum class OutputFormat { kTable, kJson, kYaml, kName };

using Json = nlohmann::ordered_json;

// snake_case keys, enums by name, times in RFC 3339, 64-bit integers as strings, NaN as "NaN".
Json ToJson(const google::protobuf::Message& message);
// The same, but a job's `spec` as a job file is written, so that it can be submitted again.
Json ToJsonWithPlainSpecs(const google::protobuf::Message& message);
// That as YAML.
std::string ToYaml(const google::protobuf::Message& message);

// Indented, and on one line; both end with a newline. Bytes that are not UTF-8 are replaced.
std::string JsonText(const Json& json);
std::string JsonLine(const Json& json);

// Columns padded to their widest cell, two spaces apart; headers in capitals. Cells must be one line (see OneLine).
class Table {
 public:
  explicit Table(std::vector<std::string> headers) : rows_{std::move(headers)} {}
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string Text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Characters that a terminal shows, for valid UTF-8 (wide characters count as one).
size_t DisplayWidth(const std::string& text);
// Control characters and bytes that are not UTF-8 made visible, so that no text can steer the terminal.
std::string OneLine(const std::string& text);

absl::Time ToTime(const google::protobuf::Timestamp& time);
// "2026-11-30 06:00:12" in local time; "-" when unset.
std::string TimeText(const google::protobuf::Timestamp& time);
// "42s", "3m", "5h", "2d" since then; "-" when unset.
std::string AgeText(const google::protobuf::Timestamp& time, absl::Time now);

// "1234567" → "1,234,567".
std::string Grouped(int64_t value);
// Six digits for a loss, shorter for a rate: "%.*g" that keeps NaN and infinity readable.
std::string Number(double value, int digits);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_FORMAT_H_
