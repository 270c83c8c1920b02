#include "worker/host/model_commands.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/posix_file_system.h"
#include "common/str_cat.h"
#include "engine/arch/hf_config.h"
#include "engine/checkpoint/test_checkpoint.h"
#include "engine/model/generation.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_reader.h"
#include "engine/spec/spec_writer.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "worker/host/loaded_model.h"

namespace slipway::worker::host {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::string Golden(const std::string& name) { return StrCat(SLIPWAY_SOURCE_DIR, "/tests/golden/data/", name); }

class ModelCommandsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(files_.MakeDirectories(model_));
    for (const char* file : {"config.json", "model.safetensors"}) CopyFile(JoinPath(Golden("llama"), file));
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
      CopyFile(JoinPath(Golden("toy_tokenizer"), file));
  }
  void CopyFile(const std::string& from) {
    ASSERT_OK(files_.WriteFileAtomically(JoinPath(model_, BaseName(from)), *files_.ReadFile(from)));
  }
  void EditConfig(const char* key, const nlohmann::json& value) {
    const std::string path = JoinPath(model_, "config.json");
    nlohmann::json config = nlohmann::json::parse(*files_.ReadFile(path));
    config[key] = value;
    ASSERT_OK(files_.WriteFileAtomically(path, config.dump()));
  }

  std::string MakeCheckpoint() {
    const auto read = engine::spec::ReadSpec(
        StrCat("name: t\nmodel: {hf_path: ", model_, "}\ndataset: {kind: mock}\noptimizer: {lr: 1e-3}\n",
               "training: {train_iters: 5, global_batch_size: 1, seq_length: 8}\n"),
        "job.yaml");
    EXPECT_THAT(read.faults, IsEmpty());
    const auto checkpoint = engine::checkpoint::WriteTestCheckpoint(
        files_, temp_.Path("checkpoints"), *engine::arch::ReadHfConfig(JoinPath(model_, "config.json")),
        *engine::checkpoint::ReadFloatTensors(files_, model_),
        {5, 1, engine::spec::SpecToJson(engine::spec::Resolve(read.spec)),
         *files_.ReadFile(JoinPath(model_, "config.json"))});
    EXPECT_OK(checkpoint.status());
    return checkpoint.value_or("");
  }

  GenerateOptions Prompt(const std::string& text, int64_t tokens = 12) {
    GenerateOptions options;
    options.compute = {.model = model_, .threads = 1};
    options.prompt = text;
    options.max_new_tokens = tokens;
    return options;
  }
  std::string Reply(const GenerateOptions& options) {
    std::ostringstream out;
    EXPECT_OK(Generate(options, out));
    return out.str();
  }
  nlohmann::json Loss(EvalOptions options) {
    options.compute = {.model = model_, .threads = 1};
    options.output = "json";
    std::ostringstream out;
    EXPECT_OK(Eval(options, out));
    return nlohmann::json::parse(out.str());
  }

  testing::TempDir temp_;
  PosixFileSystem files_;
  const std::string model_ = temp_.Path("model");
};

TEST_F(ModelCommandsTest, AReplyIsTheTextOfTheModelsTokens) {
  const GenerateOptions options = Prompt("Hello");
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(files_, options.compute));
  ASSERT_OK_AND_ASSIGN(const auto tokenizer, LoadTokenizer(model));
  engine::model::GenerationOptions generation;
  generation.max_new_tokens = 12;
  generation.stop_ids = {257, 258};  // of config.json and of the tokenizer
  const std::vector<int64_t> ids =
      engine::model::Generate(model.instance.pieces(), {'H', 'e', 'l', 'l', 'o'}, generation);
  std::vector<int32_t> shown(ids.begin(), ids.end());
  if (shown.back() == 257 || shown.back() == 258) shown.pop_back();
  ASSERT_OK_AND_ASSIGN(const std::string text, tokenizer->Decode(shown, /*skip_special_tokens=*/true));
  EXPECT_EQ(Reply(options), text + "\n");
}

TEST_F(ModelCommandsTest, AReplyForProgramsSaysWhyItEnded) {
  GenerateOptions options = Prompt("Hello", 3);
  const std::string text = Reply(options);
  options.output = "json";
  const auto reply = nlohmann::json::parse(Reply(options));
  EXPECT_EQ(reply["text"].get<std::string>() + "\n", text);
  EXPECT_EQ(reply["prompt_tokens"], 5);
  EXPECT_LE(reply["new_tokens"], 3);
  EXPECT_EQ(reply["ended_by"] == "length", reply["new_tokens"] == 3);
  options.output = "yaml";
  EXPECT_THAT(Reply(options), AllOf(StartsWith("text: "), HasSubstr("\nprompt_tokens: 5\n")));
}

