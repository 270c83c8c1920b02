#include "client/environment.h"

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/posix_file_system.h"
#include "engine/spec/yaml_tree.h"

namespace slipway::client {
namespace {

constexpr char kDefaultServer[] = "127.0.0.1:7670";

std::string ConfigPath(const Environment& environment) {
  const std::string base = environment.Variable("XDG_CONFIG_HOME");
  const std::string home = environment.Variable("HOME");
  if (!base.empty()) return absl::StrCat(base, "/slipway/config.yaml");
  return home.empty() ? "" : absl::StrCat(home, "/.config/slipway/config.yaml");
}

// The server that the file names; empty when it names none.
absl::StatusOr<std::string> ServerFromConfig(const std::string& path) {
  PosixFileSystem files;
  if (path.empty() || !files.Stat(path).ok()) return "";
  absl::StatusOr<std::string> text = files.ReadFile(path, 1 << 20);
  if (!text.ok()) return text.status();
  if (text->empty()) return "";
  const engine::spec::YamlTree tree = engine::spec::ParseYamlOrJson(*text, path);
  if (!tree.faults.empty()) return engine::spec::FaultsToStatus(tree.faults, path);
  std::string server;
  for (const auto& [key, value] : tree.root.entries) {
    if (key.value != "server") {
      return absl::InvalidArgumentError(
          absl::StrCat(engine::spec::LocationText(path, key), ": ", key.value, ": unknown key; known here: server"));
    }
    server = value.value;
  }
  return server;
}

}  // namespace

absl::StatusOr<std::string> ServerAddress(const std::string& flag, const Environment& environment) {
  if (!flag.empty()) return flag;
  if (const std::string variable = environment.Variable("SLIPWAY_SERVER"); !variable.empty()) return variable;
  absl::StatusOr<std::string> configured = ServerFromConfig(ConfigPath(environment));
  if (!configured.ok() || !configured->empty()) return configured;
  return kDefaultServer;
}

std::string AbsolutePath(const std::string& path, const std::string& directory, const Environment& environment) {
  std::filesystem::path result = path;
  const std::string home = environment.Variable("HOME");
  if ((path == "~" || absl::StartsWith(path, "~/")) && !home.empty()) {
    result = absl::StrCat(home, path.substr(1));
  } else if (result.is_relative()) {
    result = std::filesystem::path(directory) / result;
  }
  result = result.lexically_normal();
  // lexically_normal leaves "/a/b/" for "/a/b/."
  std::string text = result.string();
  if (text.size() > 1 && text.back() == '/') text.pop_back();
  return text;
}

}  // namespace slipway::client
