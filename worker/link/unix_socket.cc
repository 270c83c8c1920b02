#include "worker/link/unix_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/file_system.h"
#include "common/status_macros.h"

namespace slipway::worker::link {
namespace {

struct Address {
  sockaddr_un value = {};
  UniqueFd directory;  // keeps /proc/self/fd/N alive while the address is used
};

absl::StatusOr<Address> MakeAddress(const std::string& path) {
  Address address;
  address.value.sun_family = AF_UNIX;
  std::string text = path;
  if (text.size() >= sizeof(address.value.sun_path)) {
    const std::string directory = DirName(path);
    address.directory.reset(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (!address.directory.valid()) return ErrnoToStatus(errno, absl::StrCat("opening ", directory));
    text = absl::StrCat("/proc/self/fd/", address.directory.get(), "/", BaseName(path));
    if (text.size() >= sizeof(address.value.sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("the socket's file name is too long: ", path));
    }
  }
  std::memcpy(address.value.sun_path, text.c_str(), text.size() + 1);
  return address;
}

absl::StatusOr<UniqueFd> NewSocket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoToStatus(errno, "making a Unix socket");
  return fd;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path) {
  SLIPWAY_ASSIGN_OR_RETURN(Address address, MakeAddress(path));
  SLIPWAY_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return ErrnoToStatus(errno, absl::StrCat("removing ", path));
  // Before bind, the mode of a socket's descriptor is the mode of the file that bind makes.
  if (::fchmod(fd.get(), 0600) != 0 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.value), sizeof(address.value)) != 0 ||
      ::listen(fd.get(), 128) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("listening on ", path));
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectUnix(const std::string& path) {
  SLIPWAY_ASSIGN_OR_RETURN(Address address, MakeAddress(path));
  SLIPWAY_ASSIGN_OR_RETURN(UniqueFd fd, NewSocket());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.value), sizeof(address.value)) != 0) {
    // A full backlog gives EAGAIN: like a missing listener, it passes.
    const std::string context = absl::StrCat("connecting to ", path);
    if (errno == ENOENT || errno == ECONNREFUSED || errno == EAGAIN) {
      return absl::UnavailableError(absl::StrCat(context, ": ", std::strerror(errno)));
    }
    return ErrnoToStatus(errno, context);
  }
  return fd;
}

absl::StatusOr<UniqueFd> AcceptUnix(int listener) {
  UniqueFd fd(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return absl::NotFoundError("no connection waits");
    return ErrnoToStatus(errno, "accepting a connection");
  }
  ucred peer = {};
  socklen_t size = sizeof(peer);
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
    return ErrnoToStatus(errno, "reading the peer's credentials");
  }
  if (peer.uid != ::geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat("process ", peer.pid, " of user ", peer.uid, " may not connect"));
  }
  return fd;
}

}  // namespace slipway::worker::link
