// Unix stream sockets by path. Paths may be longer than sockaddr_un holds (108 bytes): they are reached through their
// directory's descriptor. All sockets are non-blocking and close-on-exec. Thread-safe: no state.
#ifndef SLIPWAY_WORKER_LINK_UNIX_SOCKET_H_
#define SLIPWAY_WORKER_LINK_UNIX_SOCKET_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/unique_fd.h"

namespace slipway::worker::link {

// Replaces a socket that a dead process left at `path`; the caller knows by its lock that no living one serves it. Mode
// 0600: only this user connects.
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path);

// Unavailable while nobody serves the path.
absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path);

// A waiting connection; NotFound when there is none; PermissionDenied when it comes from another user.
absl::StatusOr<UniqueFd> AcceptUnix(int listener);

}  // namespace slipway::worker::link

#endif  // SLIPWAY_WORKER_LINK_UNIX_SOCKET_H_
