// The program `slipway`: parses arguments, runs one command, returns its exit code (exit_code.h). Data goes to
// environment.out, messages to environment.err.
#ifndef SLIPWAY_CLIENT_CLI_H_
#define SLIPWAY_CLIENT_CLI_H_

#include <string>
#include <vector>

#include "client/environment.h"

namespace slipway::client {

// `arguments` without the program's name.
int RunCli(const std::vector<std::string>& arguments, const Environment& environment);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_CLI_H_
