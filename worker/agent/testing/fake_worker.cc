// slipway-fake-worker: stands in for slipway-worker in tests of the shim, the agent and the coordinator. It takes the
// same command lines and does what a script says, on its rank's real files and line to the agent.
//
//   slipway-fake-worker run --launch FILE         the script in $FAKE_WORKER_R<rank>, else in $FAKE_WORKER, else
//   "train" slipway-fake-worker preflight --launch FILE   the script in $FAKE_PREFLIGHT, else "pass"
//   slipway-fake-worker script TEXT               no launch file: only commands that need none
//
// A script is a list of commands separated by ';':
//   print TEXT        to stdout, with \n, \xHH and \0 as in C; no newline is added
//   spam N            N bytes on one line
//   env NAME          prints NAME=value
//   sleep MS | hang   hang ignores SIGTERM
//   kill SIGNAL       this process
//   exit CODE         without an outcome
//   orphan SECONDS    leaves a child process behind, in its own session
//   phase NAME | ready STEP | step N | commit STEP
//   collective GROUP OPERATION SEQUENCE
//   fault CLASS TEXT  outcome FAULT with the number of a CauseClass; exit code 1
//   complete | stop   outcome COMPLETED or STOPPED; exit code 0
//   linger            says COMPLETED and does not leave
//   serve             rank 0: accepts one connection on the rendezvous socket
//   train [MS]        steps of MS milliseconds (10) up to training.train_iters (20); obeys stop, SIGTERM and
//                     checkpoint requests, commits at the end
//   wait-stop         until the agent or a SIGTERM asks to stop
//   pass | refuse TEXT  preflight results
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/clock.h"
#include "common/posix_file_system.h"
#include "worker/link/collective_board.h"
#include "worker/link/rank_files.h"
#include "worker/link/worker_link.h"

namespace slipway::worker::agent {
namespace {

std::atomic<bool> terminated = false;

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "slipway-fake-worker: %s\n", message.c_str());
  ::_exit(3);
}

void WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n <= 0) Die("cannot write");
    text.remove_prefix(static_cast<size_t>(n));
  }
}

int64_t Number(const std::string& text, int64_t otherwise = -1) {
  int64_t value = otherwise;
  if (!text.empty() && !absl::SimpleAtoi(text, &value)) Die(absl::StrCat("not a number: ", text));
  return value;
}

class FakeWorker {
 public:
  explicit FakeWorker(slipway::worker::v1::WorkerLaunch launch) : launch_(std::move(launch)) {}

  void Connect() {
    link_ = std::make_unique<link::WorkerLink>(link::WorkerLink::OptionsFrom(launch_), clock_, files_);
    auto board = link::CollectiveBoard::Create(JoinPath(launch_.state_dir(), link::kCollectiveFile));
    if (!board.ok()) Die(board.status().ToString());
    board_ = *std::move(board);
  }

  void Run(const std::string& script) {
    for (const absl::string_view part : absl::StrSplit(script, ';')) {
      const std::string command(absl::StripLeadingAsciiWhitespace(part));
      const std::pair<std::string, std::string> words = absl::StrSplit(command, absl::MaxSplits(' ', 1));
      Do(words.first, words.second);
    }
  }

