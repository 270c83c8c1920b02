#include "common/fault_file_system.h"

#include <thread>

#include "common/posix_file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An atomic write is: create, append, sync, close, rename, sync the directory.
constexpr int kAtomicWriteOperations = 6;

TEST(FaultFileSystemTest, AtomicWriteKeepsOldOrNewWhateverFails) {
  PosixFileSystem real;
  for (const FaultKind kind :
       {FaultKind::kNoSpace, FaultKind::kIoError, FaultKind::kShortWrite, FaultKind::kCrash, FaultKind::kPowerLoss}) {
    for (int nth = 1; nth <= kAtomicWriteOperations; ++nth) {
      TempDir dir;
      ASSERT_OK(real.WriteFileAtomically(dir.Path("f"), "old contents"));
      FaultFileSystem faulty(real);
      faulty.FailAt(nth, kind);
      const absl::Status status = faulty.WriteFileAtomically(dir.Path("f"), "new contents");
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(std::string(status.message()), HasSubstr(dir.path()));
      ASSERT_OK_AND_ASSIGN(const std::string text, real.ReadFile(dir.Path("f")));
      EXPECT_EQ(text, nth <= 5 ? "old contents" : "new contents") << "operation " << nth;
      if (!faulty.crashed()) {
        ASSERT_OK_AND_ASSIGN(const auto names, real.List(dir.path()));
        EXPECT_THAT(names, ElementsAre("f")) << "operation " << nth;
      }
    }
  }
}

TEST(FaultFileSystemTest, CountsAndRecovers) {
  TempDir dir;
  PosixFileSystem real;
  FaultFileSystem faulty(real);
  ASSERT_OK(faulty.WriteFileAtomically(dir.Path("f"), "1"));
  EXPECT_EQ(faulty.operations(), kAtomicWriteOperations);
  faulty.FailAt(1, FaultKind::kIoError);
  EXPECT_THAT(faulty.MakeDirectories(dir.Path("d")), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("error")));
  EXPECT_OK(faulty.MakeDirectories(dir.Path("d")));
}

TEST(FaultFileSystemTest, AFullDiskTakesWhatFits) {
  TempDir dir;
  PosixFileSystem real;
  FaultFileSystem faulty(real);
  faulty.SetFreeBytes(10);
  ASSERT_OK_AND_ASSIGN(const auto file, faulty.OpenForWrite(dir.Path("f"), WriteMode::kTruncate));
  ASSERT_OK(file->Append("123456"));
  EXPECT_THAT(file->Append("7890abc"), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(dir.Path("f"))));
  ASSERT_OK_AND_ASSIGN(const std::string text, real.ReadFile(dir.Path("f")));
  EXPECT_EQ(text, "1234567890");
  ASSERT_OK_AND_ASSIGN(const int64_t left, faulty.FreeBytes(dir.path()));
  EXPECT_EQ(left, 0);
}

TEST(FaultFileSystemTest, PowerLossDropsWhatWasNotSynced) {
  TempDir dir;
  PosixFileSystem real;
  FaultFileSystem faulty(real);
  ASSERT_OK(faulty.MakeDirectories(dir.Path("tmp")));
  ASSERT_OK_AND_ASSIGN(const auto synced, faulty.OpenForWrite(dir.Path("tmp/synced"), WriteMode::kTruncate));
  ASSERT_OK(synced->Append("abc"));
  ASSERT_OK(synced->Sync());
  ASSERT_OK(synced->Append("def"));
  ASSERT_OK_AND_ASSIGN(const auto loose, faulty.OpenForWrite(dir.Path("tmp/loose"), WriteMode::kTruncate));
  ASSERT_OK(loose->Append("abc"));
  ASSERT_OK(faulty.Rename(dir.Path("tmp"), dir.Path("final")));  // and no SyncDirectory
  faulty.FailAt(1, FaultKind::kPowerLoss);
  EXPECT_FALSE(loose->Sync().ok());
  EXPECT_TRUE(faulty.crashed());
  EXPECT_FALSE(faulty.List(dir.path()).ok());

  ASSERT_OK_AND_ASSIGN(const std::string first, real.ReadFile(dir.Path("tmp/synced")));
  EXPECT_EQ(first, "abc");
  ASSERT_OK_AND_ASSIGN(const std::string second, real.ReadFile(dir.Path("tmp/loose")));
  EXPECT_EQ(second, "");
}

TEST(FaultFileSystemTest, HeldWritesWaitAndOthersDoNot) {
  TempDir dir;
  PosixFileSystem real;
  FaultFileSystem faulty(real);
  faulty.HoldWritesOf("slow");
  std::thread writer([&] {
    ASSERT_OK_AND_ASSIGN(const auto file, faulty.OpenForWrite(dir.Path("slow"), WriteMode::kTruncate));
    EXPECT_OK(file->Append("abc"));
  });
  faulty.AwaitHeldWrite();
  EXPECT_OK(faulty.WriteFileAtomically(dir.Path("quick"), "x"));
  EXPECT_EQ(real.Stat(dir.Path("slow"))->size, 0);
  faulty.ReleaseWrites();
  writer.join();
  EXPECT_EQ(*real.ReadFile(dir.Path("slow")), "abc");
}

TEST(FaultFileSystemTest, UnreadableFiles) {
  TempDir dir;
  PosixFileSystem real;
  ASSERT_OK(real.WriteFileAtomically(dir.Path("shard-1"), "x"));
  ASSERT_OK(real.WriteFileAtomically(dir.Path("shard-2"), "y"));
  FaultFileSystem faulty(real);
  faulty.FailReadsOf("shard-2");
  EXPECT_OK(faulty.ReadFile(dir.Path("shard-1")));
  EXPECT_THAT(faulty.ReadFile(dir.Path("shard-2")), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shard-2")));
}

}  // namespace
}  // namespace slipway
