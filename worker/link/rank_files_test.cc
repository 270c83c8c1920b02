#include "worker/link/rank_files.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/posix_file_system.h"
#include "tests/support/status_matchers.h"

namespace slipway::worker::link {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

class RankFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "rank_files_" + std::to_string(::getpid());
    ASSERT_OK(files_.MakeDirectories(directory_));
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  PosixFileSystem files_;
  std::string directory_;
};

TEST_F(RankFilesTest, MessagesComeBack) {
  slipway::worker::v1::ExitRecord record;
  record.set_signalled(true);
  record.set_signal(9);
  ASSERT_OK(WriteExitRecord(files_, directory_, record));
  ASSERT_OK_AND_ASSIGN(const slipway::worker::v1::ExitRecord got, ReadExitRecord(files_, directory_));
  EXPECT_EQ(got.signal(), 9);
}

TEST_F(RankFilesTest, AMissingAndABrokenFileAreToldApartAndNamed) {
  EXPECT_THAT(ReadOutcome(files_, directory_), StatusIs(absl::StatusCode::kNotFound, HasSubstr("/outcome")));
  ASSERT_OK(files_.WriteFileAtomically(JoinPath(directory_, kOutcomeFile), "\xff\xff not a message"));
  EXPECT_THAT(ReadOutcome(files_, directory_), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/outcome")));
}

TEST_F(RankFilesTest, ShimRecordKeepsBothIdentities) {
  ASSERT_OK_AND_ASSIGN(const ProcessIdentity self, IdentifyProcess(::getpid()));
  ASSERT_OK(WriteShimRecord(files_, directory_, {.shim = self, .worker = {4711, 99}}));
  ASSERT_OK_AND_ASSIGN(const ShimRecord got, ReadShimRecord(files_, directory_));
  EXPECT_EQ(got.shim, self);
  EXPECT_EQ(got.worker, (ProcessIdentity{4711, 99}));
}

TEST_F(RankFilesTest, ShimRecordOfAnotherBootOrShapeIsRefused) {
  const std::string path = JoinPath(directory_, kShimFile);
  ASSERT_OK(files_.WriteFileAtomically(path, R"({"boot_id":"0","shim_pid":1,"shim_start_ticks":2,"worker_pid":3,
                                                 "worker_start_ticks":4})"));
  EXPECT_THAT(ReadShimRecord(files_, directory_), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(path)));
  for (const char* text : {"", "{", "[]", R"({"boot_id":1})", R"({"boot_id":"x","shim_pid":-1})", "\xff\xfe"}) {
    ASSERT_OK(files_.WriteFileAtomically(path, text));
    EXPECT_THAT(ReadShimRecord(files_, directory_), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(path))) << text;
  }
}

TEST(ShortenCauseMessageTest, KeepsHeadAndTailAndWholeCharacters) {
  EXPECT_EQ(ShortenCauseMessage("short"), "short");
  std::string text = "head ";
  while (text.size() < 100'000) text += "ü";
  text += " tail";
  const std::string got = ShortenCauseMessage(text);
  EXPECT_LE(got.size(), kMaxCauseMessageBytes);
  EXPECT_GT(got.size(), kMaxCauseMessageBytes - 100);
  EXPECT_EQ(got.substr(0, 5), "head ");
  EXPECT_EQ(got.substr(got.size() - 5), " tail");
  slipway::v1::Cause cause;  // a proto3 string must be UTF-8
  cause.set_message(got);
  EXPECT_TRUE(cause.ParseFromString(cause.SerializeAsString()));
}

}  // namespace
}  // namespace slipway::worker::link
