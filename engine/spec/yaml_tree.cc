#include "engine/spec/yaml_tree.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <sstream>

#include "common/str_cat.h"
#include "engine/spec/json_tree.h"
#include "engine/spec/spec_reader.h"

namespace slipway::engine::spec {
namespace {

class TooDeep : public YAML::ParserException {
 public:
  explicit TooDeep(const YAML::Mark& mark)
      : YAML::ParserException(mark, StrCat("nested more than ", kMaxTreeDepth, " levels deep")) {}
};

// Builds the tree. A map's children come as key, value, key, value, …
class TreeBuilder final : public YAML::EventHandler {
 public:
  YamlNode Take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { Add(Make(YamlNode::Kind::kNull, mark)); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Add(Make(YamlNode::Kind::kAlias, mark)); }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, const std::string& value) override {
    YamlNode node = Make(YamlNode::Kind::kScalar, mark);
    node.quoted = tag == "!";
    if (tag != "!" && tag != "?") node.tag = tag;
    node.value = value;
    Add(std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kSequence, mark, tag);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t, YAML::EmitterStyle::value) override {
    Open(YamlNode::Kind::kMap, mark, tag);
  }
  void OnMapEnd() override { Close(); }

 private:
  static YamlNode Make(YamlNode::Kind kind, const YAML::Mark& mark) {
    YamlNode node;
    node.kind = kind;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    return node;
  }
  void Open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag) {
    if (open_.size() >= kMaxTreeDepth) throw TooDeep(mark);
    open_.push_back(Make(kind, mark));
    if (tag != "!" && tag != "?") open_.back().tag = tag;
    keys_.emplace_back();
  }
  void Close() {
    YamlNode node = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    Add(std::move(node));
  }
  void Add(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    YamlNode& parent = open_.back();
    if (parent.kind == YamlNode::Kind::kSequence) {
      parent.items.push_back(std::move(node));
    } else if (keys_.back().empty()) {
      keys_.back().push_back(std::move(node));
    } else {
      parent.entries.emplace_back(std::move(keys_.back().front()), std::move(node));
      keys_.back().clear();
    }
  }

  YamlNode root_;
  std::vector<YamlNode> open_;
  std::vector<std::vector<YamlNode>> keys_;  // of each open node: the key that waits for its value
};

class Ignore final : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    line = mark.line + 1;
    column = mark.column + 1;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

  int line = 0;
  int column = 0;
};

SpecFault WholeFault(std::string_view location, std::string message) {
  return {.location = std::string(location), .message = std::move(message)};
}

// Bytes that no YAML text may hold, found before yaml-cpp, which takes some of them silently.
std::string BadByte(std::string_view text) {
  int line = 1;
  for (const char c : text) {
    if (c == '\n') ++line;
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\r' && c != '\t') || byte == 0x7f) {
      return StrCat("control character 0x", absl::Hex(byte, absl::kZeroPad2), " in line ", line);
    }
  }
  return "";
}

// What is wrong with the text whatever its format; empty when it may be parsed.
std::string TextFault(std::string_view text) {
  if (text.size() > kMaxSpecBytes) {
    return StrCat("is ", text.size(), " bytes; a job's configuration has at most ", kMaxSpecBytes);
  }
  if (!IsValidUtf8(text)) return "is not UTF-8 text";
  return BadByte(text);
}

YamlTree ParseYaml(std::string_view text, std::string_view name) {
  YamlTree tree;
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    TreeBuilder builder;
    if (!parser.HandleNextDocument(builder)) {
      tree.faults.push_back(WholeFault(name, "is empty"));
      return tree;
    }
    tree.root = builder.Take();
    Ignore second;
    if (parser.HandleNextDocument(second)) {
      tree.faults.push_back(WholeFault(StrCat(name, ":", second.line, ":", second.column),
                                       "a second document starts here; a file holds one job"));
      return tree;
    }
  } catch (const YAML::Exception& error) {
    const std::string location =
        error.mark.is_null() ? std::string(name) : StrCat(name, ":", error.mark.line + 1, ":", error.mark.column + 1);
    tree.faults.push_back(WholeFault(location, StrCat("not readable as YAML: ", error.msg)));
    return tree;
  }
  if (tree.root.kind == YamlNode::Kind::kNull) tree.faults.push_back(WholeFault(name, "is empty"));
  return tree;
}

}  // namespace

YamlTree ParseYamlOrJson(std::string_view text, std::string_view name) {
  if (std::string fault = TextFault(text); !fault.empty()) return {.faults = {WholeFault(name, std::move(fault))}};
  return IsJson(text, name) ? ParseJson(text, name) : ParseYaml(text, name);
}

std::string LocationText(std::string_view name, const YamlNode& node) {
  return StrCat(name, ":", node.line, ":", node.column);
}

std::string NodeText(const YamlNode& node) {
  constexpr size_t kMaxShown = 80;
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kSequence:
      return "a list";
    case YamlNode::Kind::kMap:
      return "a section";
    case YamlNode::Kind::kAlias:
      return "an alias";
    case YamlNode::Kind::kScalar:
      break;
  }
  std::string shown = node.value;
  if (shown.size() > kMaxShown) {
    size_t end = kMaxShown;
    while (end > 0 && (static_cast<unsigned char>(shown[end]) & 0xC0) == 0x80) --end;  // not inside a character
    shown = StrCat(shown.substr(0, end), "…");
  }
  return StrCat("`", node.quoted ? "\"" : "", shown, node.quoted ? "\"" : "", "`");
}

bool IsValidUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const int length = lead < 0x80                   ? 1
                       : lead >= 0xC2 && lead < 0xE0 ? 2
                       : (lead & 0xF0) == 0xE0       ? 3
                       : lead >= 0xF0 && lead < 0xF5 ? 4
                                                     : 0;
    if (length == 0 || i + length > text.size()) return false;
    uint32_t code = length == 1 ? lead : lead & (0xFF >> (length + 1));
    for (int k = 1; k < length; ++k) {
      const auto next = static_cast<unsigned char>(text[i + k]);
      if ((next & 0xC0) != 0x80) return false;
      code = code << 6 | (next & 0x3F);
    }
    const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
    if (overlong || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    i += length;
  }
  return true;
}

}  // namespace slipway::engine::spec
