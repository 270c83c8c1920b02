#include "engine/corpus/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "common/posix_file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::engine::corpus {
namespace {

using ::slipway::testing::IsOk;
using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

using Lines = std::vector<std::pair<int64_t, std::string>>;

absl::StatusOr<Lines> ReadAll(const std::string& text, int64_t max_line_bytes = JsonlReader::kMaxLineBytes) {
  TempDir directory;
  PosixFileSystem files;
  const std::string path = directory.Path("a.jsonl");
  EXPECT_OK(files.WriteFileAtomically(path, text));
  absl::StatusOr<JsonlReader> reader = JsonlReader::Open(files, path, max_line_bytes);
  if (!reader.ok()) return reader.status();
  Lines lines;
  JsonlLine line;
  while (true) {
    absl::StatusOr<bool> more = reader->Next(line);
    if (!more.ok()) return more.status();
    if (!*more) break;
    lines.emplace_back(line.number, line.text);
  }
  EXPECT_EQ(reader->bytes_read(), static_cast<int64_t>(text.size()));
  return lines;
}

TEST(JsonlReader, CountsLinesAndSkipsBlankOnes) {
  EXPECT_THAT(*ReadAll("a\n\n \t\r\nb\r\nc"), ElementsAre(Pair(1, "a"), Pair(4, "b"), Pair(5, "c")));
  EXPECT_THAT(*ReadAll(""), IsEmpty());
  EXPECT_THAT(*ReadAll("\n\n"), IsEmpty());
}

TEST(JsonlReader, DropsAByteOrderMarkAtTheStartOnly) {
  EXPECT_THAT(*ReadAll("\xEF\xBB\xBF{}\n\xEF\xBB\xBF{}\n"), ElementsAre(Pair(1, "{}"), Pair(2, "\xEF\xBB\xBF{}")));
  EXPECT_THAT(*ReadAll("\xEF\xBB\xBF"), IsEmpty());
  EXPECT_THAT(ReadAll(std::string("\xFF\xFE{\0}\0", 6)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("UTF-16")));
}

TEST(JsonlReader, LinesLongerThanTheBuffer) {
  const std::string big(3 << 20, 'x');
  ASSERT_OK_AND_ASSIGN(const Lines lines, ReadAll("a\n" + big + "\nb\n"));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[1].second, big);
  EXPECT_EQ(lines[2].second, "b");
}

TEST(JsonlReader, RefusesALineAboveTheLimitByNumber) {
  EXPECT_THAT(ReadAll("a\n" + std::string(3 << 20, 'x'), 1 << 20),
              StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("a.jsonl:2"), HasSubstr("1048576"))));
}

TEST(JsonlReader, AMissingFileIsNotFound) {
  PosixFileSystem files;
  EXPECT_THAT(JsonlReader::Open(files, "/nowhere/a.jsonl"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
}

}  // namespace
}  // namespace slipway::engine::corpus
