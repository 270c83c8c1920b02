#include "worker/agent/log_reader.h"

#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/status_matchers.h"

namespace slipway::worker::agent {
namespace {

class LogReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "log_reader_" + std::to_string(::getpid());
    std::filesystem::create_directories(directory_);
    path_ = directory_ + "/rank0.log";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void Append(const std::string& text, const std::string& suffix = "") {
    std::ofstream(path_ + suffix, std::ios::app | std::ios::binary) << text;
  }
  void Rotate() {
    for (int i = 3; i >= 1; --i) {
      std::rename((path_ + (i == 1 ? "" : "." + std::to_string(i - 1))).c_str(),
                  (path_ + "." + std::to_string(i)).c_str());
    }
  }
  static std::string All(LogReader& reader, size_t piece = 7) {
    std::string text;
    while (true) {
      absl::StatusOr<std::string> part = reader.Read(piece);
      EXPECT_OK(part);
      if (!part.ok() || part->empty()) return text;
      text += *part;
    }
  }

  std::string directory_, path_;
};

TEST_F(LogReaderTest, ReadsRotatedFilesFromTheOldest) {
  Append("1\n2\n", ".2");
  Append("3\n", ".1");
  Append("4\nlast");
  LogReader reader(path_, 0);
  EXPECT_EQ(All(reader), "1\n2\n3\n4\nlast");
}

TEST_F(LogReaderTest, TailCountsLinesAcrossFiles) {
  Append("1\n2\n", ".2");
  Append("3\n", ".1");
  Append("4\nlast");
  const std::vector<std::string> expected = {"last",          "4\nlast",          "3\n4\nlast",
                                             "2\n3\n4\nlast", "1\n2\n3\n4\nlast", "1\n2\n3\n4\nlast"};
  for (size_t lines = 1; lines <= expected.size(); ++lines) {
    LogReader reader(path_, static_cast<int64_t>(lines));
    EXPECT_EQ(All(reader), expected[lines - 1]) << lines;
  }
  Append("\n");
  LogReader whole_line(path_, 1);
  EXPECT_EQ(All(whole_line), "last\n");
}

TEST_F(LogReaderTest, TailOfLongLinesAndBigFiles) {
  Append("first\n" + std::string(200'000, 'x') + "\nlast\n");
  LogReader two(path_, 2);
  EXPECT_EQ(All(two, 4096).size(), 200'001u + 5);
  LogReader one(path_, 1);
  EXPECT_EQ(All(one), "last\n");
}

TEST_F(LogReaderTest, FollowsThroughRotations) {
  LogReader reader(path_, 0);
  EXPECT_EQ(All(reader), "");  // not there yet
  Append("a");
  EXPECT_EQ(All(reader), "a");
  Append("b");
  Rotate();
  Append("c");
  Rotate();
  Append("d");
  EXPECT_EQ(All(reader), "bcd");
  EXPECT_EQ(All(reader), "");
  Append("e");
  EXPECT_EQ(All(reader), "e");
}

TEST_F(LogReaderTest, GoesOnWhenItsFileWasRotatedAway) {
  Append("a");
  LogReader reader(path_, 0);
  EXPECT_EQ(All(reader), "a");
  for (const char* text : {"b", "c", "d", "e"}) {
    Rotate();
    Append(text);
  }
  EXPECT_EQ(All(reader), "bcde");
}

}  // namespace
}  // namespace slipway::worker::agent
