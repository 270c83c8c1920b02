#include "common/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "common/posix_file_system.h"
#include "common/subprocess.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PathTest, JoinsAndSplits) {
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("/", "b"), "/b");
  EXPECT_EQ(JoinPath("", "b"), "b");
  EXPECT_EQ(DirName("/a/b"), "/a");
  EXPECT_EQ(DirName("/a/b/"), "/a");
  EXPECT_EQ(DirName("/b"), "/");
  EXPECT_EQ(DirName("b"), ".");
  EXPECT_EQ(BaseName("/a/b"), "b");
  EXPECT_EQ(BaseName("b"), "b");
}

TEST(ErrnoToStatusTest, MapsCodesAndKeepsTheText) {
  EXPECT_THAT(ErrnoToStatus(ENOENT, "opening /x"),
              StatusIs(absl::StatusCode::kNotFound, "opening /x: No such file or directory"));
  EXPECT_EQ(ErrnoToStatus(ENOSPC, "").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoToStatus(EDQUOT, "").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrnoToStatus(EACCES, "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoToStatus(EROFS, "").code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(ErrnoToStatus(EIO, "").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrnoToStatus(EEXIST, "").code(), absl::StatusCode::kAlreadyExists);
}

TEST(PosixFileSystemTest, WritesAndReads) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(auto file, files.OpenForWrite(dir.Path("f"), WriteMode::kTruncate));
  ASSERT_OK(file->Append("hello "));
  ASSERT_OK(file->Append("world"));
  ASSERT_OK(file->Sync());
  ASSERT_OK(file->Close());
  ASSERT_OK_AND_ASSIGN(std::string text, files.ReadFile(dir.Path("f")));
  EXPECT_EQ(text, "hello world");
  EXPECT_THAT(files.ReadFile(dir.Path("f"), 5), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("11 bytes")));

  ASSERT_OK_AND_ASSIGN(file, files.OpenForWrite(dir.Path("f"), WriteMode::kAppend));
  ASSERT_OK(file->Append("!"));
  ASSERT_OK(file->Close());
  ASSERT_OK_AND_ASSIGN(auto mapped, files.Map(dir.Path("f")));
  EXPECT_EQ(mapped->data(), "hello world!");
  EXPECT_THAT(files.OpenForWrite(dir.Path("f"), WriteMode::kCreateNew),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(dir.Path("f"))));
  ASSERT_OK_AND_ASSIGN(const FileInfo info, files.Stat(dir.Path("f")));
  EXPECT_EQ(info.size, 12);
  EXPECT_FALSE(info.is_directory);
}

TEST(PosixFileSystemTest, ReadsInsideTheFileOnly) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(files.WriteFileAtomically(dir.Path("f"), "0123456789"));
  ASSERT_OK_AND_ASSIGN(const auto file, files.OpenForRead(dir.Path("f")));
  std::string out(4, '\0');
  const auto bytes = absl::MakeSpan(reinterpret_cast<std::byte*>(out.data()), out.size());
  ASSERT_OK(file->Read(6, bytes));
  EXPECT_EQ(out, "6789");
  EXPECT_THAT(file->Read(7, bytes), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("10 bytes")));
  EXPECT_FALSE(file->Read(-1, bytes).ok());
  // Someone shortens the file under us: an error, not a signal.
  ASSERT_EQ(::truncate(dir.Path("f").c_str(), 7), 0);
  EXPECT_THAT(file->Read(6, bytes), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("ends at 7")));
}

TEST(PosixFileSystemTest, EmptyFilesCanBeMapped) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(files.WriteFileAtomically(dir.Path("f"), ""));
  ASSERT_OK_AND_ASSIGN(const auto mapped, files.Map(dir.Path("f")));
  EXPECT_EQ(mapped->data(), "");
}

TEST(PosixFileSystemTest, RefusesWhatIsNoRegularFile) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_EQ(::mkfifo(dir.Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(files.ReadFile(dir.Path("pipe")), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("pipe")));
  EXPECT_THAT(files.ReadFile(dir.path()), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(dir.path())));
  EXPECT_THAT(files.ReadFile(dir.Path("none")), StatusIs(absl::StatusCode::kNotFound, HasSubstr(dir.Path("none"))));
}

