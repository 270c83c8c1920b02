#include "engine/spec/json_tree.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "common/str_cat.h"

namespace slipway::engine::spec {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::string_view kSpaces = " \t\r\n";

// Line and column, in characters, of a byte; from 1.
std::pair<int, int> PlaceOf(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, byte);
  const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  const std::string_view line = before.substr(line_start);
  return {1 + static_cast<int>(std::count(before.begin(), before.end(), '\n')),
          1 + static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }))};
}

SpecFault FaultAt(std::string_view text, size_t byte, std::string_view name, const std::string& what) {
  const auto [line, column] = PlaceOf(text, byte);
  return {.location = StrCat(name, ":", line, ":", column), .message = StrCat("not readable as JSON: ", what)};
}

// "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while parsing value - invalid
// literal; last read: …" → from "invalid" on.
std::string Reason(const std::string& what) {
  for (const char* const before : {" - ", "] "}) {
    if (const size_t at = what.find(before); at != std::string::npos) return what.substr(at + std::strlen(before));
  }
  return what;
}

// Only hears whether the text is JSON, and where it is not.
class Listener final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& what) override {
    error_byte = position;
    error = what.what();
    return false;
  }

  size_t error_byte = 0;  // from 1
  std::string error;
};

// Walks a text that is known to be JSON and only finds out where everything stands.
class Walker {
 public:
  explicit Walker(std::string_view text) : text_(text) {}

  YamlNode Value(size_t depth) {
    SkipSpaces();
    YamlNode node = NodeHere(YamlNode::Kind::kScalar);
    if (Peek() == '{' || Peek() == '[') {
      if (depth >= kMaxTreeDepth) {
        too_deep_at_ = std::min(too_deep_at_, at_);
        at_ = text_.size();
        return node;
      }
      ReadContainer(depth, &node);
    } else if (Peek() == '"') {
      node.quoted = true;
      node.value = String();
    } else {
      const size_t end = std::min(text_.find_first_of(" \t\r\n,]}", at_), text_.size());
      node.value = std::string(text_.substr(at_, end - at_));
      Advance(end);
      if (node.value == "null") node.kind = YamlNode::Kind::kNull;
    }
    return node;
  }

  // Where the text goes deeper than it may; npos when it does not.
  size_t too_deep_at() const { return too_deep_at_; }

 private:
  void ReadContainer(size_t depth, YamlNode* node) {
    const bool is_map = Peek() == '{';
    node->kind = is_map ? YamlNode::Kind::kMap : YamlNode::Kind::kSequence;
    Advance(at_ + 1);
    SkipSpaces();
    while (at_ < text_.size() && Peek() != '}' && Peek() != ']') {
      if (is_map) {
        YamlNode key = NodeHere(YamlNode::Kind::kScalar);
        key.quoted = true;
        key.value = String();
        SkipTo(':');
        YamlNode value = Value(depth + 1);
        node->entries.emplace_back(std::move(key), std::move(value));
      } else {
        node->items.push_back(Value(depth + 1));
      }
      SkipSpaces();
      if (at_ < text_.size() && Peek() == ',') SkipTo(',');
    }
    if (at_ < text_.size()) Advance(at_ + 1);
  }

  std::string String() {
    size_t end = at_ + 1;
    while (text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    const std::string_view quoted = text_.substr(at_, end + 1 - at_);
    Advance(end + 1);
    return Json::parse(quoted.begin(), quoted.end()).get<std::string>();
  }

  char Peek() const { return text_[at_]; }
  void SkipSpaces() { Advance(std::min(text_.find_first_not_of(kSpaces, at_), text_.size())); }
  // Past the next such character and the spaces around it.
  void SkipTo(char c) {
    Advance(text_.find(c, at_) + 1);
    SkipSpaces();
  }
  void Advance(size_t to) {
    for (; at_ < to; ++at_) {
      if (text_[at_] == '\n') {
        ++line_;
        column_ = 1;
      } else if ((text_[at_] & 0xC0) != 0x80) {
        ++column_;
      }
    }
  }
  YamlNode NodeHere(YamlNode::Kind kind) const {
    YamlNode node;
    node.kind = kind;
    node.line = line_;
    node.column = column_;
    return node;
  }

  const std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int column_ = 1;
  size_t too_deep_at_ = std::string_view::npos;
};

std::string_view WithoutByteOrderMark(std::string_view text) {
  return text.starts_with(kByteOrderMark) ? text.substr(kByteOrderMark.size()) : text;
}

}  // namespace

bool IsJson(std::string_view text, std::string_view name) {
  if (name.ends_with(".json")) return true;
  const std::string_view body = WithoutByteOrderMark(text);
  const size_t first = body.find_first_not_of(kSpaces);
  return first != std::string_view::npos && body[first] == '{' && Json::accept(body.begin(), body.end());
}

YamlTree ParseJson(std::string_view whole, std::string_view name) {
  const std::string_view text = WithoutByteOrderMark(whole);
  YamlTree tree;
  if (text.find_first_not_of(kSpaces) == std::string_view::npos) {
    tree.faults.push_back({.location = std::string(name), .message = "is empty"});
    return tree;
  }
  Listener listener;
  if (!Json::sax_parse(text.begin(), text.end(), &listener)) {
    const size_t at = listener.error_byte == 0 ? 0 : listener.error_byte - 1;
    tree.faults.push_back(FaultAt(text, at, name, Reason(listener.error)));
    return tree;
  }
  Walker walker(text);
  tree.root = walker.Value(0);
  if (walker.too_deep_at() != std::string_view::npos) {
    tree.faults.push_back(
        FaultAt(text, walker.too_deep_at(), name, StrCat("nested more than ", kMaxTreeDepth, " levels deep")));
  }
  return tree;
}

}  // namespace slipway::engine::spec
