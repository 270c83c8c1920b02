#include "engine/comm/rendezvous.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slipway::engine::comm {
namespace {

using StoreOr = absl::StatusOr<c10::intrusive_ptr<c10d::Store>>;

std::string RankKey(int rank) { return absl::StrCat("rank/", rank); }

c10::intrusive_ptr<c10d::Store> Connect(const RendezvousOptions& options) {
  c10d::TCPStoreOptions store_options;
  store_options.isServer = options.rank == 0;
  store_options.port = options.port;
  store_options.waitWorkers = false;
  store_options.timeout = absl::ToChronoMilliseconds(options.timeout);
  if (options.rank == 0 && options.listen_fd >= 0) store_options.masterListenFd = options.listen_fd;
  auto store = c10::make_intrusive<c10d::TCPStore>(options.host, store_options);
  return c10::make_intrusive<c10d::PrefixStore>(options.prefix, std::move(store));
}

// Announces this rank and waits for the others; names those that do not come.
absl::Status Meet(const RendezvousOptions& options, c10d::Store& store) {
  store.set(RankKey(options.rank), std::vector<uint8_t>{1});
  const auto deadline = std::chrono::steady_clock::now() + absl::ToChronoMilliseconds(options.timeout);
  for (;;) {
    std::vector<int> missing;
    for (int rank = 0; rank < options.world; ++rank) {
      if (!store.check({RankKey(rank)})) missing.push_back(rank);
    }
    if (missing.empty()) return absl::OkStatus();
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("ranks ", absl::StrJoin(missing, " "), " of ", options.world,
                                                      " did not come within ", absl::FormatDuration(options.timeout)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

StoreOr ConnectAndMeet(const RendezvousOptions& options) {
  try {
    c10::intrusive_ptr<c10d::Store> store = Connect(options);
    if (absl::Status status = Meet(options, *store); !status.ok()) return status;
    return store;
  } catch (const c10::Error& error) {
    return absl::UnavailableError(error.what_without_backtrace());
  } catch (const std::exception& error) {
    return absl::UnavailableError(error.what());
  }
}

// Shared with the connecting thread, which may outlive the call.
struct Attempt {
  std::mutex mutex;
  std::condition_variable done;
  std::optional<StoreOr> result;
};

StoreOr UnderWatchdog(const RendezvousOptions& options) {
  auto attempt = std::make_shared<Attempt>();
  std::thread([attempt, options] {
    StoreOr result = ConnectAndMeet(options);
    std::lock_guard lock(attempt->mutex);
    attempt->result = std::move(result);
    attempt->done.notify_all();
  }).detach();
  std::unique_lock lock(attempt->mutex);
  const auto patience = absl::ToChronoMilliseconds(options.timeout * 1.5 + absl::Seconds(2));
  if (!attempt->done.wait_for(lock, patience, [&] { return attempt->result.has_value(); })) {
    return absl::DeadlineExceededError("the address answers, but nobody serves it");
  }
  return *std::move(attempt->result);
}

absl::Status Validate(const RendezvousOptions& options) {
  if (options.world < 1 || options.rank < 0 || options.rank >= options.world) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", options.rank, " is not in a world of ", options.world));
  }
  if (options.port == 0 && !(options.rank == 0 && options.listen_fd >= 0)) {
    return absl::InvalidArgumentError("port is 0 and no listening socket was passed");
  }
  if (options.prefix.empty()) return absl::InvalidArgumentError("prefix is empty");
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("timeout is ", absl::FormatDuration(options.timeout)));
  }
  return absl::OkStatus();
}

}  // namespace

ProcessRendezvous::ProcessRendezvous(RendezvousOptions options, c10::intrusive_ptr<c10d::Store> store)
    : options_(std::move(options)), store_(std::move(store)) {}

absl::StatusOr<std::unique_ptr<ProcessRendezvous>> ProcessRendezvous::Create(const RendezvousOptions& options) {
  const std::string where =
      absl::StrCat("rendezvous of rank ", options.rank, " at ", options.host, ":", options.port, ": ");
  if (absl::Status status = Validate(options); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(where, status.message()));
  }
  StoreOr store = UnderWatchdog(options);
  if (!store.ok()) return absl::Status(store.status().code(), absl::StrCat(where, store.status().message()));
  return std::unique_ptr<ProcessRendezvous>(new ProcessRendezvous(options, *std::move(store)));
}

}  // namespace slipway::engine::comm
