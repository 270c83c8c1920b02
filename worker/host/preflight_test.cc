#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/fault_file_system.h"
#include "common/posix_file_system.h"
#include "common/str_cat.h"
#include "engine/arch/hf_config.h"
#include "engine/checkpoint/test_checkpoint.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_reader.h"
#include "engine/spec/spec_writer.h"
#include "tests/support/corpus_files.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "worker/host/preflight_command.h"
#include "worker/link/rank_files.h"

namespace slipway::worker::host {
namespace {

using slipway::v1::PreflightResult;
using slipway::v1::SpecFault;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Property;

std::string Golden(const std::string& name) { return StrCat(SLIPWAY_SOURCE_DIR, "/tests/golden/data/", name); }

auto Fault(const std::string& path, const std::string& text) {
  return AllOf(Property(&SpecFault::path, path), Property(&SpecFault::message, HasSubstr(text)));
}

class PreflightTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(files_.MakeDirectories(model_));
    for (const char* file : {"config.json", "model.safetensors"}) CopyFile(JoinPath(Golden("llama"), file), model_);
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      CopyFile(JoinPath(Golden("toy_tokenizer"), file), model_);
    Write("chats.jsonl",
          R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})"
          "\n");
  }

  void CopyFile(const std::string& from, const std::string& directory) {
    ASSERT_OK(files_.WriteFileAtomically(JoinPath(directory, BaseName(from)), *files_.ReadFile(from)));
  }
  void Write(const std::string& name, const std::string& text) {
    ASSERT_OK(files_.WriteFileAtomically(temp_.Path(name), text));
  }

  void EditConfig(const char* key, const nlohmann::json& value) {
    const std::string path = JoinPath(model_, "config.json");
    nlohmann::json config = nlohmann::json::parse(*files_.ReadFile(path));
    config[key] = value;
    ASSERT_OK(files_.WriteFileAtomically(path, config.dump()));
  }

  // The model's weights without some tensor, in files of at most `max_file_bytes`.
  void RewriteWeights(const std::string& without, int64_t max_file_bytes = 5'000'000'000) {
    const std::string old = temp_.Path("old");
    ASSERT_OK(files_.MakeDirectories(old));
    ASSERT_OK(files_.Rename(JoinPath(model_, "model.safetensors"), JoinPath(old, "model.safetensors")));
    ASSERT_OK_AND_ASSIGN(const auto weights, engine::format::HfWeights::Open(files_, old));
    std::vector<engine::format::HfTensorSpec> tensors;
    for (const auto& tensor : weights.tensors()) {
      if (tensor.stored.name == without) continue;
      tensors.push_back({tensor.stored.name, tensor.stored.shape, tensor.stored.dtype, tensor.stored.dtype});
    }
    ASSERT_OK(engine::format::WriteHfWeights(files_, model_, tensors, {.max_file_bytes = max_file_bytes},
                                             engine::format::SourceFromWeights(weights))
                  .status());
  }

  worker::v1::WorkerLaunch Launch(const std::string& model = "", const std::string& more = "") {
    const std::string text =
        StrCat("name: t\nmodel: {", model.empty() ? StrCat("hf_path: ", model_) : model, "}\n",
               "dataset: {kind: chat, path: ", temp_.Path("chats.jsonl"), "}\noptimizer: {lr: 1e-3}\n",
               "training: {train_iters: 5, global_batch_size: 1, seq_length: 64}\n", more);
    const auto read = engine::spec::ReadSpec(text, "job.yaml");
    EXPECT_THAT(read.faults, IsEmpty());
    worker::v1::WorkerLaunch launch;
    *launch.mutable_spec() = engine::spec::Resolve(read.spec);
    launch.set_job_id("job-test");
    launch.set_device("cpu");
    launch.set_output_dir(temp_.Path("output"));
    launch.set_checkpoint_dir(temp_.Path("output/checkpoints"));
    launch.set_state_dir(temp_.Path("state"));
    return launch;
  }
  PreflightResult Run() { return Preflight(files_, Launch()); }

  testing::TempDir temp_;
  PosixFileSystem files_;
  const std::string model_ = temp_.Path("model");
};

