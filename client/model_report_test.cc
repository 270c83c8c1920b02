#include "client/model_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/posix_file_system.h"
#include "engine/format/hf_weights.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kLlama[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/llama";

class ModelReportTest : public ::testing::Test {
 protected:
  // A copy of the tiny model, with changes to config.json and without some tensors.
  void CopyModel(const std::vector<std::pair<std::string, std::string>>& config_changes, const std::string& without) {
    ASSERT_OK_AND_ASSIGN(std::string config, files_.ReadFile(absl::StrCat(kLlama, "/config.json")));
    for (const auto& [from, to] : config_changes) {
      ASSERT_THAT(config, HasSubstr(from));
      config = absl::StrReplaceAll(config, {{from, to}});
    }
    ASSERT_OK(files_.WriteFileAtomically(temp_.Path("config.json"), config));
    ASSERT_OK_AND_ASSIGN(const auto weights, engine::format::HfWeights::Open(files_, kLlama));
    std::vector<engine::format::HfTensorSpec> kept;
    for (const auto& tensor : weights.tensors()) {
      if (tensor.stored.name == without) continue;
      kept.push_back({.name = tensor.stored.name,
                      .shape = tensor.stored.shape,
                      .dtype = tensor.stored.dtype,
                      .source_dtype = tensor.stored.dtype});
    }
    ASSERT_OK(engine::format::WriteHfWeights(files_, temp_.path(), kept, {.max_file_bytes = 100'000},
                                             engine::format::SourceFromWeights(weights)));
  }
  std::vector<std::string> Faults() {
    const auto report = InspectModel(temp_.path());
    EXPECT_OK(report);
    return report.ok() ? report->faults : std::vector<std::string>();
  }

  PosixFileSystem files_;
  testing::TempDir temp_;
};

TEST_F(ModelReportTest, DescribesAModel) {
  ASSERT_OK_AND_ASSIGN(const ModelReport report, InspectModel(kLlama));
  EXPECT_THAT(report.faults, IsEmpty());
  EXPECT_THAT(report.text, HasSubstr("parameters        84,288\n"));
  EXPECT_THAT(report.text, HasSubstr("21 tensors (21 float32), 329.2 KiB in 1 file\n"));
  CopyModel({}, "");
  EXPECT_THAT(Faults(), IsEmpty());  // in shards
}

TEST_F(ModelReportTest, M1AnOutputMatrixMustBeThereOrTied) {
  CopyModel({}, "lm_head.weight");
  EXPECT_THAT(Faults(), ElementsAre("lm_head.weight is missing (tie_word_embeddings is false)"));
}

TEST_F(ModelReportTest, M1ATiedOutputMatrixMustBeTheEmbedding) {
  CopyModel({{"\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true"}}, "");
  EXPECT_THAT(Faults(), ElementsAre(HasSubstr("lm_head.weight differs from model.embed_tokens.weight although "
                                              "config.json says tie_word_embeddings = true")));
}

TEST_F(ModelReportTest, M2AMissingShardIsNamed) {
  CopyModel({}, "");
  ASSERT_OK_AND_ASSIGN(const auto weights, engine::format::HfWeights::Open(files_, temp_.path()));
  ASSERT_GT(weights.files().size(), 1u);
  ASSERT_OK(files_.RemoveFile(temp_.Path(weights.files()[1])));
  EXPECT_THAT(Faults(), ElementsAre(HasSubstr(weights.files()[1])));
}

TEST_F(ModelReportTest, M2AShapeThatConfigContradictsIsNamedWithBoth) {
  CopyModel({{"\"intermediate_size\": 68", "\"intermediate_size\": 72"}}, "");
  EXPECT_THAT(Faults(), ::testing::Contains(
                            "model.layers.0.mlp.gate_proj.weight has shape [68, 64], config.json makes it [72, 64]"));
}

TEST_F(ModelReportTest, ADirectoryWithoutConfigIsNotFound) {
  EXPECT_THAT(InspectModel(temp_.path()), testing::StatusIs(absl::StatusCode::kNotFound, HasSubstr("config.json")));
}

}  // namespace
}  // namespace slipway::client
