// Tests of several processes: the test binary starts itself once for each rank. A rank process runs a body instead of
// the tests (test_main.cc asks RunAsRank first), so nothing of torch or gRPC has started before the exec.
//
//   SLIPWAY_RANK_BODY(SumBody) { return Sum(rank.rank, rank.world, rank.argument) ? 0 : 1; }
//   TEST(Gloo, Sums) {
//     RankProcesses ranks("SumBody", 2, argument);
//     for (const RankExit& exit : ranks.WaitAll(std::chrono::seconds(30))) EXPECT_EQ(exit.code, 0) << exit.output;
//   }
//
// The destructor kills and reaps what still runs. A rank dies with the test.
#ifndef SLIPWAY_TESTS_SUPPORT_RANK_PROCESS_H_
#define SLIPWAY_TESTS_SUPPORT_RANK_PROCESS_H_

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace slipway::testing {

struct RankContext {
  int rank = 0;
  int world = 1;
  std::string argument;
};
using RankBody = int (*)(const RankContext& rank);

inline std::map<std::string, RankBody>& RankBodies() {
  static std::map<std::string, RankBody> bodies;
  return bodies;
}

struct RankBodyRegistration {
  RankBodyRegistration(const char* name, RankBody body) { RankBodies()[name] = body; }
};

#define SLIPWAY_RANK_BODY(name)                                                            \
  static int name(const ::slipway::testing::RankContext& rank);                            \
  static const ::slipway::testing::RankBodyRegistration name##_registration(#name, &name); \
  static int name([[maybe_unused]] const ::slipway::testing::RankContext& rank)

inline constexpr char kRankFlag[] = "--slipway-rank";

// The exit code of the body when this process was started as a rank.
inline std::optional<int> RunAsRank(int argc, char** argv) {
  if (argc != 6 || std::string(argv[1]) != kRankFlag) return std::nullopt;
  const auto body = RankBodies().find(argv[2]);
  if (body == RankBodies().end()) {
    std::fprintf(stderr, "no rank body %s\n", argv[2]);
    return 127;
  }
  return body->second({std::atoi(argv[3]), std::atoi(argv[4]), argv[5]});
}

struct RankExit {
  bool exited = false;  // false: killed by a signal, or still running at the deadline
  int code = -1;        // of exit, or the signal
  bool timed_out = false;
  std::string output;  // stdout and stderr
};

class RankProcesses {
 public:
  RankProcesses(const std::string& body, int world, const std::string& argument) {
    for (int rank = 0; rank < world; ++rank) Start(body, rank, world, argument);
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;
  ~RankProcesses() {
    for (Process& process : processes_) {
      if (!process.reaped) {
        ::kill(process.pid, SIGKILL);
        ::waitpid(process.pid, nullptr, 0);
      }
      ::close(process.output);
    }
  }

  pid_t pid(int rank) const { return processes_[rank].pid; }
  void Kill(int rank, int signal = SIGKILL) { ::kill(processes_[rank].pid, signal); }
  std::string Output(int rank) const { return ReadAll(processes_[rank].output); }

  RankExit WaitFor(int rank, std::chrono::milliseconds patience) {
    return Wait(processes_[rank], std::chrono::steady_clock::now() + patience);
  }
  // Waits until all have ended or the deadline has passed; what runs then is killed and marked.
  std::vector<RankExit> WaitAll(std::chrono::milliseconds patience) {
    const auto deadline = std::chrono::steady_clock::now() + patience;
    std::vector<RankExit> exits;
    for (Process& process : processes_) exits.push_back(Wait(process, deadline));
    return exits;
  }

 private:
  struct Process {
    pid_t pid = -1;
    int output = -1;  // an unnamed file
    bool reaped = false;
  };

  void Start(const std::string& body, int rank, int world, const std::string& argument) {
    const std::string rank_text = std::to_string(rank);
    const std::string world_text = std::to_string(world);
    const char* args[] = {"rank",           kRankFlag, body.c_str(), rank_text.c_str(), world_text.c_str(),
                          argument.c_str(), nullptr};
    Process process;
    process.output = ::open("/tmp", O_TMPFILE | O_RDWR, 0600);
    const pid_t parent = ::getpid();
    process.pid = ::fork();
    if (process.pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(126);
      ::dup2(process.output, STDOUT_FILENO);
      ::dup2(process.output, STDERR_FILENO);
      ::execv("/proc/self/exe", const_cast<char* const*>(args));
      ::_exit(125);
    }
    processes_.push_back(process);
  }

  static RankExit Wait(Process& process, std::chrono::steady_clock::time_point deadline) {
    RankExit exit;
    int status = 0;
    while (::waitpid(process.pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > deadline) {
        exit.timed_out = true;
        ::kill(process.pid, SIGKILL);
        ::waitpid(process.pid, &status, 0);
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    process.reaped = true;
    exit.exited = WIFEXITED(status) && !exit.timed_out;
    exit.code = WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status);
    exit.output = ReadAll(process.output);
    return exit;
  }

  static std::string ReadAll(int fd) {
    std::string text;
    char buffer[4096];
    ssize_t got;
    while ((got = ::pread(fd, buffer, sizeof(buffer), static_cast<off_t>(text.size()))) > 0) text.append(buffer, got);
    return text;
  }

  std::vector<Process> processes_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_RANK_PROCESS_H_
