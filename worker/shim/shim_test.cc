// The real slipway-shim around slipway-fake-worker.
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/posix_file_system.h"
#include "common/subprocess.h"
#include "common/unique_fd.h"
#include "tests/support/processes.h"
#include "tests/support/status_matchers.h"
#include "worker/link/rank_files.h"

namespace slipway::worker::shim {
namespace {

using ::slipway::testing::BinaryPath;
using ::slipway::testing::Eventually;
using ::slipway::testing::ProcessesMentioning;
using ::slipway::worker::v1::ExitRecord;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kDeadline = absl::Seconds(30);

class ShimTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static int number = 0;
    directory_ = absl::StrCat(::testing::TempDir(), "shim_", ::getpid(), "_", ++number);
    log_ = directory_ + "/out/rank0.log";
    ASSERT_OK(files_.MakeDirectories(directory_ + "/state"));
  }
  void TearDown() override {
    EXPECT_TRUE(Eventually([&] { return ProcessesMentioning(directory_).empty(); }))
        << ::testing::PrintToString(ProcessesMentioning(directory_));
    std::filesystem::remove_all(directory_);
  }

  // The last argument of the script's command line mentions the directory, so that left-over processes are found.
  Subprocess StartScript(const std::string& script, std::vector<std::string> flags = {}) {
    return Start({BinaryPath("slipway-fake-worker"), "script", absl::StrCat(script, ";", "env ", directory_)}, flags);
  }

  Subprocess Start(const std::vector<std::string>& command, std::vector<std::string> flags = {},
                   std::vector<PassedFd> fds = {}) {
    std::vector<std::string> argv = {BinaryPath("slipway-shim"), "--state-dir", state(), "--log", log_};
    argv.insert(argv.end(), flags.begin(), flags.end());
    argv.push_back("--");
    argv.insert(argv.end(), command.begin(), command.end());
    absl::StatusOr<Subprocess> shim = Subprocess::Spawn({.argv = argv, .passed_fds = fds});
    EXPECT_OK(shim);
    return *shim;
  }

  ExitRecord RecordOf(Subprocess& shim) {
    absl::StatusOr<ExitStatus> status = shim.Wait(kDeadline);
    EXPECT_OK(status);
    if (!status.ok()) (void)shim.Signal(SIGKILL);
    EXPECT_TRUE(status.ok() && status->success());
    absl::StatusOr<ExitRecord> record = link::ReadExitRecord(files_, state());
    EXPECT_OK(record);
    return record.value_or(ExitRecord());
  }

  std::string state() const { return directory_ + "/state"; }
  std::string Log() { return files_.ReadFile(log_).value_or("(missing)"); }

  PosixFileSystem files_;
  std::string directory_, log_;
};

TEST_F(ShimTest, OutputIsKeptAsPrintedWhenTheWorkerKillsItself) {
  // A last line without its end, bytes that are not UTF-8, and a very long line.
  Subprocess shim = StartScript(R"(print first\n\xff\xfe\0;spam 1048576;print \nno end;kill 9)");
  const ExitRecord record = RecordOf(shim);
  EXPECT_TRUE(record.signalled());
  EXPECT_EQ(record.signal(), 9);
  EXPECT_FALSE(record.exited());
  EXPECT_GT(record.unix_time_nanos(), 0);
  EXPECT_EQ(Log(), std::string("first\n\xff\xfe\0", 9) + std::string(1048576, 's') + "\nno end");
}

TEST_F(ShimTest, ExitCodesAndAbortsAreRecorded) {
  Subprocess shim = StartScript("print x;exit 42");
  const ExitRecord record = RecordOf(shim);
  EXPECT_TRUE(record.exited());
  EXPECT_EQ(record.exit_code(), 42);
  EXPECT_EQ(Log(), "x");
}

TEST_F(ShimTest, TheWorkersOwnWordIsInTheRecord) {
  slipway::worker::v1::WorkerOutcome outcome;
  outcome.set_outcome(slipway::v1::RANK_OUTCOME_FAULT);
  outcome.mutable_cause()->set_message("loss is NaN");
  ASSERT_OK(link::WriteOutcome(files_, state(), outcome));
  Subprocess shim = StartScript("exit 1");
  const ExitRecord record = RecordOf(shim);
  EXPECT_EQ(record.outcome(), slipway::v1::RANK_OUTCOME_FAULT);
  EXPECT_EQ(record.cause().message(), "loss is NaN");
}

