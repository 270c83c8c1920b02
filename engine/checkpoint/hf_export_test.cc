#include "engine/checkpoint/hf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/fault_file_system.h"
#include "common/posix_file_system.h"
#include "common/str_cat.h"
#include "engine/arch/hf_config.h"
#include "engine/arch/presets.h"
#include "engine/checkpoint/test_checkpoint.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_reader.h"
#include "engine/spec/spec_writer.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::engine::checkpoint {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::string GoldenDirectory(const std::string& model) {
  return StrCat(SLIPWAY_SOURCE_DIR, "/tests/golden/data/", model);
}

// Every tensor of a model directory: its type and bytes.
std::map<std::string, std::pair<DType, std::string>> Contents(FileSystem& files, const std::string& directory) {
  std::map<std::string, std::pair<DType, std::string>> contents;
  const auto weights = format::HfWeights::Open(files, directory);
  EXPECT_OK(weights.status());
  if (!weights.ok()) return contents;
  for (const format::HfTensor& tensor : weights->tensors()) {
    std::string bytes(static_cast<size_t>(tensor.stored.bytes), '\0');
    EXPECT_OK(weights->Read(tensor, 0, absl::MakeSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
    contents[tensor.stored.name] = {tensor.stored.dtype, bytes};
  }
  return contents;
}

class HfExportTest : public ::testing::Test {
 protected:
  // A directory of its own for the model, so that a test can add to it.
  std::string CopyOfGolden(const std::string& name) {
    const std::string to = temp_.Path("model");
    EXPECT_OK(files_.MakeDirectories(to));
    for (const char* file : {"config.json", "model.safetensors"}) {
      EXPECT_OK(
          files_.WriteFileAtomically(JoinPath(to, file), *files_.ReadFile(JoinPath(GoldenDirectory(name), file))));
    }
    return to;
  }

  // The golden model with another type for each tensor; `factor` for final norm's elements.
  std::string ModelOfTypes(const std::string& name, DType matrices, DType norms, float norm_factor = 1) {
    const std::string to = CopyOfGolden(name);
    EXPECT_OK(files_.RemoveFile(JoinPath(to, "model.safetensors")));
    auto arch = *arch::ReadHfConfig(JoinPath(to, "config.json"));
    FloatTensors tensors = *ReadFloatTensors(files_, GoldenDirectory(name));
    for (float& value : tensors.at(arch::kFinalNormName)) value *= norm_factor;
    std::vector<format::HfTensorSpec> specs;
    for (const arch::ParamSpec& spec : arch::BuildParamTable(arch)) {
      if (spec.tied_to) continue;
      specs.push_back({spec.name, spec.shape, spec.shape.size() == 1 ? norms : matrices, DType::kFloat32});
    }
    const auto source = [&](const format::HfTensorSpec& spec, const format::AppendBytes& append) {
      const std::vector<float>& values = tensors.at(spec.name);
      return append(
          absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)));
    };
    EXPECT_OK(format::WriteHfWeights(files_, to, specs, {}, source).status());
    arch.dtype = matrices;
    EXPECT_OK(files_.WriteFileAtomically(JoinPath(to, "config.json"), *arch::WriteHfConfig(arch)));
    return to;
  }

  v1::TrainingSpec SpecOf(const std::string& model) {
    const auto read =
        spec::ReadSpec(StrCat("name: t\nmodel: {", model, "}\ndataset: {kind: mock}\noptimizer: {lr: 1e-3}\n",
                              "training: {train_iters: 5, global_batch_size: 1, seq_length: 8}\n"),
                       "job.yaml");
    EXPECT_THAT(read.faults, IsEmpty());
    return spec::Resolve(read.spec);
  }

  std::string Checkpoint(const std::string& model_dir, const v1::TrainingSpec& spec, int64_t step = 5,
                         int64_t epoch = 1) {
    const auto directory = WriteTestCheckpoint(
        files_, temp_.Path("checkpoints"), *arch::ReadHfConfig(JoinPath(model_dir, "config.json")),
        *ReadFloatTensors(files_, model_dir),
        {step, epoch, spec::SpecToJson(spec), *files_.ReadFile(JoinPath(model_dir, "config.json"))});
    EXPECT_OK(directory.status());
    return directory.value_or("");
  }
  std::string Checkpoint(const std::string& model_dir) {
    return Checkpoint(model_dir, SpecOf(StrCat("hf_path: ", model_dir)));
  }

  nlohmann::json Config(const std::string& directory) {
    return nlohmann::json::parse(*files_.ReadFile(JoinPath(directory, "config.json")));
  }

  testing::TempDir temp_;
  PosixFileSystem files_;
  const std::string out_ = temp_.Path("out");
};

class HfExportOfGolden : public HfExportTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(HfExportOfGolden, WhatWasNotTrainedIsWrittenBackBitForBit) {
  const std::string model = CopyOfGolden(GetParam());
  ASSERT_OK(ExportCheckpoint(files_, Checkpoint(model), {.out_dir = out_, .verify_checksums = true}).status());
  EXPECT_EQ(Contents(files_, out_), Contents(files_, model));  // also: no lm_head.weight where it is tied
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch exported, arch::ReadHfConfig(JoinPath(out_, "config.json")));
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch original, arch::ReadHfConfig(JoinPath(model, "config.json")));
  EXPECT_EQ(exported, original);
}

