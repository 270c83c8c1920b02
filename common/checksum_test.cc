#include "common/checksum.h"

#include <gtest/gtest.h>

#include "common/posix_file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway {
namespace {

TEST(ChecksumTest, KnownValue) {
  // XXH3's published value for no input with seed 0.
  EXPECT_EQ(ChecksumOf(""), "xxh3-128:99aa06d3014798d86001c324468d497f");
}

TEST(ChecksumTest, StreamingAndFileAgreeWithTheWhole) {
  std::string data;
  for (int i = 0; i < 3'000'000; ++i) data.push_back(static_cast<char>(i * 2654435761u >> 13));
  Checksum streaming;
  for (size_t at = 0; at < data.size(); at += 777'777) streaming.Update(std::string_view(data).substr(at, 777'777));
  EXPECT_EQ(streaming.Digest(), ChecksumOf(data));

  testing::TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(files.WriteFileAtomically(dir.Path("f"), data));
  ASSERT_OK_AND_ASSIGN(const std::string of_file, FileChecksum(files, dir.Path("f")));
  EXPECT_EQ(of_file, ChecksumOf(data));
  data[1'500'000] ^= 1;
  EXPECT_NE(of_file, ChecksumOf(data));
  EXPECT_TRUE(absl::IsNotFound(FileChecksum(files, dir.Path("none")).status()));
}

TEST(ChecksumTest, RecognisesItsOwnForm) {
  EXPECT_TRUE(IsChecksum(ChecksumOf("x")));
  EXPECT_FALSE(IsChecksum(""));
  EXPECT_FALSE(IsChecksum("xxh3-128:99aa"));
  EXPECT_FALSE(IsChecksum("sha256-x:99aa06d3014798d86001c324468d497f"));
  EXPECT_FALSE(IsChecksum("xxh3-128:99AA06d3014798d86001c324468d497f"));
}

}  // namespace
}  // namespace slipway
