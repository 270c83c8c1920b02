// What a run of `slipway` finds around itself, as plain data, so that commands can be tested without a terminal.
#ifndef SLIPWAY_CLIENT_ENVIRONMENT_H_
#define SLIPWAY_CLIENT_ENVIRONMENT_H_

#include <functional>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace slipway::client {

struct Environment {
  std::ostream* out = nullptr;  // data
  std::ostream* err = nullptr;  // messages
  bool out_is_terminal = false;
  bool err_is_terminal = false;
  std::function<int()> terminal_width = [] { return 80; };
  std::string working_directory = "/";
  std::string binary_directory;  // where slipway-worker lies as well
  std::map<std::string, std::string> variables;
  std::function<bool()> interrupted = [] { return false; };  // Ctrl-C was pressed
  // Nobody reads `out` any more (`| head -1`). May be asked on any thread, as `interrupted` may.
  std::function<bool()> reader_gone = [] { return false; };
  // Replaces this process by another program; returns only on an error (a test's may return an exit code).
  std::function<absl::StatusOr<int>(const std::vector<std::string>& argv)> exec;

  std::string Variable(const std::string& name) const {
    const auto found = variables.find(name);
    return found == variables.end() ? "" : found->second;
  }
};

// --server, else SLIPWAY_SERVER, else `server:` in $XDG_CONFIG_HOME/slipway/config.yaml, else 127.0.0.1:7670.
// InvalidArgument for a configuration file that cannot be read or has unknown keys.
absl::StatusOr<std::string> ServerAddress(const std::string& flag, const Environment& environment);

// An absolute path as it is, "~/x" below HOME, else relative to `directory`; "." and ".." resolved by name.
std::string AbsolutePath(const std::string& path, const std::string& directory, const Environment& environment);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_ENVIRONMENT_H_