TEST_F(ModelCommandsTest, AReplyThatNobodyReadsIsAnError) {
  std::ostringstream out;
  out.setstate(std::ios::badbit);
  EXPECT_THAT(Generate(Prompt("Hello"), out), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("could not be written")));
}

TEST_F(ModelCommandsTest, DrawsDependOnTheSeedAlone) {
  GenerateOptions options = Prompt("Hello", 40);
  options.temperature = 2;
  const std::string first = Reply(options);
  EXPECT_EQ(Reply(options), first);
  options.seed = 1;
  EXPECT_NE(Reply(options), first);
}

TEST_F(ModelCommandsTest, AChatIsRenderedWithTheHeaderOfTheReply) {
  GenerateOptions chat = Prompt("");
  chat.prompt.reset();
  chat.chat = "Hi";
  chat.system = "Be kind.";
  EXPECT_EQ(
      Reply(chat),
      Reply(Prompt("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")));
}

TEST_F(ModelCommandsTest, TheEndTokenEndsAReplyAndIsNotShown) {
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(files_, Prompt("").compute));
  engine::model::GenerationOptions generation;
  generation.max_new_tokens = 3;
  const std::vector<int64_t> ids = engine::model::Generate(model.instance.pieces(), {'A'}, generation);
  EditConfig("eos_token_id", ids[0]);
  EXPECT_EQ(Reply(Prompt("A")), "\n");
}

TEST_F(ModelCommandsTest, ACheckpointSpeaksAsItsModelDoes) {
  GenerateOptions options = Prompt("Hello");
  const std::string expected = Reply(options);
  options.compute.model = MakeCheckpoint();
  EXPECT_EQ(Reply(options), expected);
}

TEST_F(ModelCommandsTest, PromptsThatCannotBeAnswered) {
  std::ostringstream out;
  EXPECT_THAT(Generate(Prompt(""), out),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the prompt is empty")));
  EXPECT_THAT(Generate(Prompt(std::string(513, 'a')), out),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("513 tokens, the model has 512 positions")));
  EXPECT_THAT(Generate(Prompt(std::string(512, 'a')), out),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nothing can follow")));
  EXPECT_THAT(out.str(), IsEmpty());
  GenerateOptions nowhere = Prompt("a");
  nowhere.compute.model = temp_.Path("nowhere");
  EXPECT_THAT(Generate(nowhere, out), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nowhere/config.json")));
}

TEST_F(ModelCommandsTest, AModelThatIsNotWholeIsRefused) {
  EditConfig("tie_word_embeddings", true);
  std::ostringstream out;
  EXPECT_THAT(Generate(Prompt("a"), out),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("lm_head.weight differs")));
}

TEST_F(ModelCommandsTest, TheLossOfATextIsTheMeanOverItsTokens) {
  EvalOptions options;
  options.text = "abcd";
  const nlohmann::json whole = Loss(options);
  EXPECT_EQ(whole["loss_tokens"], 3);
  EXPECT_NEAR(whole["perplexity"].get<double>(), std::exp(whole["loss"].get<double>()), 1e-9);
  ASSERT_OK_AND_ASSIGN(const LoadedModel model, LoadModel(files_, Prompt("").compute));
  const at::NoGradGuard no_grad;
  engine::model::MicroBatch batch;
  batch.tokens = at::tensor({int64_t{'a'}, int64_t{'b'}, int64_t{'c'}});
  batch.layout = engine::nn::MakeSequenceLayout({3}, {0}, 3, at::kCPU);
  const engine::nn::ForwardContext context{.layout = &batch.layout, .training = false};
  const at::Tensor logits = engine::model::ForwardPieces(model.instance.pieces(), {}, batch, context);
  const at::Tensor labels = at::tensor({int64_t{'b'}, int64_t{'c'}, int64_t{'d'}});
  EXPECT_NEAR(whole["loss"].get<double>(), at::cross_entropy_loss(logits, labels).item<double>(), 1e-4);
  options.text = "a";
  std::ostringstream out;
  options.compute.model = model_;
  EXPECT_THAT(Eval(options, out), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("at least two tokens")));
}

