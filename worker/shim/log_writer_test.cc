#include "worker/shim/log_writer.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "common/fault_file_system.h"
#include "common/posix_file_system.h"
#include "tests/support/status_matchers.h"

namespace slipway::worker::shim {
namespace {

class LogWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "log_writer_" + std::to_string(::getpid());
    path_ = directory_ + "/logs/e1/rank0.log";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string Read(const std::string& path) { return files_.ReadFile(path).value_or("(missing)"); }

  PosixFileSystem files_;
  SimClock clock_;
  std::string directory_, path_;
};

TEST_F(LogWriterTest, BytesArriveAsTheyAre) {
  const std::string data("a\0b\xff\xfe\r\nno newline", 18);
  LogWriter log({.path = path_}, files_, clock_);
  log.Write(data);
  EXPECT_EQ(Read(path_), data);
}

TEST_F(LogWriterTest, FilesRotateAndTheOldestGoes) {
  LogWriter log({.path = path_, .max_file_bytes = 10, .max_files = 3}, files_, clock_);
  log.Write("0123456789abcdefghij");
  log.Write("ABCDEFGHIJKLMNOPQRSTUVW");
  EXPECT_EQ(Read(path_), "UVW");
  EXPECT_EQ(Read(path_ + ".1"), "KLMNOPQRST");
  EXPECT_EQ(Read(path_ + ".2"), "ABCDEFGHIJ");
  EXPECT_EQ(Read(path_ + ".3"), "(missing)");
  EXPECT_EQ(log.dropped_bytes(), 0);
}

TEST_F(LogWriterTest, ALaterWriterGoesOnInTheFile) {
  LogWriter({.path = path_, .max_file_bytes = 10}, files_, clock_).Write("12345678");
  LogWriter({.path = path_, .max_file_bytes = 10}, files_, clock_).Write("90ab");
  EXPECT_EQ(Read(path_ + ".1"), "1234567890");
  EXPECT_EQ(Read(path_), "ab");
}

TEST_F(LogWriterTest, AFullDiskIsNotedOnceThereIsRoomAgain) {
  FaultFileSystem full(files_);
  LogWriter log({.path = path_}, full, clock_);
  log.Write("before ");
  full.SetFreeBytes(0);
  log.Write("lost");
  log.Write("also lost");
  full.SetFreeBytes(1 << 20);
  log.Write("too early");  // the disk is not asked again within a second
  clock_.Advance(absl::Seconds(2));
  log.Write("after");
  EXPECT_EQ(log.dropped_bytes(), 4 + 9 + 9);
  EXPECT_EQ(Read(path_), "before \n[slipway-shim: 22 bytes of output are missing here: no write was possible]\nafter");
}

}  // namespace
}  // namespace slipway::worker::shim
