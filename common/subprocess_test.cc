#include "common/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "absl/time/clock.h"
#include "common/posix_file_system.h"
#include "common/unique_fd.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::HasSubstr;

std::string ReadAll(int fd) {
  std::string text;
  char buffer[256];
  for (ssize_t got; (got = ::read(fd, buffer, sizeof(buffer))) > 0;) text.append(buffer, static_cast<size_t>(got));
  return text;
}

// Runs a shell script with these options and returns its standard output.
std::string Output(SpawnOptions options, const std::string& script) {
  int fds[2];
  EXPECT_EQ(::pipe2(fds, O_CLOEXEC), 0);
  const UniqueFd read_end(fds[0]);
  UniqueFd write_end(fds[1]);
  options.argv = {"/bin/sh", "-c", script};
  options.stdout_fd = write_end.get();
  absl::StatusOr<Subprocess> child = Subprocess::Spawn(options);
  EXPECT_OK(child);
  write_end.reset();
  std::string text = ReadAll(read_end.get());
  if (child.ok()) {
    EXPECT_OK(child->Wait());
  }
  return text;
}

TEST(SubprocessTest, ExitCodesAndSignals) {
  ASSERT_OK_AND_ASSIGN(Subprocess three, Subprocess::Spawn({.argv = {"/bin/sh", "-c", "exit 3"}}));
  ASSERT_OK_AND_ASSIGN(ExitStatus status, three.Wait());
  EXPECT_FALSE(status.success());
  EXPECT_EQ(status.ToString(), "exit code 3");
  ASSERT_OK_AND_ASSIGN(status, three.Wait(absl::ZeroDuration()));
  EXPECT_EQ(status.code, 3);
  EXPECT_OK(three.Signal(SIGTERM));  // gone: nothing to do

  ASSERT_OK_AND_ASSIGN(Subprocess sleeper, Subprocess::Spawn({.argv = {"/bin/sleep", "60"}}));
  EXPECT_THAT(sleeper.Wait(absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("still runs")));
  EXPECT_TRUE(IsRunning(sleeper.identity()));
  ASSERT_OK(sleeper.Signal(SIGKILL));
  ASSERT_OK_AND_ASSIGN(status, sleeper.Wait(absl::Seconds(30)));
  EXPECT_EQ(status.ToString(), "signal 9 (Killed)");
  EXPECT_FALSE(IsRunning(sleeper.identity()));
}

TEST(SubprocessTest, EnvironmentDirectoryAndStdin) {
  TempDir dir;
  SpawnOptions options;
  options.environment = {"ONLY=this one"};
  options.working_directory = dir.path();
  EXPECT_EQ(Output(options, "pwd; echo $ONLY; echo ${HOME-unset}; cat"), dir.path() + "\nthis one\nunset\n");
  ::setenv("SLIPWAY_TEST_INHERITED", "yes", 1);
  EXPECT_EQ(Output({}, "echo $SLIPWAY_TEST_INHERITED"), "yes\n");
}

