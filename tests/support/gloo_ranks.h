// Rank processes that meet over loopback and talk through Gloo (see rank_process.h).
//
//   SLIPWAY_RANK_BODY(Body) {
//     return WithGroups(rank, absl::Seconds(20), [&](const ProcessRendezvous&, GroupFactory& factory) { ...; return 0;
//     });
//   }
//   TEST(...) {
//     ListeningSocket socket = Listen();
//     RankProcesses ranks("Body", 2, socket.Argument());
//     socket.fd.reset();
#ifndef SLIPWAY_TESTS_SUPPORT_GLOO_RANKS_H_
#define SLIPWAY_TESTS_SUPPORT_GLOO_RANKS_H_

#include <ATen/Parallel.h>
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/unique_fd.h"
#include "engine/comm/backend_communicator.h"
#include "tests/support/rank_process.h"

namespace slipway::testing {

// A bound and listening socket of this machine, inherited by the ranks: rank 0 serves it, as an agent would have it.
struct ListeningSocket {
  UniqueFd fd;
  uint16_t port = 0;

  // For RankProcesses; more may follow after another ':'.
  std::string Argument() const { return absl::StrCat(fd.get(), ":", port); }
};

inline ListeningSocket Listen() {
  ListeningSocket result;
  result.fd = UniqueFd(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::bind(result.fd.get(), generic, length) != 0 || ::listen(result.fd.get(), 64) != 0 ||
      ::getsockname(result.fd.get(), generic, &length) != 0) {
    ADD_FAILURE() << "no socket on loopback";
  }
  result.port = ntohs(address.sin_port);
  return result;
}

inline std::vector<int> Everybody(int world) {
  std::vector<int> ranks(world);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

using GroupWork =
    std::function<int(const engine::comm::ProcessRendezvous& rendezvous, engine::comm::GroupFactory& factory)>;

// Runs a body's work; what went wrong goes to stderr. Exit codes: the work's; 3 to 6 no rendezvous; 7 a CommError.
// `backend` as BackendGroupFactory::Create has it.
inline int WithGroups(const RankContext& rank, const engine::comm::BackendOptions& backend, const GroupWork& work) {
  using engine::comm::CommError;
  at::set_num_threads(1);
  const std::vector<std::string> parts = absl::StrSplit(rank.argument, ':');
  engine::comm::RendezvousOptions options{
      .rank = rank.rank, .world = rank.world, .prefix = "test/1/a", .timeout = absl::Seconds(30)};
  int fd = -1, port = 0;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[0], &fd) || !absl::SimpleAtoi(parts[1], &port)) return 3;
  options.port = static_cast<uint16_t>(port);
  if (rank.rank == 0) {
    options.listen_fd = fd;
  } else {
    ::close(fd);
  }
  auto rendezvous = engine::comm::ProcessRendezvous::Create(options);
  if (!rendezvous.ok()) {
    std::cerr << rendezvous.status() << "\n";
    return 4;
  }
  auto factory = engine::comm::BackendGroupFactory::Create(**rendezvous, "train", backend);
  if (!factory.ok()) {
    std::cerr << factory.status() << "\n";
    return 5;
  }
  int code = 6;
  try {
    code = work(**rendezvous, **factory);
  } catch (const CommError& error) {
    std::cerr << (error.cause() == CommError::Cause::kTimeout ? "timeout: " : "failed: ") << error.what() << std::endl;
    ::_exit(7);  // groups with dead peers are not worth closing
  }
  // Rank 0 serves the store: it goes last.
  (*rendezvous)->store()->add("done", 1);
  while (rank.rank == 0 && (*rendezvous)->store()->add("done", 0) < rank.world) ::usleep(1000);
  return code;
}

inline int WithGroups(const RankContext& rank, absl::Duration timeout, const GroupWork& work) {
  return WithGroups(rank, {.interface = "lo", .timeout = timeout}, work);
}

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_GLOO_RANKS_H_
