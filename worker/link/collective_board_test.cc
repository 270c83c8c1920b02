#include "worker/link/collective_board.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "tests/support/status_matchers.h"

namespace slipway::worker::link {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

class CollectiveBoardTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ = ::testing::TempDir() + "collective_" + std::to_string(::getpid());
};

TEST_F(CollectiveBoardTest, TheLastOperationIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto board, CollectiveBoard::Create(path_));
  ASSERT_OK_AND_ASSIGN(CollectiveRecord got, CollectiveBoard::Read(path_));
  EXPECT_EQ(CollectiveText(got, absl::ZeroDuration()), "");
  board->SetPhase("step");
  board->SetStep(17);
  board->Begin("dp", "all_reduce", 1234);
  ASSERT_OK_AND_ASSIGN(got, CollectiveBoard::Read(path_));
  EXPECT_EQ(got.phase, "step");
  EXPECT_EQ(got.step, 17);
  EXPECT_FALSE(got.done);
  EXPECT_EQ(CollectiveText(got, got.start_monotonic + absl::Milliseconds(2100)), "dp all_reduce #1234, 2.1 s");
  board->End();
  ASSERT_OK_AND_ASSIGN(got, CollectiveBoard::Read(path_));
  EXPECT_EQ(CollectiveText(got, absl::ZeroDuration()), "dp all_reduce #1234, done");
}

TEST_F(CollectiveBoardTest, LongNamesAreCut) {
  ASSERT_OK_AND_ASSIGN(const auto board, CollectiveBoard::Create(path_));
  board->Begin(std::string(100, 'g'), std::string(31, 'o'), 1);
  ASSERT_OK_AND_ASSIGN(const CollectiveRecord got, CollectiveBoard::Read(path_));
  EXPECT_EQ(got.group, std::string(31, 'g'));
  EXPECT_EQ(got.operation, std::string(31, 'o'));
}

TEST_F(CollectiveBoardTest, ARecordOutlivesItsProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    auto board = CollectiveBoard::Create(path_);
    if (!board.ok()) ::_exit(1);
    (*board)->Begin("tp", "all_gather", 7);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_OK_AND_ASSIGN(const CollectiveRecord got, CollectiveBoard::Read(path_));
  EXPECT_EQ(got.operation, "all_gather");
  EXPECT_EQ(got.sequence, 7);
}

TEST_F(CollectiveBoardTest, AReaderNeverSeesHalfARecord) {
  ASSERT_OK_AND_ASSIGN(const auto board, CollectiveBoard::Create(path_));
  board->Begin("0", "0", 0);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (int64_t i = 1; !stop; ++i) board->Begin(std::to_string(i), std::to_string(i), i);
  });
  int read = 0;
  for (int round = 0; round < 2000; ++round) {
    const absl::StatusOr<CollectiveRecord> got = CollectiveBoard::Read(path_);
    if (!got.ok()) continue;  // overtaken by the writer a thousand times
    ++read;
    ASSERT_EQ(got->group, std::to_string(got->sequence));
    ASSERT_EQ(got->operation, std::to_string(got->sequence));
  }
  stop = true;
  writer.join();
  EXPECT_GT(read, 0);
}

TEST_F(CollectiveBoardTest, OtherFilesAreRefused) {
  EXPECT_THAT(CollectiveBoard::Read(path_), StatusIs(absl::StatusCode::kNotFound, HasSubstr(path_)));
  std::ofstream(path_) << "short";
  EXPECT_THAT(CollectiveBoard::Read(path_), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("5 bytes")));
  { ASSERT_OK_AND_ASSIGN(const auto board, CollectiveBoard::Create(path_)); }
  std::fstream(path_, std::ios::in | std::ios::out).write("XXXXXXXX", 8);
  EXPECT_THAT(CollectiveBoard::Read(path_), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("not a collective board")));
}

}  // namespace
}  // namespace slipway::worker::link
