#include "engine/corpus/index_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/support/corpus_files.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::HasSubstr;

MegatronIndices Indices() {
  return *BuildMegatronIndices([](int64_t s) { return static_cast<int32_t>(s + 3); }, {0, 20},
                               {.num_samples = 50, .seq_length = 8, .seed = 1});
}

bool Same(const MegatronIndices& a, const MegatronIndices& b) {
  return a.document_index == b.document_index && a.sample_documents == b.sample_documents &&
         a.sample_offsets == b.sample_offsets && a.shuffle_index == b.shuffle_index;
}

TEST(IndexCache, ReadsWhatItWrote) {
  const std::string text = WriteIndices(Indices(), "key");
  ASSERT_TRUE(ReadIndices(text, "key").has_value());
  EXPECT_TRUE(Same(*ReadIndices(text, "key"), Indices()));
  EXPECT_FALSE(ReadIndices(text, "another").has_value());
}

TEST(IndexCache, AnyDamageIsSeen) {
  const std::string text = WriteIndices(Indices(), "key");
  for (size_t i = 0; i < text.size(); ++i) {
    std::string damaged = text;
    damaged[i] = static_cast<char>(damaged[i] ^ 1);
    EXPECT_FALSE(ReadIndices(damaged, "key").has_value()) << "byte " << i;
    EXPECT_FALSE(ReadIndices(text.substr(0, i), "key").has_value()) << "cut at " << i;
  }
  EXPECT_FALSE(ReadIndices(text + "x", "key").has_value());
}

class CachedIndicesTest : public ::testing::Test {
 protected:
  absl::StatusOr<MegatronIndices> Get() {
    return CachedIndices(files_, cache_, "key", [&]() -> absl::StatusOr<MegatronIndices> {
      ++builds_;
      return Indices();
    });
  }

  PosixFileSystem files_;
  TempDir directory_;
  std::string cache_ = directory_.Path("deep/cache");
  int builds_ = 0;
};

TEST_F(CachedIndicesTest, BuildsOnceAndAgainWhenDamaged) {
  ASSERT_OK_AND_ASSIGN(const MegatronIndices first, Get());
  ASSERT_OK_AND_ASSIGN(const MegatronIndices second, Get());
  EXPECT_TRUE(Same(first, second));
  EXPECT_EQ(builds_, 1);
  ASSERT_OK(files_.WriteFileAtomically(cache_ + "/key.index", "rubbish"));
  ASSERT_OK_AND_ASSIGN(const MegatronIndices third, Get());
  EXPECT_TRUE(Same(first, third));
  EXPECT_EQ(builds_, 2);
  ASSERT_OK(Get());
  EXPECT_EQ(builds_, 2);  // the damaged file was replaced
}

TEST_F(CachedIndicesTest, ADirectoryThatCannotBeMadeCostsOnlyTime) {
  ASSERT_OK(files_.WriteFileAtomically(directory_.Path("file"), "x"));
  cache_ = directory_.Path("file/cache");
  ASSERT_OK(Get());
  ASSERT_OK(Get());
  EXPECT_EQ(builds_, 2);
}

TEST_F(CachedIndicesTest, BuildersAtOnceLeaveOneGoodFile) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      PosixFileSystem files;
      auto indices = CachedIndices(files, cache_, "key", [] { return absl::StatusOr<MegatronIndices>(Indices()); });
      EXPECT_OK(indices);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, files_.List(cache_));
  EXPECT_EQ(names, std::vector<std::string>{"key.index"});
  ASSERT_OK(Get());
  EXPECT_EQ(builds_, 0);
}

TEST(IndexCacheKey, ChangesWithTheFilesAndTheParameters) {
  TempDir directory;
  PosixFileSystem files;
  const std::string prefix = slipway::testing::WriteDataset(files, directory.Path("d"), {{1, 2, 3}});
  ASSERT_OK_AND_ASSIGN(const std::string key, IndexCacheKey(files, prefix, "p"));
  EXPECT_EQ(*IndexCacheKey(files, prefix, "p"), key);
  EXPECT_NE(*IndexCacheKey(files, prefix, "q"), key);
  slipway::testing::WriteDataset(files, prefix, {{1, 2, 3, 4}});
  EXPECT_NE(*IndexCacheKey(files, prefix, "p"), key);
  EXPECT_THAT(IndexCacheKey(files, directory.Path("none"), "p"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("none")));
}

}  // namespace
}  // namespace slipway::engine::corpus