TEST_F(PreflightTest, AGoodJobHasAReportOfItsData) {
  const PreflightResult result = Run();
  EXPECT_THAT(result.faults(), IsEmpty());
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.dataset().samples(), 1);
  EXPECT_GT(result.dataset().loss_tokens(), 5);
  EXPECT_THAT(result.dataset().special_tokens(), ElementsAre("BOS none", "EOS 258 <|endoftext|>", "PAD 259 <|pad|>"));
}

TEST_F(PreflightTest, TheCommandWritesItsResultAlsoWithFaults) {
  worker::v1::WorkerLaunch launch = Launch();
  launch.mutable_spec()->mutable_dataset()->set_path(temp_.Path("none.jsonl"));
  ASSERT_OK(files_.MakeDirectories(launch.state_dir()));
  ASSERT_OK(link::WriteLaunch(files_, temp_.Path("launch"), launch));
  EXPECT_EQ(PreflightCommand(temp_.Path("launch")), 0);
  ASSERT_OK_AND_ASSIGN(const PreflightResult result, link::ReadPreflightResult(files_, launch.state_dir()));
  EXPECT_FALSE(result.ok());
  EXPECT_THAT(result.faults(), ElementsAre(Fault("dataset.path", "none.jsonl")));
  EXPECT_NE(PreflightCommand(temp_.Path("no launch")), 0);
}

TEST_F(PreflightTest, FaultsOfAllPartsComeAtOnce) {
  RewriteWeights("model.norm.weight");
  Write("output", "a file where a directory should be");
  worker::v1::WorkerLaunch launch = Launch();
  launch.set_device("abacus");
  launch.mutable_spec()->mutable_optimizer()->set_adam_beta1(2);
  const PreflightResult result = Preflight(files_, launch);
  EXPECT_THAT(result.faults(), Contains(Fault("parallelism.device", "abacus")));
  EXPECT_THAT(result.faults(), Contains(Fault("optimizer.adam_beta1", "2")));
  EXPECT_THAT(result.faults(), Contains(Fault("model.hf_path", "model.norm.weight is missing")));
  EXPECT_THAT(result.faults(), Contains(Fault("output", temp_.Path("output"))));
  EXPECT_FALSE(result.ok());
}

TEST_F(PreflightTest, M1AnUntiedModelNeedsItsOutputLayer) {
  RewriteWeights("lm_head.weight");
  EXPECT_THAT(Run().faults(),
              ElementsAre(Fault("model.hf_path", "lm_head.weight is missing (tie_word_embeddings is false)")));
  EditConfig("tie_word_embeddings", true);
  EXPECT_THAT(Run().faults(), IsEmpty());
}

TEST_F(PreflightTest, M1ATiedModelMustNotHaveAnotherOutputLayer) {
  EditConfig("tie_word_embeddings", true);
  EXPECT_THAT(Run().faults(),
              ElementsAre(Fault("model.hf_path", "lm_head.weight differs from model.embed_tokens.weight although")));
}