 private:
  void Do(const std::string& verb, const std::string& rest) {
    const std::vector<std::string> words = absl::StrSplit(rest, ' ');
    if (verb == "print") {
      std::string text;
      if (!absl::CUnescape(rest, &text)) Die(absl::StrCat("bad escape in ", rest));
      WriteAll(STDOUT_FILENO, text);
    } else if (verb == "spam") {
      WriteAll(STDOUT_FILENO, std::string(static_cast<size_t>(Number(rest)), 's'));
    } else if (verb == "env") {
      const char* value = std::getenv(rest.c_str());
      WriteAll(STDOUT_FILENO, absl::StrCat(rest, "=", value == nullptr ? "(unset)" : value, "\n"));
    } else if (verb == "sleep") {
      absl::SleepFor(absl::Milliseconds(Number(rest)));
    } else if (verb == "hang") {
      ::signal(SIGTERM, SIG_IGN);
      while (true) ::pause();
    } else if (verb == "kill") {
      ::signal(static_cast<int>(Number(rest)), SIG_DFL);  // a sanitizer may have a handler
      ::kill(::getpid(), static_cast<int>(Number(rest)));
      while (true) ::pause();
    } else if (verb == "exit") {
      ::_exit(static_cast<int>(Number(rest)));
    } else if (verb == "orphan") {
      LeaveOrphan(Number(rest));
    } else if (verb == "serve") {
      if (::accept(launch_.rendezvous_fd(), nullptr, nullptr) < 0) Die("cannot accept");
    } else if (verb == "pass" || verb == "refuse") {
      slipway::v1::PreflightResult result;
      result.set_ok(verb == "pass");
      result.mutable_dataset()->set_samples(12);
      if (verb == "refuse") result.add_faults()->set_message(rest);
      if (!link::WritePreflightResult(files_, launch_.state_dir(), result).ok()) Die("cannot write the result");
    } else if (!verb.empty()) {
      DoOnLine(verb, rest, words);
    }
  }

  void DoOnLine(const std::string& verb, const std::string& rest, const std::vector<std::string>& words) {
    if (link_ == nullptr) Die(absl::StrCat("unknown command, or one that needs a launch file: ", verb));
    if (verb == "phase") {
      link_->SetPhase(rest);
      board_->SetPhase(rest);
    } else if (verb == "ready") {
      link_->SetReady(Number(rest), Number(rest) > 0, launch_.epoch() - 1, "fake-hash");
    } else if (verb == "step") {
      Step(Number(rest));
    } else if (verb == "commit") {
      Commit(Number(rest), 0);
    } else if (verb == "collective") {
      board_->Begin(words.at(0), words.at(1), Number(words.at(2)));
    } else if (verb == "fault") {
      slipway::v1::Cause cause;
      cause.set_cause_class(static_cast<slipway::v1::CauseClass>(Number(words.at(0))));
      cause.set_message(rest.substr(words.at(0).size() + 1));
      Leave(slipway::v1::RANK_OUTCOME_FAULT, cause, 1);
    } else if (verb == "complete") {
      Leave(slipway::v1::RANK_OUTCOME_COMPLETED, {}, 0);
    } else if (verb == "stop") {
      Leave(slipway::v1::RANK_OUTCOME_STOPPED, {}, 0);
    } else if (verb == "linger") {
      SayOutcome(slipway::v1::RANK_OUTCOME_COMPLETED, {});
      while (true) ::pause();
    } else if (verb == "train") {
      Train(absl::Milliseconds(Number(rest, 10)));
    } else if (verb == "wait-stop") {
      while (!StopAsked()) absl::SleepFor(absl::Milliseconds(5));
    } else {
      Die(absl::StrCat("unknown command: ", verb));
    }
  }

  bool StopAsked() const { return terminated || link_->stop_requested() || link_->lease_expired(); }

  void Step(int64_t step) {
    step_ = step;
    board_->SetStep(step);
    link_->SetStep(step);
    if (launch_.rank() != 0) return;
    slipway::v1::MetricRecord record;
    record.mutable_step()->set_step(step);
    record.mutable_step()->set_loss(1.0 / static_cast<double>(step));
    record.mutable_step()->set_epoch(launch_.epoch());
    link_->AddMetrics(std::move(record));
  }

  void Commit(int64_t step, int64_t request) {
    slipway::v1::Checkpoint checkpoint;
    checkpoint.set_job_id(launch_.job_id());
    checkpoint.set_epoch(launch_.epoch());
    checkpoint.set_step(step);
    checkpoint.set_request_number(request);
    checkpoint.set_state(slipway::v1::CHECKPOINT_STATE_COMMITTED);
    checkpoint.set_path(absl::StrCat(launch_.checkpoint_dir(), "/step-", step, "-e", launch_.epoch()));
    link_->AddCommitted(std::move(checkpoint));
  }

