#include "engine/format/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/format/reshard.h"

namespace slipway::engine::format {
namespace {

// Reads the header as a stream of events, so that a hostile text builds no tree and cannot nest deeper than the format.
class HeaderEvents final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader TakeHeader() { return std::move(header_); }
  const std::string& error() const { return error_; }

  bool start_object(std::size_t) override {
    if (depth_ == 0 || (depth_ == 1 && !list_)) {
      ++depth_;
      if (depth_ == 2) entry_ = Entry{};
      return true;
    }
    return Fail("an object is not expected here");
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 0) return true;
    return name_ == "__metadata__" ? true : EndTensor();
  }

  bool key(string_t& text) override {
    if (depth_ == 1) {
      name_ = std::move(text);
      return names_.insert(name_).second || Fail("the name is given twice");
    }
    field_ = std::move(text);
    if (name_ == "__metadata__") return true;
    if (field_ != "dtype" && field_ != "shape" && field_ != "data_offsets") return Fail("the field is unknown");
    return true;
  }

  bool string(string_t& text) override {
    if (depth_ != 2 || list_) return Fail("a string is not expected here");
    if (name_ == "__metadata__") {
      return header_.metadata.emplace(field_, text).second || Fail("the key is given twice");
    }
    if (field_ != "dtype") return Fail("a list of numbers is expected");
    if (entry_.has_dtype) return Fail("the field is given twice");
    const std::optional<DType> dtype = DTypeFromSafetensorsName(text);
    if (!dtype.has_value()) return Fail(StrCat("dtype ", text.substr(0, 40), " is not supported"));
    entry_.has_dtype = true;
    entry_.dtype = *dtype;
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || list_ || name_ == "__metadata__" || field_ == "dtype")
      return Fail("a list is not expected here");
    std::optional<std::vector<int64_t>>& target = field_ == "shape" ? entry_.shape : entry_.offsets;
    if (target.has_value()) return Fail("the field is given twice");
    target.emplace();
    list_ = true;
    return true;
  }

  bool end_array() override {
    list_ = false;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!list_) return Fail("a number is not expected here");
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return Fail("the number is too large");
    std::vector<int64_t>& target = field_ == "shape" ? *entry_.shape : *entry_.offsets;
    if (target.size() >= kMaxNumbers) return Fail("the list is too long");
    target.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool null() override { return Fail("null is not expected here"); }
  bool boolean(bool) override { return Fail("true or false is not expected here"); }
  bool number_integer(number_integer_t) override { return Fail("a negative number is not expected here"); }
  bool number_float(number_float_t, const string_t&) override { return Fail("a fraction is not expected here"); }
  bool binary(binary_t&) override { return Fail("binary data is not expected here"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    error_ = absl::StrCat("the header is not valid JSON at byte ", position);
    return false;
  }

 private:
  static constexpr size_t kMaxNumbers = 64;  // dimensions

  struct Entry {
    bool has_dtype = false;
    DType dtype = DType::kFloat32;
    std::optional<std::vector<int64_t>> shape, offsets;
  };

  bool Fail(std::string_view why) {
    error_ = depth_ == 0   ? StrCat("the header must be a JSON object: ", why)
             : depth_ == 1 ? StrCat("tensor \"", name_, "\": ", why)
                           : StrCat("tensor \"", name_, "\", field \"", field_, "\": ", why);
    return false;
  }

  bool EndTensor() {
    if (!entry_.has_dtype || !entry_.shape.has_value() || !entry_.offsets.has_value()) {
      return Fail("dtype, shape or data_offsets is missing");
    }
    const std::vector<int64_t>& offsets = *entry_.offsets;
    if (offsets.size() != 2 || offsets[0] > offsets[1]) return Fail("data_offsets must be [begin, end]");
    const absl::StatusOr<int64_t> elements = ElementCount(*entry_.shape);
    if (!elements.ok()) return Fail(ToStd(elements.status().message()));
    const int64_t bytes = offsets[1] - offsets[0], size = DTypeSize(entry_.dtype);
    if (bytes % size != 0 || bytes / size != *elements) {
      return Fail(StrCat("shape [", absl::StrJoin(*entry_.shape, ", "), "] of ", SafetensorsName(entry_.dtype), " has ",
                         *elements, " elements of ", size, " bytes, but data_offsets span ", bytes, " bytes"));
    }
    StoredTensor tensor;
    tensor.name = name_;
    tensor.dtype = entry_.dtype;
    tensor.shape = std::move(*entry_.shape);
    tensor.offset = offsets[0];
    tensor.bytes = bytes;
    header_.tensors.push_back(std::move(tensor));
    return true;
  }

  SafetensorsHeader header_;
  std::string error_;
  int depth_ = 0;
  bool list_ = false;
  std::string name_, field_;
  Entry entry_;
  std::set<std::string> names_;
};

std::string Quote(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text) {
  HeaderEvents events;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &events)) return absl::InvalidArgumentError(events.error());
  return events.TakeHeader();
}

std::string SafetensorsHeaderText(const SafetensorsHeader& header) {
  std::vector<std::string> entries;
  if (!header.metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : header.metadata) pairs.push_back(absl::StrCat(Quote(key), ":", Quote(value)));
    entries.push_back(absl::StrCat("\"__metadata__\":{", absl::StrJoin(pairs, ","), "}"));
  }
  for (const StoredTensor& tensor : header.tensors) {
    entries.push_back(StrCat(Quote(tensor.name), ":{\"dtype\":\"", SafetensorsName(tensor.dtype), "\",\"shape\":[",
                             absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", tensor.offset, ",",
                             tensor.offset + tensor.bytes, "]}"));
  }
  return absl::StrCat("{", absl::StrJoin(entries, ","), "}");
}

}  // namespace slipway::engine::format