// No gradients, master weights or moments, which make a model that trains up to nine times as large.
TEST_F(ModelCommandsTest, AModelThatOnlyComputesTakesTheBytesOfItsWeights) {
  const std::string checkpoint = MakeCheckpoint();
  for (const std::string& model : {model_, checkpoint}) {
    for (const auto& [dtype, size] : {std::pair{"float32", 4}, std::pair{"bfloat16", 2}}) {
      ASSERT_OK_AND_ASSIGN(LoadedModel loaded, LoadModel(files_, {.model = model, .dtype = dtype, .threads = 1}));
      engine::parallel::FlatStore& store = loaded.instance.store();
      int64_t elements = 0, bytes = 0;
      for (const engine::parallel::LogicalShare& share : store.shares()) elements += share.elements;
      for (const engine::parallel::Bucket& bucket : store.buckets()) {
        for (const at::Tensor& buffer :
             {bucket.weights, bucket.main_grads, bucket.master, bucket.exp_avg, bucket.exp_avg_sq}) {
          if (buffer.defined()) bytes += static_cast<int64_t>(buffer.nbytes());
        }
        EXPECT_GT(bucket.weights.abs().sum().item<float>(), 0.f);
      }
      EXPECT_GE(bytes, elements * size) << model;
      EXPECT_LE(bytes, (elements + elements / 3) * size) << model << ": more than weights and the vocabulary's padding";
    }
  }
}

TEST_F(ModelCommandsTest, TheLossOfAChatFileCountsAssistantTokens) {
  const std::string chat =
      R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})";
  ASSERT_OK(files_.WriteFileAtomically(temp_.Path("one.jsonl"), chat + "\n"));
  ASSERT_OK(files_.WriteFileAtomically(temp_.Path("two.jsonl"), chat + "\n" + chat + "\n"));
  EvalOptions options;
  options.data = temp_.Path("one.jsonl");
  const nlohmann::json one = Loss(options);
  EXPECT_EQ(one["loss_tokens"], 6);  // five letters and <|im_end|>
  options.data = temp_.Path("two.jsonl");
  const nlohmann::json two = Loss(options);
  EXPECT_EQ(two["loss_tokens"], 12);
  EXPECT_NEAR(two["loss"].get<double>(), one["loss"].get<double>(), 1e-6);
}

TEST_F(ModelCommandsTest, AnExportedCheckpointSpeaksAsItsModelDoes) {
  std::ostringstream out, notes;
  ExportOptions options{.checkpoint = MakeCheckpoint(), .out = temp_.Path("exported")};
  ASSERT_OK(Export(options, out, notes));
  EXPECT_THAT(out.str(), StartsWith(temp_.Path("exported") + ": "));
  EXPECT_EQ(notes.str(), "");
  GenerateOptions original = Prompt("Hello"), exported = original;
  exported.compute.model = temp_.Path("exported");
  EXPECT_EQ(Reply(exported), Reply(original));
  EXPECT_THAT(Export(options, out, notes), StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("exported")));
}

TEST(ModelCommandFlagsTest, AskForOneTextAndKnownTypes) {
  const auto parses = [](const std::string& line) {
    CLI::App app;
    GenerateOptions generate;
    ExportOptions to_hf;
    EvalOptions eval;
    AddGenerateFlags(*app.add_subcommand("generate"), generate);
    AddExportFlags(*app.add_subcommand("export"), to_hf);
    AddEvalFlags(*app.add_subcommand("eval"), eval);
    try {
      app.parse(line);
      return true;
    } catch (const CLI::ParseError&) {
      return false;
    }
  };
  EXPECT_TRUE(
      parses("generate --model m --chat hi --system s --temperature 0.7 --top-p 0.9 --seed 3 --max-new-tokens 5"));
  EXPECT_FALSE(parses("generate --model m"));
  EXPECT_FALSE(parses("generate --model m --prompt a --chat b"));
  EXPECT_FALSE(parses("generate --model m --prompt a --system s"));
  EXPECT_FALSE(parses("generate --model m --prompt a --top-p 1.5"));
  EXPECT_TRUE(parses("export --checkpoint c --out o --dtype float16 --source m"));
  EXPECT_FALSE(parses("export --checkpoint c --out o --dtype int8"));
  EXPECT_TRUE(parses("eval --model m --text t -o json"));
  EXPECT_FALSE(parses("eval --model m --text t --data d"));
}

}  // namespace
}  // namespace slipway::worker::host
