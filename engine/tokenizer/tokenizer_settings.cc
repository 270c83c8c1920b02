#include "engine/tokenizer/tokenizer_settings.h"

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace slipway::engine::tokenizer {
namespace {

constexpr int64_t kMaxSettingsBytes = int64_t{64} << 20;
constexpr std::string_view kSpecialTokenNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                   "pad_token", "cls_token", "mask_token"};

absl::Status Fault(const std::string& path, std::string_view field, const Json& value, std::string_view right) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", std::string(field), " is ", ShowJson(value), "; expected ", std::string(right)));
}

// An absent file is an empty object.
absl::StatusOr<Json> ReadObject(FileSystem& files, const std::string& path) {
  absl::StatusOr<std::string> text = files.ReadFile(path, kMaxSettingsBytes);
  if (absl::IsNotFound(text.status())) return Json::object();
  SLIPWAY_RETURN_IF_ERROR(text.status());
  absl::StatusOr<Json> json = ParseJson(*text);
  SLIPWAY_RETURN_IF_ERROR(Annotate(json.status(), path));
  if (!json->is_object()) return Fault(path, "the file", *json, "an object");
  return json;
}

// A token is a text, or an object with the text as "content"; null is the same as absent.
absl::Status ReadSpecialTokens(const Json& json, const std::string& path, std::map<std::string, std::string>& tokens) {
  for (const std::string_view name_view : kSpecialTokenNames) {
    const std::string name(name_view);
    const auto it = json.find(name);
    if (it == json.end() || it->is_null()) continue;
    const Json* text = &*it;
    if (it->is_object()) {
      const auto content = it->find("content");
      if (content == it->end()) return Fault(path, name, *it, "an object with \"content\"");
      text = &*content;
    }
    if (!text->is_string()) return Fault(path, name, *it, "a text");
    tokens.emplace(name, text->get<std::string>());  // the first file that names it wins
  }
  return absl::OkStatus();
}

absl::Status ReadGenerationEos(const Json& json, const std::string& path, std::vector<int64_t>& ids) {
  const auto it = json.find("eos_token_id");
  if (it == json.end() || it->is_null()) return absl::OkStatus();
  const Json list = it->is_array() ? *it : Json::array({*it});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0) {
      return Fault(path, "eos_token_id", *it, "a token id or a list of them");
    }
    ids.push_back(id.get<int64_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadMaxLength(const Json& json, const std::string& path, std::optional<int64_t>& max_length) {
  const auto it = json.find("model_max_length");
  if (it == json.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_number()) return Fault(path, "model_max_length", *it, "a number");
  const double value = it->get<double>();
  if (!(value >= 1)) return Fault(path, "model_max_length", *it, "a positive number");
  if (value < 1e15) max_length = static_cast<int64_t>(value);  // transformers writes 1e30 for "no limit"
  return absl::OkStatus();
}

absl::Status ReadConfiguredTemplates(const Json& json, const std::string& path,
                                     std::map<std::string, std::string>& templates) {
  const auto it = json.find("chat_template");
  if (it == json.end() || it->is_null()) return absl::OkStatus();
  if (it->is_string()) {
    templates["default"] = it->get<std::string>();
    return absl::OkStatus();
  }
  constexpr std::string_view kRight = "a text or a list of objects with \"name\" and \"template\"";
  if (!it->is_array()) return Fault(path, "chat_template", *it, kRight);
  for (const Json& entry : *it) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() || !entry.contains("template") ||
        !entry["template"].is_string()) {
      return Fault(path, "chat_template", entry, kRight);
    }
    templates[entry["name"].get<std::string>()] = entry["template"].get<std::string>();
  }
  return absl::OkStatus();
}

absl::Status ReadTemplateFiles(FileSystem& files, const std::string& directory,
                               std::map<std::string, std::string>& templates) {
  absl::StatusOr<std::string> main = files.ReadFile(JoinPath(directory, "chat_template.jinja"), kMaxSettingsBytes);
  if (main.ok()) {
    templates["default"] = *std::move(main);
  } else if (!absl::IsNotFound(main.status())) {
    return main.status();
  }
  const std::string more = JoinPath(directory, "additional_chat_templates");
  absl::StatusOr<std::vector<std::string>> names = files.List(more);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  SLIPWAY_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    constexpr std::string_view kSuffix = ".jinja";
    if (!absl::EndsWith(name, ".jinja")) continue;
    SLIPWAY_ASSIGN_OR_RETURN(std::string text, files.ReadFile(JoinPath(more, name), kMaxSettingsBytes));
    templates[name.substr(0, name.size() - kSuffix.size())] = std::move(text);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSettings> ReadTokenizerSettings(FileSystem& files, const std::string& directory) {
  TokenizerSettings settings;
  const std::string config_path = JoinPath(directory, "tokenizer_config.json");
  SLIPWAY_ASSIGN_OR_RETURN(const Json config, ReadObject(files, config_path));
  SLIPWAY_RETURN_IF_ERROR(ReadSpecialTokens(config, config_path, settings.special_tokens));
  SLIPWAY_RETURN_IF_ERROR(ReadMaxLength(config, config_path, settings.model_max_length));
  SLIPWAY_RETURN_IF_ERROR(ReadConfiguredTemplates(config, config_path, settings.chat_templates));
  SLIPWAY_RETURN_IF_ERROR(ReadTemplateFiles(files, directory, settings.chat_templates));

  const std::string map_path = JoinPath(directory, "special_tokens_map.json");
  SLIPWAY_ASSIGN_OR_RETURN(const Json map, ReadObject(files, map_path));
  SLIPWAY_RETURN_IF_ERROR(ReadSpecialTokens(map, map_path, settings.special_tokens));

  const std::string generation_path = JoinPath(directory, "generation_config.json");
  SLIPWAY_ASSIGN_OR_RETURN(const Json generation, ReadObject(files, generation_path));
  SLIPWAY_RETURN_IF_ERROR(ReadGenerationEos(generation, generation_path, settings.generation_eos_ids));
  return settings;
}

}  // namespace slipway::engine::tokenizer