INSTANTIATE_TEST_SUITE_P(All, HfExportOfGolden, ::testing::Values("llama", "qwen2", "qwen3", "qwen3_tied"),
                         [](const auto& instance) { return instance.param; });

TEST_F(HfExportTest, M8TypesOfTheModelAreKeptTensorByTensor) {
  const std::string model = ModelOfTypes("qwen3_tied", DType::kBFloat16, DType::kFloat32);
  ASSERT_OK(ExportCheckpoint(files_, Checkpoint(model), {.out_dir = out_}).status());
  const auto contents = Contents(files_, out_);
  EXPECT_EQ(contents, Contents(files_, model));
  EXPECT_EQ(contents.at(arch::kFinalNormName).first, DType::kFloat32);
  EXPECT_EQ(Config(out_)["dtype"], "bfloat16");
}

TEST_F(HfExportTest, M8ARequestedTypeHoldsForEveryTensorAndForTheConfig) {
  const std::string model = ModelOfTypes("llama", DType::kBFloat16, DType::kFloat32);
  const std::string checkpoint = Checkpoint(model);
  int64_t elements = 0;
  for (const auto& spec : arch::BuildParamTable(*arch::ReadHfConfig(JoinPath(model, "config.json"))))
    elements += spec.NumElements();
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const std::string name(DTypeName(dtype));
    ASSERT_OK_AND_ASSIGN(const ExportResult result,
                         ExportCheckpoint(files_, checkpoint, {.out_dir = temp_.Path(name), .dtype = dtype}));
    EXPECT_EQ(result.weights.total_bytes, elements * DTypeSize(dtype));
    EXPECT_THAT(result.weights.overflows, IsEmpty());
    for (const auto& [tensor, content] : Contents(files_, temp_.Path(name))) EXPECT_EQ(content.first, dtype) << tensor;
    EXPECT_EQ(Config(temp_.Path(name))["dtype"], name);
    EXPECT_EQ(Config(temp_.Path(name))["torch_dtype"], name);
  }
}

TEST_F(HfExportTest, M8ElementsThatOverflowAreReported) {
  const std::string model = ModelOfTypes("qwen3", DType::kFloat32, DType::kFloat32, /*norm_factor=*/1e6);
  ASSERT_OK_AND_ASSIGN(const ExportResult result,
                       ExportCheckpoint(files_, Checkpoint(model), {.out_dir = out_, .dtype = DType::kFloat16}));
  ASSERT_EQ(result.weights.overflows.size(), 1u);
  EXPECT_EQ(result.weights.overflows[0].tensor, arch::kFinalNormName);
  EXPECT_EQ(result.weights.overflows[0].elements, 64);
}

TEST_F(HfExportTest, LargeModelsAreWrittenInShards) {
  const std::string model = CopyOfGolden("qwen2");
  ASSERT_OK_AND_ASSIGN(const ExportResult result,
                       ExportCheckpoint(files_, Checkpoint(model), {.out_dir = out_, .max_file_bytes = 100'000}));
  EXPECT_GT(result.weights.files.size(), 2u);
  EXPECT_EQ(Contents(files_, out_), Contents(files_, model));
}

TEST_F(HfExportTest, TokenizerAndSettingsComeFromTheModelOrFromWhereOneSays) {
  const std::string model = CopyOfGolden("llama");
  const std::string other = temp_.Path("other");
  ASSERT_OK(files_.MakeDirectories(other));
  for (const auto& [directory, text] : {std::pair{model, "own"}, std::pair{other, "other"}}) {
    for (const char* name : {"tokenizer.json", "generation_config.json", "README.md", "chat_template.jinja"}) {
      ASSERT_OK(files_.WriteFileAtomically(JoinPath(directory, name), text));
    }
  }
  ASSERT_OK(files_.WriteFileAtomically(temp_.Path("mine.jinja"), "mine"));
  v1::TrainingSpec spec = SpecOf(StrCat("hf_path: ", model));
  spec.mutable_tokenizer()->set_chat_template_path(temp_.Path("mine.jinja"));
  const std::string checkpoint = Checkpoint(model, spec);
  ASSERT_OK_AND_ASSIGN(const ExportResult result, ExportCheckpoint(files_, checkpoint, {.out_dir = out_}));
  EXPECT_THAT(result.copied, UnorderedElementsAre("tokenizer.json", "generation_config.json", "chat_template.jinja"));
  EXPECT_EQ(*files_.ReadFile(JoinPath(out_, "tokenizer.json")), "own");
  EXPECT_EQ(*files_.ReadFile(JoinPath(out_, "chat_template.jinja")), "mine");
  const std::string second = temp_.Path("second");
  ASSERT_OK(ExportCheckpoint(files_, checkpoint, {.out_dir = second, .model_dir = other}).status());
  EXPECT_EQ(*files_.ReadFile(JoinPath(second, "tokenizer.json")), "other");
  EXPECT_EQ(*files_.ReadFile(JoinPath(second, "generation_config.json")), "other");
}

TEST_F(HfExportTest, AModelFromAPresetNeedsNoDirectory) {
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch arch, arch::FindPreset("tiny_llama"));
  FloatTensors tensors;
  for (const arch::ParamSpec& parameter : arch::BuildParamTable(arch)) {
    tensors[parameter.name].assign(static_cast<size_t>(parameter.NumElements()), 0.1f);
  }
  const v1::TrainingSpec spec = SpecOf("preset: tiny_llama");
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint, WriteTestCheckpoint(files_, temp_.Path("checkpoints"), arch,
                                                                         tensors, {5, 1, spec::SpecToJson(spec), ""}));
  ASSERT_OK_AND_ASSIGN(const ExportResult result, ExportCheckpoint(files_, checkpoint, {.out_dir = out_}));
  EXPECT_THAT(result.notes, ElementsAre(HasSubstr("no tokenizer")));
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch exported, arch::ReadHfConfig(JoinPath(out_, "config.json")));
  EXPECT_EQ(exported.hidden_size, arch.hidden_size);
  EXPECT_EQ(exported.dtype, DType::kFloat32);
  for (const auto& [name, content] : Contents(files_, out_)) EXPECT_EQ(content.first, DType::kFloat32) << name;
}