TEST_F(ShimTest, AMissingWorkerIsRecordedWithItsPath) {
  Subprocess shim = Start({"/no/such/worker"});
  const ExitRecord record = RecordOf(shim);
  EXPECT_TRUE(record.spawn_failed());
  EXPECT_THAT(record.spawn_error(), HasSubstr("/no/such/worker"));
}

TEST_F(ShimTest, TermGoesToTheWorkerAndNotToTheShim) {
  Subprocess shim =
      Start({"/bin/sh", "-c", "trap 'echo term; exit 7' TERM; echo up; while :; do sleep 0.01; done", directory_});
  ASSERT_TRUE(Eventually([&] { return Log() == "up\n" && link::ReadShimRecord(files_, state()).ok(); }));
  ASSERT_OK(shim.Signal(SIGINT));  // a terminal's: ignored
  ASSERT_OK(shim.Signal(SIGTERM));
  const ExitRecord record = RecordOf(shim);
  EXPECT_EQ(record.exit_code(), 7);
  EXPECT_THAT(Log(), ::testing::EndsWith("term\n"));
}

TEST_F(ShimTest, TheWorkerDiesWithTheShim) {
  Subprocess shim = StartScript("print up;hang");
  ASSERT_TRUE(Eventually([&] { return Log() == "up"; }));
  ASSERT_OK_AND_ASSIGN(const link::ShimRecord record, link::ReadShimRecord(files_, state()));
  EXPECT_EQ(record.shim, shim.identity());
  EXPECT_TRUE(IsRunning(record.worker));
  ASSERT_OK(shim.Signal(SIGKILL));
  ASSERT_OK(shim.Wait(kDeadline));
  EXPECT_TRUE(Eventually([&] { return !IsRunning(record.worker); }));
  EXPECT_FALSE(link::ReadExitRecord(files_, state()).ok());
}

TEST_F(ShimTest, WhatTheWorkerLeavesBehindIsEnded) {
  Subprocess shim = StartScript("orphan 1000;print x;exit 0");
  const ExitRecord record = RecordOf(shim);
  EXPECT_EQ(record.exit_code(), 0);
  EXPECT_THAT(ProcessesMentioning(directory_), IsEmpty());
}

TEST_F(ShimTest, LogFilesAreLimited) {
  Subprocess shim = StartScript("spam 2500;exit 0", {"--log-bytes", "1000", "--log-files", "2"});
  RecordOf(shim);
  EXPECT_EQ(Log(), std::string(500, 's'));
  EXPECT_EQ(files_.ReadFile(log_ + ".1").value_or(""), std::string(1000, 's'));
  EXPECT_FALSE(files_.ReadFile(log_ + ".2").ok());
}

TEST_F(ShimTest, AWorkerWhoseLogCannotBeWrittenRunsOn) {
  log_ = "/proc/no/such/place/rank0.log";
  Subprocess shim = StartScript("spam 5000000;exit 5");  // far more than a pipe holds
  EXPECT_EQ(RecordOf(shim).exit_code(), 5);
}

TEST_F(ShimTest, ADirectoryIsUsedOnce) {
  Subprocess first = StartScript("exit 3");
  RecordOf(first);
  Subprocess second = StartScript("exit 4");
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, second.Wait(kDeadline));
  EXPECT_FALSE(status.success());
  ASSERT_OK_AND_ASSIGN(const ExitRecord record, link::ReadExitRecord(files_, state()));
  EXPECT_EQ(record.exit_code(), 3);
}

TEST_F(ShimTest, OnlyTheWorkerHoldsTheRendezvousSocket) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  const std::string show =
      absl::StrCat("ls /proc/$PPID/fd | grep -c '^9$'; ls /proc/$$/fd | grep -c '^9$'; : ", directory_);
  Subprocess shim = Start({"/bin/sh", "-c", show}, {"--rendezvous-fd", "9"}, {{socket.get(), 9}});
  RecordOf(shim);
  EXPECT_EQ(Log(), "0\n1\n");
}

}  // namespace
}  // namespace slipway::worker::shim