  void Train(absl::Duration step_time) {
    const auto& training = launch_.spec().training();
    const int64_t last = training.has_train_iters() ? training.train_iters() : 20;
    // Every epoch starts where the lineage says the one before it was durable.
    const int64_t start = launch_.lineage_size() == 0 ? 0 : launch_.lineage(launch_.lineage_size() - 1).from_step();
    link_->SetReady(start, start > 0, launch_.epoch() - 1, "fake-hash");
    int64_t requests = link_->checkpoint_requests();
    for (int64_t step = start + 1; step <= last; ++step) {
      absl::SleepFor(step_time);
      Step(step);
      if (launch_.rank() == 0 && link_->checkpoint_requests() > requests) {
        requests = link_->checkpoint_requests();
        Commit(step, requests);
      }
      if (StopAsked()) {
        if (launch_.rank() == 0) Commit(step, 0);
        Leave(slipway::v1::RANK_OUTCOME_STOPPED, {}, 0);
      }
    }
    if (launch_.rank() == 0) Commit(last, 0);
    Leave(slipway::v1::RANK_OUTCOME_COMPLETED, {}, 0);
  }

  void SayOutcome(slipway::v1::RankOutcome outcome, const slipway::v1::Cause& cause) {
    link_->SetOutcome(outcome, cause);
    slipway::worker::v1::WorkerOutcome file;
    file.set_outcome(outcome);
    *file.mutable_cause() = cause;
    file.set_step(step_);
    if (!link::WriteOutcome(files_, launch_.state_dir(), file).ok()) Die("cannot write the outcome");
    link_->WaitUntilSent(absl::Seconds(2));
  }

  [[noreturn]] void Leave(slipway::v1::RankOutcome outcome, const slipway::v1::Cause& cause, int code) {
    SayOutcome(outcome, cause);
    ::_exit(code);
  }

  static void LeaveOrphan(int64_t seconds) {
    if (::fork() != 0) return;
    ::setsid();
    ::sleep(static_cast<unsigned>(seconds));
    ::_exit(0);
  }

  const slipway::worker::v1::WorkerLaunch launch_;
  RealClock clock_;
  PosixFileSystem files_;
  int64_t step_ = 0;
  std::unique_ptr<link::CollectiveBoard> board_;
  std::unique_ptr<link::WorkerLink> link_;
};

std::string ScriptFrom(const std::vector<std::string>& names, const std::string& otherwise) {
  for (const std::string& name : names) {
    if (const char* script = std::getenv(name.c_str()); script != nullptr) return script;
  }
  return otherwise;
}

int Main(const std::vector<std::string>& args) {
  struct sigaction action = {};
  action.sa_handler = [](int) { terminated = true; };
  ::sigaction(SIGTERM, &action, nullptr);
  if (args.size() == 3 && args[1] == "script") {
    FakeWorker({}).Run(args[2]);
    return 0;
  }
  if (args.size() != 4 || args[2] != "--launch") Die("usage: run|preflight --launch FILE, or script TEXT");
  PosixFileSystem files;
  auto launch = link::ReadLaunch(files, args[3]);
  if (!launch.ok()) Die(launch.status().ToString());
  FakeWorker worker(*launch);
  if (args[1] == "preflight") {
    worker.Run(ScriptFrom({"FAKE_PREFLIGHT"}, "pass"));
    return 0;
  }
  worker.Connect();
  worker.Run(ScriptFrom({absl::StrCat("FAKE_WORKER_R", launch->rank()), "FAKE_WORKER"}, "train"));
  return 0;
}

}  // namespace
}  // namespace slipway::worker::agent

int main(int argc, char** argv) { return slipway::worker::agent::Main(std::vector<std::string>(argv, argv + argc)); }