TEST_F(HfExportTest, AnExistingDirectoryIsNotTouched) {
  const std::string checkpoint = Checkpoint(CopyOfGolden("llama"));
  ASSERT_OK(files_.MakeDirectories(out_));
  ASSERT_OK(ExportCheckpoint(files_, checkpoint, {.out_dir = out_ + "/"}).status());  // an empty one will do
  EXPECT_THAT(ExportCheckpoint(files_, checkpoint, {.out_dir = out_}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(out_ + " is not empty")));
  ASSERT_OK(files_.WriteFileAtomically(temp_.Path("file"), "x"));
  EXPECT_THAT(ExportCheckpoint(files_, checkpoint, {.out_dir = temp_.Path("file")}),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("is a file")));
}

TEST_F(HfExportTest, ADamagedCheckpointIsFoundAndNothingIsLeftBehind) {
  const std::string checkpoint = Checkpoint(CopyOfGolden("llama"));
  std::string bytes = *files_.ReadFile(JoinPath(checkpoint, "part-0.bin"));
  bytes[1000] ^= 1;
  ASSERT_OK(files_.WriteFileAtomically(JoinPath(checkpoint, "part-0.bin"), bytes));
  EXPECT_THAT(ExportCheckpoint(files_, checkpoint, {.out_dir = out_, .verify_checksums = true}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("part-0.bin")));
  EXPECT_THAT(*files_.List(temp_.path()), UnorderedElementsAre("model", "checkpoints"));
}

TEST_F(HfExportTest, AFailureAnywhereLeavesNoHalfExport) {
  const std::string checkpoint = Checkpoint(CopyOfGolden("qwen2"));
  FaultFileSystem failing(files_);
  int64_t failures = 0;
  for (int64_t nth = 1;; ++nth) {
    failing.FailAt(nth, FaultKind::kNoSpace);
    const absl::StatusOr<ExportResult> result = ExportCheckpoint(failing, checkpoint, {.out_dir = out_});
    if (result.ok()) break;  // more operations than there are
    ++failures;
    EXPECT_THAT(result, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr(temp_.path())));
    if (*files_.Exists(out_)) {  // only the last sync failed: what is there is whole
      EXPECT_OK(format::HfWeights::Open(files_, out_).status());
      ASSERT_OK(files_.RemoveTree(out_));
    }
    ASSERT_THAT(*files_.List(temp_.path()), UnorderedElementsAre("model", "checkpoints")) << nth;
  }
  EXPECT_GT(failures, 10);
}

TEST_F(HfExportTest, TheLatestOfTheLineageReplacesAnEarlierExport) {
  const std::string model = CopyOfGolden("llama");
  v1::TrainingSpec spec = SpecOf(StrCat("hf_path: ", model));
  Checkpoint(model, spec, /*step=*/5, /*epoch=*/1);
  spec.mutable_checkpoint()->set_export_dtype("bfloat16");
  v1::LineageEntry entry;
  entry.set_epoch(1);
  EXPECT_THAT(ExportLatest(files_, temp_.Path("nothing"), "job-test", {entry}, spec, out_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nothing")));
  ASSERT_OK(files_.MakeDirectories(out_));
  ASSERT_OK(files_.WriteFileAtomically(JoinPath(out_, "stale"), "of an earlier attempt"));
  ASSERT_OK(ExportLatest(files_, temp_.Path("checkpoints"), "job-test", {entry}, spec, out_));
  EXPECT_THAT(*files_.List(out_), UnorderedElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(Config(out_)["dtype"], "bfloat16");
}

}  // namespace
}  // namespace slipway::engine::checkpoint
