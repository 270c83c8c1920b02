#include "engine/spec/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "engine/spec/spec_fields.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::spec {
namespace {

using ::testing::HasSubstr;

TEST(ExplainTest, AField) {
  ASSERT_OK_AND_ASSIGN(const std::string text, Explain("training.seq_length"));
  EXPECT_EQ(text,
            "training.seq_length (whole number, in tokens)\n"
            "  Tokens of one sample.\n"
            "  default:   required\n"
            "  allowed:   at least 1\n"
            "  on resume: fixed: a change is refused\n");
}

TEST(ExplainTest, ForPrograms) {
  ASSERT_OK_AND_ASSIGN(const auto field, ExplainJson("training.seq_length"));
  EXPECT_EQ(
      field.dump(),
      R"({"path":"training.seq_length","type":"whole number","unit":"tokens","description":"Tokens of one sample.",)"
      R"("required":true,"min":1.0,"on_resume":"fixed"})");
  ASSERT_OK_AND_ASSIGN(const auto section, ExplainJson("parallelism"));
  EXPECT_EQ(section["fields"][0]["path"], "parallelism.data_parallel_size");
  ASSERT_OK_AND_ASSIGN(const auto device, ExplainJson("parallelism.device"));
  EXPECT_EQ(device["choices"].dump(), R"(["auto","cpu","cuda"])");
  EXPECT_EQ(device["default"], "auto");
  ASSERT_OK_AND_ASSIGN(const auto top, ExplainJson(""));
  EXPECT_GT(top["fields"].size(), 10u);
  EXPECT_EQ(ExplainJson("training.seqlength").status(), Explain("training.seqlength").status());
}

TEST(ExplainTest, ASectionAndTheTop) {
  ASSERT_OK_AND_ASSIGN(const std::string section, Explain("scheduler"));
  EXPECT_THAT(section, HasSubstr("Step k, counted from 1, trains with lr(k − 1)."));
  EXPECT_THAT(section, HasSubstr("lr_decay_style"));
  ASSERT_OK_AND_ASSIGN(const std::string top, Explain(""));
  EXPECT_THAT(top, HasSubstr("fault_tolerance"));
}

TEST(ExplainTest, UnknownNamesGetTheNearest) {
  EXPECT_EQ(Explain("training.seqlength").status().message(),
            "training.seqlength: unknown key; did you mean `seq_length`?");
}

TEST(ExplainTest, EveryFieldSaysWhatItMeans) {
  for (const FieldPath& field : AllFields()) {
    ASSERT_OK_AND_ASSIGN(const std::string text, Explain(field.path));
    EXPECT_EQ(text.find("\n  \n"), std::string::npos) << field.path << " has no comment";
  }
}

TEST(ExplainTest, TheDocumentationIsUpToDate) {
  std::ifstream file(SLIPWAY_SOURCE_DIR "/docs/configuration.md");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), ConfigurationMarkdown())
      << "write it anew: slipway spec explain --markdown > docs/configuration.md";
}

}  // namespace
}  // namespace slipway::engine::spec