TEST(PosixFileSystemTest, DirectoriesAndTrees) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(files.MakeDirectories(dir.Path("a/b/c")));
  ASSERT_OK(files.MakeDirectories(dir.Path("a/b/c")));
  ASSERT_OK(files.WriteFileAtomically(dir.Path("a/z"), "1"));
  EXPECT_FALSE(files.MakeDirectories(dir.Path("a/z")).ok());
  ASSERT_OK_AND_ASSIGN(const auto names, files.List(dir.Path("a")));
  EXPECT_THAT(names, ElementsAre("b", "z"));
  ASSERT_OK(files.Rename(dir.Path("a"), dir.Path("moved")));
  ASSERT_OK(files.SyncDirectory(dir.path()));
  ASSERT_OK_AND_ASSIGN(const bool gone, files.Exists(dir.Path("a")));
  EXPECT_FALSE(gone);
  ASSERT_OK(files.RemoveTree(dir.Path("moved")));
  ASSERT_OK(files.RemoveTree(dir.Path("moved")));
  EXPECT_THAT(files.List(dir.Path("moved")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("moved")));
  ASSERT_OK_AND_ASSIGN(const int64_t free_bytes, files.FreeBytes(dir.path()));
  EXPECT_GT(free_bytes, 0);
}

TEST(PosixFileSystemTest, AtomicWriteLeavesNoTemporaryFile) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(files.WriteFileAtomically(dir.Path("f"), "old"));
  ASSERT_OK(files.WriteFileAtomically(dir.Path("f"), "new"));
  ASSERT_OK_AND_ASSIGN(const std::string text, files.ReadFile(dir.Path("f")));
  EXPECT_EQ(text, "new");
  ASSERT_OK(files.MakeDirectories(dir.Path("d/x")));  // cannot be replaced by a file
  EXPECT_FALSE(files.WriteFileAtomically(dir.Path("d"), "new").ok());
  ASSERT_OK_AND_ASSIGN(const auto names, files.List(dir.path()));
  EXPECT_THAT(names, ElementsAre("d", "f"));
}

TEST(FileLockTest, RefusesASecondLiveHolder) {
  TempDir dir;
  PosixFileSystem files;
  {
    ASSERT_OK_AND_ASSIGN(const auto lock, files.Lock(dir.Path("lock")));
    EXPECT_EQ(lock->left_over(), std::nullopt);
    EXPECT_THAT(files.Lock(dir.Path("lock")),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(std::to_string(::getpid())), HasSubstr(dir.Path("lock")))));
  }
  ASSERT_OK_AND_ASSIGN(const auto again, files.Lock(dir.Path("lock")));
  EXPECT_EQ(again->left_over(), std::nullopt);  // released in good order
}

TEST(FileLockTest, ADeadHoldersFileIsNoObstacle) {
  TempDir dir;
  PosixFileSystem files;
  // A dead pid, a pid that somebody else has by now (pid 1), nothing, and rubbish.
  for (const std::string text : {"999999999\n", "1\n", "", "not a pid at all"}) {
    ASSERT_OK(files.WriteFileAtomically(dir.Path("lock"), text));
    ASSERT_OK_AND_ASSIGN(const auto lock, files.Lock(dir.Path("lock")));
    ASSERT_TRUE(lock->left_over().has_value()) << text;
    EXPECT_EQ(*lock->left_over(), text.substr(0, text.find('\n')));
    ASSERT_OK_AND_ASSIGN(const std::string now, files.ReadFile(dir.Path("lock")));
    EXPECT_EQ(now, std::to_string(::getpid()) + "\n");
  }
}

TEST(FileLockTest, AKilledHolderLosesTheLock) {
  TempDir dir;
  PosixFileSystem files;
  const std::string path = dir.Path("lock");
  // flock(1) holds the lock for as long as its cat reads the pipe.
  ASSERT_OK_AND_ASSIGN(
      Subprocess holder,
      Subprocess::Spawn(
          {.argv = {"/bin/sh", "-c", "exec 9>>$0; flock -x 9; echo $$ >&9; touch $0.ready; sleep 60", path},
           .new_session = true}));
  for (int i = 0; i < 2000 && !files.Exists(path + ".ready").value(); ++i) ::usleep(5000);
  EXPECT_THAT(files.Lock(path),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(std::to_string(holder.pid()))));
  ASSERT_OK(holder.SignalGroup(9));
  ASSERT_OK(holder.Wait());
  // sleep(1) shares the descriptor and dies by the same signal a moment later.
  absl::StatusOr<std::unique_ptr<FileLock>> lock = files.Lock(path);
  for (int i = 0; i < 2000 && !lock.ok(); ++i) {
    ::usleep(5000);
    lock = files.Lock(path);
  }
  ASSERT_OK(lock);
  EXPECT_EQ((*lock)->left_over(), std::to_string(holder.pid()));
}

}  // namespace
}  // namespace slipway
