#include "common/logging.h"

#include <spdlog/spdlog.h>

#include "common/posix_file_system.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(LoggingTest, LevelsPerSinkAndImmediateFlush) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(SetUpLogging(
      {.program = "prog", .stderr_level = "off", .file = dir.Path("logs/prog.log"), .file_level = "info"}));
  spdlog::debug("hidden");
  spdlog::info("count {}", 42);
  // No flush here: the line must be in the file as soon as the call returns.
  ASSERT_OK_AND_ASSIGN(const std::string text, files.ReadFile(dir.Path("logs/prog.log")));
  EXPECT_THAT(text, MatchesRegex("[0-9-]+T[0-9:.]+Z info prog: count 42\n"));
}

TEST(LoggingTest, JsonLinesAreValidWhateverTheMessage) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(SetUpLogging({.program = "p\"q",
                          .stderr_level = "off",
                          .file = dir.Path("x.log"),
                          .file_level = "trace",
                          .file_format = LogFormat::kJson}));
  spdlog::warn("{}", "line 1\nline \"2\"\t\xff");
  ASSERT_OK_AND_ASSIGN(const std::string text, files.ReadFile(dir.Path("x.log")));
  EXPECT_THAT(
      text,
      HasSubstr("\"level\":\"warn\",\"logger\":\"p\\\"q\",\"message\":\"line 1\\nline \\\"2\\\"\\u0009\\ufffd\"}\n"));
}

TEST(LoggingTest, RotatesAndKeepsTheGivenNumberOfFiles) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(SetUpLogging(
      {.program = "p", .stderr_level = "off", .file = dir.Path("r.log"), .file_max_bytes = 500, .file_count = 3}));
  for (int i = 0; i < 100; ++i) spdlog::info("message number {}", i);
  ASSERT_OK_AND_ASSIGN(const auto names, files.List(dir.path()));
  EXPECT_THAT(names, ::testing::ElementsAre("r.1.log", "r.2.log", "r.log"));
  ASSERT_OK_AND_ASSIGN(const std::string text, files.ReadFile(dir.Path("r.log")));
  EXPECT_THAT(text, HasSubstr("message number 99"));
}

TEST(LoggingTest, RefusesBadOptions) {
  EXPECT_THAT(SetUpLogging({.program = "p", .stderr_level = "loud"}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("loud")));
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK(files.WriteFileAtomically(dir.Path("file"), ""));
  EXPECT_FALSE(SetUpLogging({.program = "p", .file = dir.Path("file/x.log")}).ok());
  EXPECT_FALSE(SetUpLogging({.program = "p", .file = dir.Path("y.log"), .file_count = 0}).ok());
}

TEST(JsonQuoteTest, KeepsGoodUtf8AndReplacesBad) {
  EXPECT_EQ(JsonQuote("日本 😀 é"), "\"日本 😀 é\"");
  EXPECT_EQ(JsonQuote("a\xc0\xaf"
                      "b"),
            "\"a\\ufffd\\ufffdb\"");                                  // overlong
  EXPECT_EQ(JsonQuote("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\"");  // surrogate
  EXPECT_EQ(JsonQuote("\xe6\x97"), "\"\\ufffd\\ufffd\"");             // cut short
  EXPECT_EQ(JsonQuote(std::string_view("\0\x1f\\", 3)), "\"\\u0000\\u001f\\\\\"");
}

}  // namespace
}  // namespace slipway