TEST(SubprocessTest, PassesOnlyTheNamedDescriptors) {
  int first[2], second[2];
  ASSERT_EQ(::pipe2(first, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe(second), 0);  // without CLOEXEC: must not leak all the same
  const UniqueFd a(first[0]), b(first[1]), c(second[0]), d(second[1]);
  ASSERT_EQ(::write(first[1], "one", 3), 3);
  ASSERT_EQ(::write(second[1], "two", 3), 3);
  SpawnOptions options;
  // Crossed over: the targets are each other's sources.
  options.passed_fds = {{first[0], second[0]}, {second[0], first[0]}};
  const auto number = [](int fd) { return std::to_string(fd); };
  const std::string script = "head -c 3 <&" + number(first[0]) + "; head -c 3 <&" + number(second[0]) + "; for n in " +
                             number(first[1]) + " " + number(second[1]) + "; do [ -e /proc/$$/fd/$n ] && echo $n; done";
  EXPECT_EQ(Output(options, script), "twoone");
  EXPECT_THAT(Subprocess::Spawn({.argv = {"/bin/true"}, .passed_fds = {{first[0], 2}}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("descriptor 2")));
  EXPECT_FALSE(Subprocess::Spawn({.argv = {"/bin/true"}, .passed_fds = {{99999, 3}}}).ok());
}

TEST(SubprocessTest, FailuresNameTheirCause) {
  EXPECT_THAT(Subprocess::Spawn({.argv = {"/no/such/program"}}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/program")));
  EXPECT_THAT(Subprocess::Spawn({.argv = {"/bin/true"}, .working_directory = "/no/such/dir"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/dir")));
  EXPECT_THAT(Subprocess::Spawn({.argv = {"/etc/passwd"}}),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("passwd")));
  EXPECT_FALSE(Subprocess::Spawn({}).ok());
}

TEST(SubprocessTest, StartsWithCleanSignals) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  auto* old = ::signal(SIGTERM, SIG_IGN);
  absl::StatusOr<Subprocess> child = Subprocess::Spawn({.argv = {"/bin/sleep", "60"}});
  ::signal(SIGTERM, old);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ASSERT_OK(child);
  ASSERT_OK(child->Signal(SIGTERM));
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, child->Wait(absl::Seconds(30)));
  EXPECT_EQ(status.code, SIGTERM);
}

TEST(SubprocessTest, NewSessionCanBeSignalledAsAGroup) {
  ASSERT_OK_AND_ASSIGN(Subprocess child,
                       Subprocess::Spawn({.argv = {"/bin/sh", "-c", "sleep 60 & wait"}, .new_session = true}));
  EXPECT_EQ(::getsid(child.pid()), child.pid());
  ASSERT_OK(child.SignalGroup(SIGKILL));
  ASSERT_OK(child.Wait(absl::Seconds(30)));
  ASSERT_OK_AND_ASSIGN(Subprocess plain, Subprocess::Spawn({.argv = {"/bin/true"}}));
  EXPECT_EQ(plain.SignalGroup(SIGKILL).code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_OK(plain.Wait());
}

TEST(SubprocessTest, ParentDeathSignalFollowsTheSpawningThread) {
  absl::StatusOr<Subprocess> child = absl::UnknownError("not started");
  std::thread([&] {
    child = Subprocess::Spawn({.argv = {"/bin/sleep", "60"}, .parent_death_signal = SIGKILL});
  }).join();
  ASSERT_OK(child);
  ASSERT_OK_AND_ASSIGN(const ExitStatus status, child->Wait(absl::Seconds(30)));
  EXPECT_EQ(status.code, SIGKILL);
}

TEST(ProcessIdentityTest, TellsAReusedPidApart) {
  ASSERT_OK_AND_ASSIGN(const ProcessIdentity self, IdentifyProcess(::getpid()));
  EXPECT_GT(self.start_ticks, 0u);
  EXPECT_TRUE(IsRunning(self));
  EXPECT_OK(SignalProcess(self, 0));
  ProcessIdentity earlier = self;
  earlier.start_ticks -= 1;
  EXPECT_FALSE(IsRunning(earlier));
  EXPECT_THAT(SignalProcess(earlier, SIGKILL), StatusIs(absl::StatusCode::kNotFound, HasSubstr("gone")));
  EXPECT_TRUE(absl::IsNotFound(IdentifyProcess(999999999).status()));
  EXPECT_FALSE(SignalProcess({.pid = 0, .start_ticks = 0}, SIGKILL).ok());
}

TEST(ProcessIdentityTest, AZombieDoesNotRun) {
  ASSERT_OK_AND_ASSIGN(Subprocess child, Subprocess::Spawn({.argv = {"/bin/true"}}));
  for (int i = 0; i < 2000 && IsRunning(child.identity()); ++i) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(IsRunning(child.identity()));
  EXPECT_OK(IdentifyProcess(child.pid()));  // but it can still be identified
  ASSERT_OK(child.Wait());
}

// Names with spaces and parentheses must not confuse the reading of /proc/<pid>/stat.
TEST(ProcessIdentityTest, OddProgramNames) {
  TempDir dir;
  const std::string program = dir.Path("a) S (b");
  ASSERT_EQ(::symlink("/bin/sleep", program.c_str()), 0);
  ASSERT_OK_AND_ASSIGN(Subprocess child, Subprocess::Spawn({.argv = {program, "60"}}));
  EXPECT_TRUE(IsRunning(child.identity()));
  ASSERT_OK(SignalProcess(child.identity(), SIGKILL));
  ASSERT_OK(child.Wait(absl::Seconds(30)));
}

}  // namespace
}  // namespace slipway