TEST_F(PreflightTest, M2AMissingOrCutShardIsNamed) {
  RewriteWeights("", 100'000);
  EXPECT_THAT(Run().faults(), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const auto weights, engine::format::HfWeights::Open(files_, model_));
  const std::string shard = weights.files().back();
  const std::string bytes = *files_.ReadFile(JoinPath(model_, shard));
  ASSERT_OK(files_.WriteFileAtomically(JoinPath(model_, shard), std::string_view(bytes).substr(0, bytes.size() - 10)));
  EXPECT_THAT(Run().faults(), ElementsAre(Fault("model.hf_path", shard)));
  ASSERT_OK(files_.RemoveFile(JoinPath(model_, shard)));
  EXPECT_THAT(Run().faults(), ElementsAre(Fault("model.hf_path", shard)));
}

TEST_F(PreflightTest, M7IdsBeyondTheEmbeddingAreRefusedWithBothNumbers) {
  const std::string path = JoinPath(model_, "tokenizer.json");
  nlohmann::json tokenizer = nlohmann::json::parse(*files_.ReadFile(path));
  nlohmann::json added = tokenizer["added_tokens"].back();
  added["id"] = 260;
  added["content"] = "<|more|>";
  tokenizer["added_tokens"].push_back(added);
  ASSERT_OK(files_.WriteFileAtomically(path, tokenizer.dump()));
  EXPECT_THAT(Run().faults(),
              ElementsAre(AllOf(Fault("tokenizer.path", "token id 260"), Fault("tokenizer.path", "260 rows"))));
}

TEST_F(PreflightTest, ATemplateThatDoesNotParseIsTheTokenizersFault) {
  Write("bad.jinja", "{% for %}");
  worker::v1::WorkerLaunch launch =
      Launch("", StrCat("tokenizer: {chat_template_path: ", temp_.Path("bad.jinja"), "}\n"));
  EXPECT_THAT(Preflight(files_, launch).faults(), ElementsAre(Fault("tokenizer.path", "bad.jinja")));
}

TEST_F(PreflightTest, ALinkOutOfTheRootsIsRefusedAndNotFollowed) {
  worker::v1::WorkerLaunch launch = Launch();
  launch.add_allowed_roots(temp_.path());
  EXPECT_THAT(Preflight(files_, launch).faults(), IsEmpty());
  std::filesystem::create_directory_symlink("/etc", temp_.Path("link"));
  launch.mutable_spec()->mutable_tokenizer()->set_path(temp_.Path("link"));
  launch.set_output_dir(temp_.Path("link/slipway"));
  const PreflightResult result = Preflight(files_, launch);
  EXPECT_THAT(result.faults(), ElementsAre(Fault("tokenizer.path", "none of the allowed roots"),
                                           Fault("output", "slipwayd --allow-root")));
}

TEST_F(PreflightTest, ACheckpointThatDoesNotFitIsAFaultAndFewOfThemANote) {
  FaultFileSystem small(files_);
  small.SetFreeBytes(100'000);  // the model has about 100,000 parameters of 12 bytes
  EXPECT_THAT(Preflight(small, Launch()).faults(),
              ElementsAre(Fault("checkpoint.path", "one checkpoint does not fit")));
  small.SetFreeBytes(2'000'000);
  const PreflightResult result = Preflight(small, Launch("", "checkpoint: {save_interval: 1, keep_last: 2}\n"));
  EXPECT_THAT(result.faults(), IsEmpty());
  EXPECT_THAT(result.dataset().notes(), Contains(HasSubstr("the checkpoints that the job keeps")));
}

// The model has 260 ids.
TEST_F(PreflightTest, TokenIdsOfIndexedDataBeyondTheModelsAreRefusedWithTheirPlace) {
  const std::vector<int32_t> good(100, 259);
  std::vector<int32_t> bad = good;
  bad[33] = 260;
  const std::string train = testing::WriteDataset(files_, temp_.Path("train"), {good, good, good});
  const std::string held_out = testing::WriteDataset(files_, temp_.Path("held-out"), {good, good, good});
  worker::v1::WorkerLaunch launch = Launch();
  slipway::v1::DatasetSpec* dataset = launch.mutable_spec()->mutable_dataset();
  dataset->set_kind("indexed");
  dataset->set_path(train);
  dataset->set_validation_path(held_out);
  launch.mutable_spec()->mutable_validation()->set_eval_interval(2);
  EXPECT_THAT(Preflight(files_, launch).faults(), IsEmpty());
  testing::WriteDataset(files_, train, {good, good, bad});
  testing::WriteDataset(files_, held_out, {bad, good, good});
  const std::string text = "token 33) holds the id 260, but the model has 260 ids";
  EXPECT_THAT(Preflight(files_, launch).faults(),
              ElementsAre(Fault("dataset.path", StrCat(train, ".bin: document 2 (sequence 2, ", text)),
                          Fault("dataset.validation_path", StrCat(held_out, ".bin: document 0 (sequence 0, ", text))));
}

TEST_F(PreflightTest, APretrainedCheckpointMustHaveTheModelsShapes) {
  ASSERT_OK_AND_ASSIGN(const auto arch, engine::arch::ReadHfConfig(JoinPath(model_, "config.json")));
  ASSERT_OK_AND_ASSIGN(const auto tensors, engine::checkpoint::ReadFloatTensors(files_, model_));
  const auto spec = Launch().spec();
  ASSERT_OK_AND_ASSIGN(const std::string checkpoint,
                       engine::checkpoint::WriteTestCheckpoint(files_, temp_.Path("other"), arch, tensors,
                                                               {7, 1, engine::spec::SpecToJson(spec), ""}));
  worker::v1::WorkerLaunch launch = Launch();
  launch.mutable_spec()->mutable_model()->set_pretrained_checkpoint(checkpoint);
  EXPECT_THAT(Preflight(files_, launch).faults(), IsEmpty());
  EditConfig("intermediate_size", 72);
  EXPECT_THAT(Preflight(files_, launch).faults(),
              Contains(Fault("model.pretrained_checkpoint", "mlp.gate_proj.weight")));
}

TEST_F(PreflightTest, ARunThatResumesDoesNotNeedItsFirstWeights) {
  ASSERT_OK_AND_ASSIGN(const auto arch, engine::arch::ReadHfConfig(JoinPath(model_, "config.json")));
  ASSERT_OK_AND_ASSIGN(const auto tensors, engine::checkpoint::ReadFloatTensors(files_, model_));
  worker::v1::WorkerLaunch launch = Launch();
  ASSERT_OK(engine::checkpoint::WriteTestCheckpoint(files_, launch.checkpoint_dir(), arch, tensors,
                                                    {3, 1, engine::spec::SpecToJson(launch.spec()), ""})
                .status());
  ASSERT_OK(files_.RemoveFile(JoinPath(model_, "model.safetensors")));
  EXPECT_THAT(Preflight(files_, launch).faults(), ElementsAre(Fault("model.hf_path", "model.safetensors")));
  launch.add_lineage()->set_epoch(1);
  EXPECT_THAT(Preflight(files_, launch).faults(), IsEmpty());
}

TEST_F(PreflightTest, ARootWithAnotherJobsCheckpointsIsRefusedAndItsWeightsMayBeTaken) {
  ASSERT_OK_AND_ASSIGN(const auto arch, engine::arch::ReadHfConfig(JoinPath(model_, "config.json")));
  ASSERT_OK_AND_ASSIGN(const auto tensors, engine::checkpoint::ReadFloatTensors(files_, model_));
  worker::v1::WorkerLaunch launch = Launch();
  ASSERT_OK_AND_ASSIGN(const std::string theirs, engine::checkpoint::WriteTestCheckpoint(
                                                     files_, launch.checkpoint_dir(), arch, tensors,
                                                     {3, 1, engine::spec::SpecToJson(launch.spec()), "", "job-first"}));
  EXPECT_THAT(
      Preflight(files_, launch).faults(),
      ElementsAre(AllOf(Fault("checkpoint.path", launch.checkpoint_dir()), Fault("checkpoint.path", "job-first"),
                        Fault("checkpoint.path", "a checkpoint.path of its own"))));
  launch.set_checkpoint_dir(temp_.Path("output/mine"));
  launch.mutable_spec()->mutable_model()->set_pretrained_checkpoint(theirs);
  EXPECT_THAT(Preflight(files_, launch).faults(), IsEmpty());
}

TEST_F(PreflightTest, FewerStepsThanTheJobHasDoneAreRefusedWithBothNumbers) {
  ASSERT_OK_AND_ASSIGN(const auto arch, engine::arch::ReadHfConfig(JoinPath(model_, "config.json")));
  ASSERT_OK_AND_ASSIGN(const auto tensors, engine::checkpoint::ReadFloatTensors(files_, model_));
  worker::v1::WorkerLaunch launch = Launch();
  ASSERT_OK(engine::checkpoint::WriteTestCheckpoint(files_, launch.checkpoint_dir(), arch, tensors,
                                                    {3, 1, engine::spec::SpecToJson(launch.spec()), ""})
                .status());
  launch.add_lineage()->set_epoch(1);
  launch.mutable_spec()->mutable_training()->set_train_iters(2);
  EXPECT_THAT(Preflight(files_, launch).faults(), ElementsAre(AllOf(Fault("training.train_iters", "2 is below"),
                                                                    Fault("training.train_iters", "of step 3"))));
}

}  // namespace
}  // namespace slipway::worker::host
