#include "worker/agent/rendezvous.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/file_system.h"
#include "common/status_macros.h"

namespace slipway::worker::agent {
namespace {

constexpr int kBacklog = 4096;  // every rank of a job may connect before the store is served

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

absl::StatusOr<AddressList> Resolve(const std::string& host, const std::string& port, int flags, int type) {
  addrinfo hints = {};
  hints.ai_flags = flags;
  hints.ai_socktype = type;
  addrinfo* found = nullptr;
  if (const int error = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found); error != 0) {
    return absl::UnavailableError(absl::StrCat("resolving ", host, ": ", ::gai_strerror(error)));
  }
  return AddressList(found, &::freeaddrinfo);
}

struct HostPort {
  std::string host;
  std::string port;
};

absl::StatusOr<HostPort> Split(absl::string_view target) {
  for (const char* scheme : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&target, scheme)) break;
  }
  const size_t colon = target.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", target, "\" is not HOST:PORT"));
  }
  HostPort result{std::string(target.substr(0, colon)), std::string(target.substr(colon + 1))};
  if (result.host.front() == '[' && result.host.back() == ']')
    result.host = result.host.substr(1, result.host.size() - 2);
  return result;
}

absl::StatusOr<std::string> NumericText(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host;
  const int error = ::getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(), nullptr,
                                  0, NI_NUMERICHOST);
  if (error != 0) return absl::InternalError(absl::StrCat("writing an address: ", ::gai_strerror(error)));
  return std::string(host.data());
}

uint16_t PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

absl::StatusOr<Rendezvous> BindRendezvous(const std::string& ip) {
  SLIPWAY_ASSIGN_OR_RETURN(const AddressList list, Resolve(ip, "0", AI_NUMERICHOST | AI_PASSIVE, SOCK_STREAM));
  Rendezvous result;
  result.listener.reset(::socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!result.listener.valid() || ::bind(result.listener.get(), list->ai_addr, list->ai_addrlen) != 0 ||
      ::listen(result.listener.get(), kBacklog) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("binding the rendezvous socket to ", ip));
  }
  sockaddr_storage bound = {};
  socklen_t size = sizeof(bound);
  if (::getsockname(result.listener.get(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    return ErrnoToStatus(errno, "reading the rendezvous socket's address");
  }
  SLIPWAY_ASSIGN_OR_RETURN(const std::string host, NumericText(bound, size));
  result.address = bound.ss_family == AF_INET6 ? absl::StrCat("[", host, "]:", PortOf(bound))
                                               : absl::StrCat(host, ":", PortOf(bound));
  return result;
}

absl::StatusOr<std::string> AddressFacing(const std::string& target) {
  if (absl::StartsWith(target, "unix:")) return std::string("127.0.0.1");
  SLIPWAY_ASSIGN_OR_RETURN(const HostPort where, Split(target));
  SLIPWAY_ASSIGN_OR_RETURN(const AddressList list, Resolve(where.host, where.port, 0, SOCK_DGRAM));
  absl::Status status = absl::UnavailableError(absl::StrCat("no address of ", where.host, " can be reached"));
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    // Connecting a datagram socket sends nothing; it only asks the routing table.
    const UniqueFd probe(::socket(entry->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own = {};
    socklen_t size = sizeof(own);
    if (!probe.valid() || ::connect(probe.get(), entry->ai_addr, entry->ai_addrlen) != 0 ||
        ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      status = ErrnoToStatus(errno, absl::StrCat("finding the way to ", target));
      continue;
    }
    return NumericText(own, size);
  }
  return status;
}

}  // namespace slipway::worker::agent
