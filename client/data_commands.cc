// data prepare|inspect.
#include "client/command.h"

namespace slipway::client {

void AddDataCommands(CLI::App*, Command*) {}

}  // namespace slipway::client
