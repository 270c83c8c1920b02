// Commands that work without a server: data, models, specs, completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/format.h"
#include "common/subprocess.h"
#include "engine/spec/yaml_tree.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/source_dir.h"

namespace slipway::client {
namespace {

using testing::CliTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kJobFile;
using ::testing::Not;
using testing::Ran;

TEST_F(CliTest, ComputingIsTheWorkers) {
  WriteFile("slipway-worker", "");
  EXPECT_EQ(Run({"generate", "--model", "m", "--chat", "-hi", "--temperature", "0", "--max-new-tokens", "5"}).code, 0);
  EXPECT_THAT(executed_, ElementsAre(directory_ + "/slipway-worker", "generate", "--model", "m", "--chat", "-hi",
                                     "--max-new-tokens", "5", "--temperature", "0"));
  EXPECT_EQ(Run({"model", "export", "--checkpoint", "c", "--out", "o", "--dtype", "bfloat16"}).code, 0);
  EXPECT_THAT(executed_, ElementsAre(directory_ + "/slipway-worker", "export", "--checkpoint", "c", "--out", "o",
                                     "--dtype", "bfloat16"));
  EXPECT_EQ(Run({"generate", "--model", "m"}).code, kExitUsage);
  EXPECT_EQ(Run({"generate", "--model", "m", "--prompt", "a", "--chat", "b"}).code, kExitUsage);
}

TEST_F(CliTest, NumbersOutOfRangeAreRefusedWithTheRange) {
  WriteFile("slipway-worker", "");
  const std::vector<std::string> generate = {"generate", "--model", "m", "--prompt", "a"};
  const std::vector<std::string> prepare = {"data",        "prepare", "--input",         "i",
                                            "--tokenizer", "t",       "--output-prefix", "o"};
  struct Case {
    std::vector<std::string> command;
    std::string flag;
    std::vector<std::string> bad;
  };
  const std::vector<Case> cases = {{generate, "--temperature", {"nan", "inf", "-1", "x"}},
                                   {generate, "--top-p", {"nan", "0", "2", "-0.5"}},
                                   {generate, "--max-new-tokens", {"0", "-1", "1.5", "99999999999999999999"}},
                                   {generate, "--seed", {"-1", "1e3"}},
                                   {{"model", "eval", "--model", "m", "--text", "a"}, "--seq-length", {"0", "nan"}},
                                   {{"jobs", "list"}, "--request-timeout", {"0", "-1", "nan", "inf"}},
                                   {{"jobs", "list"}, "--limit", {"0", "1000001", "nan"}},
                                   {{"jobs", "metrics", "j"}, "--from-step", {"-1", "1.5"}},
                                   {{"jobs", "metrics", "j"}, "--to-step", {"0", "-1"}},
                                   {{"jobs", "metrics", "j"}, "--max-records", {"0", "10001"}},
                                   {{"jobs", "watch", "j"}, "--from-step", {"-1", "x"}},
                                   {{"jobs", "logs", "j"}, "--tail", {"-1", "nan"}},
                                   {{"jobs", "logs", "j"}, "--rank", {"-1", "2147483648"}},
                                   {{"jobs", "wait", "j"}, "--timeout", {"0", "nan", "inf"}},
                                   {prepare, "--workers", {"0", "1025"}},
                                   {{"data", "inspect", "d"}, "--seq-length", {"0", "-5"}},
                                   {{"data", "inspect", "d"}, "--show", {"-1"}}};
  for (const Case& tried : cases) {
    for (const std::string& value : tried.bad) {
      std::vector<std::string> arguments = tried.command;
      arguments.insert(arguments.end(), {tried.flag, value});
      const Ran ran = Run(arguments);
      EXPECT_EQ(ran.code, kExitUsage) << tried.flag << " " << value;
      EXPECT_THAT(ran.err, HasSubstr(absl::StrCat(tried.flag, ": ", value, ": expected a "))) << ran.err;
      EXPECT_EQ(ran.out, "");
    }
  }
  EXPECT_THAT(executed_, ::testing::IsEmpty());
  EXPECT_EQ(Run({"generate", "--model", "m", "--prompt", "a", "--system", "s"}).code, kExitUsage);
}

// What the commands print for programs can be read as what it says it is, and is not the text for people.
TEST_F(CliTest, EveryFormatThatIsTakenIsGiven) {
  WriteFile("slipway-worker", "");
  WriteFile("t.jsonl", "{\"text\":\"hello world\"}\n");
  WriteFile("chat.jsonl",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yo\"}]}\n");
  WriteFile("a.yaml", kJobFile);
  const std::string tokenizer = SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/smollm2";
  const std::string model = SLIPWAY_SOURCE_DIR "/tests/golden/data/llama";
  const std::vector<std::vector<std::string>> commands = {
      {"data", "prepare", "--input", directory_ + "/t.jsonl", "--output-prefix", directory_ + "/o", "--tokenizer",
       tokenizer},
      {"data", "inspect", "o_text_document", "--tokenizer", tokenizer, "--show", "1"},
      {"data", "inspect", "chat.jsonl", "--tokenizer", tokenizer, "--show", "1"},
      {"model", "inspect", model},
      {"spec", "explain"},
      {"spec", "explain", "training"},
      {"spec", "explain", "training.seq_length"},
      {"spec", "validate", "-f", "a.yaml"},
      {"version", "--server", "127.0.0.1:1"},
      {"jobs", "submit", "-f", "a.yaml", "--dry-run", "--server", "127.0.0.1:1"}};
  for (std::vector<std::string> command : commands) {
    const std::string name = absl::StrCat(command[0], " ", command.size() > 1 ? command[1] : "");
    command.insert(command.end(), {"-o", "json"});
    const Ran json = Run(command);
    EXPECT_EQ(json.code, 0) << name << json.err;
    ASSERT_TRUE(Json::accept(json.out)) << name << ":\n" << json.out;
    command.back() = "yaml";
    const Ran yaml = Run(command);
    EXPECT_EQ(yaml.code, 0) << name << yaml.err;
    EXPECT_NE(yaml.out, json.out) << name;
    const engine::spec::YamlTree tree = engine::spec::ParseYamlOrJson(yaml.out, "out.yaml");
    EXPECT_THAT(tree.faults, ::testing::IsEmpty()) << name << ":\n" << yaml.out;
    EXPECT_EQ(tree.root.entries.size(), Json::parse(json.out).size()) << name << ":\n" << yaml.out;
  }
  EXPECT_EQ(Json::parse(Run({"model", "inspect", model, "-o", "json"}).out)["parameters"], 84288);
  for (const char* format : {"json", "yaml"}) {
    EXPECT_EQ(Run({"generate", "--model", "m", "--prompt", "a", "-o", format}).code, 0);
    EXPECT_THAT(executed_, ElementsAre(::testing::_, "generate", "--model", "m", "--prompt", "a", "--output", format));
    EXPECT_EQ(Run({"model", "eval", "--model", "m", "--text", "a", "-o", format}).code, 0);
    EXPECT_THAT(executed_, ::testing::IsSupersetOf({std::string("--output"), std::string(format)}));
    EXPECT_EQ(Run({"model", "export", "--checkpoint", "c", "--out", "o", "-o", format}).code, 0);
    EXPECT_THAT(executed_, ::testing::IsSupersetOf({std::string("--output"), std::string(format)}));
    EXPECT_EQ(Run({"completion", "bash", "-o", format}).code, kExitUsage);
  }
  for (const char* command : {"generate", "version"}) {
    std::vector<std::string> arguments = {command, "-o", "name"};
    if (command == std::string("generate")) arguments.insert(arguments.end(), {"--model", "m", "--prompt", "a"});
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.code, kExitUsage) << command;
    EXPECT_THAT(ran.err, HasSubstr("-o name: this command has no names to print"));
  }
}

TEST_F(CliTest, ExplainsAndValidatesSpecs) {
  EXPECT_THAT(Run({"spec", "explain", "training.seq_length"}).out, HasSubstr("Tokens of one sample."));
  EXPECT_EQ(Run({"spec", "explain", "training.nope"}).code, kExitNotFound);
  const std::string path = WriteFile("a.yaml", kJobFile);
  const Ran ran = Run({"spec", "validate", "-f", path});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.out, HasSubstr("\n  seed: 1234\n"));
  WriteFile("again.yaml", ran.out);
  EXPECT_EQ(Run({"spec", "validate", "-f", "again.yaml"}).out, ran.out);
}

constexpr char kTokenizer[] = SLIPWAY_SOURCE_DIR "/tests/golden/data/tokenizers/smollm2";

TEST_F(CliTest, PreparesAndInspectsIndexedData) {
  WriteFile("t.jsonl", "{\"text\":\"hello world\"}\n{\"text\":\"\"}\n{\"title\":\"x\"}\n");
  const std::vector<std::string> prepare = {"data",
                                            "prepare",
                                            "--input",
                                            directory_ + "/t.jsonl",
                                            "--output-prefix",
                                            directory_ + "/o",
                                            "--tokenizer",
                                            kTokenizer,
                                            "--append-eod",
                                            "--workers",
                                            "1"};
  const Ran refused = Run(prepare);
  EXPECT_EQ(refused.code, kExitUsage);
  EXPECT_THAT(refused.err, HasSubstr("t.jsonl:3"));
  std::vector<std::string> skipping = prepare;
  skipping.insert(skipping.end(), {"--skip-bad-lines", "-o", "name"});
  const Ran prepared = Run(skipping);
  EXPECT_EQ(prepared.code, 0) << prepared.err;
  EXPECT_EQ(prepared.out, directory_ + "/o_text_document\n");
  EXPECT_THAT(prepared.err, HasSubstr("1 of 3 lines were left out"));
  for (const char* name : {"o_text_document", "o_text_document.idx", "o_text_document.bin"}) {
    const Ran ran = Run({"data", "inspect", name, "--tokenizer", kTokenizer, "--show", "1"});
    EXPECT_EQ(ran.code, 0) << ran.err;
    EXPECT_THAT(ran.out, HasSubstr("EOS 2 <|im_end|>"));
    EXPECT_THAT(ran.out, HasSubstr("2 documents (1 empty), 1 sequences"));
    EXPECT_THAT(ran.out, HasSubstr("  hello world<|im_end|>"));
  }
}

TEST_F(CliTest, InspectsChatsAndShowsWhatIsTrained) {
  WriteFile("c.jsonl",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yo\\u001b["
            "2J\"}]}\n{\"message\":[]}\n");
  const Ran ran = Run({"data", "inspect", "c.jsonl", "--tokenizer", kTokenizer, "--show", "1"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("1 samples of 2 lines"));
  EXPECT_THAT(ran.out, HasSubstr("»Yo\\x1b[2J<|im_end|>«"));
  EXPECT_THAT(ran.err, HasSubstr("c.jsonl:2:"));
  EXPECT_EQ(Run({"data", "inspect", "c.jsonl"}).code, kExitUsage);
}

TEST_F(CliTest, DryRunReportsOnDataAndAllFaultsAtOnce) {
  WriteFile("c.jsonl",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yo\"}]}\n");
  WriteFile("bad.jsonl", "{\"messages\":[]}\n");
  WriteFile("a.yaml", absl::StrCat("name: chat\nmodel: {preset: smollm2_135m}\ntokenizer: {path: ", kTokenizer,
                                   "}\ndataset: {kind: chat, path: c.jsonl}\noptimizer: {lr: 1e-4}\n"
                                   "training: {train_iters: 10, global_batch_size: 2, seq_length: 64}\n"));
  Ran ran = Run({"jobs", "submit", "-f", "a.yaml", "--dry-run", "--server", "127.0.0.1:1"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("special tokens    BOS 1 <|im_start|>, EOS 2 <|im_end|>, PAD 2 <|im_end|>"));
  EXPECT_THAT(ran.out, HasSubstr("training data     1 samples of 1 lines"));
  ran = Run(
      {"jobs", "submit", "-f", "a.yaml", "--dry-run", "--set", "training.sed=1", "--set", "dataset.path=bad.jsonl"});
  EXPECT_EQ(ran.code, kExitUsage);
  EXPECT_THAT(ran.err, HasSubstr("the job has 2 faults"));
  EXPECT_THAT(ran.err, HasSubstr("--set #1: training.sed: unknown key"));
  EXPECT_THAT(ran.err, HasSubstr("no trainable tokens"));
  ran = Run(
      {"jobs", "submit", "-f", "a.yaml", "--dry-run", "--set", "model.preset=tiny_llama", "--server", "127.0.0.1:1"});
  EXPECT_EQ(ran.code, kExitUsage);  // M7: ids above the embedding's rows
  EXPECT_THAT(ran.err, HasSubstr("holds the token id"));
  ran = Run({"jobs", "submit", "-f", "a.yaml", "--dry-run", "--set", "training.seq_length=0"});
  EXPECT_THAT(ran.err, HasSubstr("the job has 1 fault:"));  // and none about data that was read with this length
}

TEST_F(CliTest, DryRunReadsChatsWithTheTemplateOfTheJob) {
  WriteFile("c.jsonl",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":\"Yo\"}]}\n");
  WriteFile(
      "a.json",
      absl::StrCat("{\"name\": \"chat\", \"model\": {\"preset\": \"smollm2_135m\"}, \"tokenizer\": {\"path\": \"",
                   kTokenizer,
                   "\", \"chat_template_path\": \"t.jinja\"}, \"labels\": {\"mood\": "
                   "\"\\ud83d\\ude00\"}, \"dataset\": {\"kind\": \"chat\", \"path\": \"c.jsonl\"}, \"optimizer\": "
                   "{\"lr\": 1e-4}, \"training\": {\"train_iters\": 10, \"global_batch_size\": 2, "
                   "\"seq_length\": 64}}"));
  const std::vector<std::string> dry_run = {"jobs", "submit", "-f", "a.json", "--dry-run", "--server", "127.0.0.1:1"};
  WriteFile("t.jinja", "{% for m in messages %}{{ m['content'] }}{% endfor %}");
  const Ran small = Run(dry_run);
  EXPECT_EQ(small.code, 0) << small.err;
  WriteFile("t.jinja", "{% for m in messages %}A very long preamble. {{ m['content'] }}{% endfor %}");
  const Ran large = Run(dry_run);
  EXPECT_EQ(large.code, 0) << large.err;
  EXPECT_THAT(small.out, HasSubstr("training data     1 samples of 1 lines, "));
  EXPECT_NE(small.out, large.out);
  WriteFile("t.jinja", "{% for %}");
  const Ran broken = Run(dry_run);
  EXPECT_EQ(broken.code, kExitUsage);
  EXPECT_THAT(broken.err, HasSubstr("a.json:1:"));
  EXPECT_THAT(broken.err, HasSubstr("tokenizer.chat_template_path = "));
}

TEST_F(CliTest, JobsPlanShowsALayoutWithoutAServer) {
  WriteFile("a.yaml",
            "name: big\nmodel: {preset: llama3_1_70b}\ndataset: {kind: mock}\noptimizer: {lr: 1e-4}\n"
            "training: {train_iters: 10, global_batch_size: 128, seq_length: 4096}\n"
            "parallelism: {data_parallel_size: 4, tensor_model_parallel_size: 4, pipeline_model_parallel_size: 4}\n");
  Ran ran = Run({"jobs", "plan", "-f", "a.yaml", "--set", "parallelism.virtual_pipeline_model_parallel_size=5"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("nodes             8 with 8 ranks each"));
  EXPECT_THAT(ran.out, HasSubstr("[0 1 2 3] [4 5 6 7] [8 9 10 11] …"));
  EXPECT_THAT(ran.out, HasSubstr("layers 0–3 | layers 16–19 | layers 32–35 | layers 48–51 | layers 64–67"));
  EXPECT_THAT(ran.out, HasSubstr("pipeline bubble   1.9 %"));
  EXPECT_THAT(ran.out, HasSubstr("TRAFFIC OF A STEP"));
  ran = Run({"jobs", "plan", "-f", "a.yaml", "-o", "json", "--gpus-per-node", "4"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  const auto json = nlohmann::json::parse(ran.out);
  EXPECT_EQ(json["nodes"], 16);
  EXPECT_EQ(json["stages"].size(), 4u);
  EXPECT_EQ(json["memory_by_pipeline_rank"].size(), 4u);
  EXPECT_EQ(json["groups"][0]["kind"], "tp");
  ran = Run({"jobs", "plan", "-f", "a.yaml", "--set", "training.global_batch_size=126"});
  EXPECT_EQ(ran.code, kExitUsage);
  EXPECT_THAT(ran.err, HasSubstr("parallelism.data_parallel_size = 1 * 4"));
}

TEST_F(CliTest, JobsPlanSuggestsALayout) {
  WriteFile("a.yaml",
            "name: small\nmodel: {preset: qwen2_5_0_5b}\ndataset: {kind: mock}\noptimizer: {lr: 1e-4}\n"
            "training: {train_iters: 10, global_batch_size: 12, seq_length: 4096}\n"
            "parallelism: {data_parallel_size: 5}\n");
  Ran ran = Run({"jobs", "plan", "-f", "a.yaml", "--suggest", "--gpus", "8", "--gpu-memory", "80"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_THAT(ran.out, HasSubstr("# tensor_model_parallel_size 2: a global batch of 12 samples does not divide"));
  EXPECT_THAT(ran.out, HasSubstr("  data_parallel_size: 4\n"));
  ran = Run({"jobs", "plan", "-f", "a.yaml", "--suggest"});
  EXPECT_EQ(ran.code, kExitUsage);
  EXPECT_THAT(ran.err, HasSubstr("--suggest needs --gpus N and --gpu-memory GIB"));
}

// What bash offers after the words of a command line.
std::string Completed(const std::string& script, std::vector<std::string> words) {
  std::string program = absl::StrCat("source ", script, "\ncompopt() { :; }\nCOMP_WORDS=(slipway");
  for (const std::string& word : words) absl::StrAppend(&program, " '", word, "'");
  absl::StrAppend(&program, ")\nCOMP_CWORD=", words.size(), "\n_slipway\nprintf '%s\\n' \"${COMPREPLY[@]}\" > ", script,
                  ".out\n");
  PosixFileSystem files;
  EXPECT_OK(files.WriteFileAtomically(script + ".sh", program));
  absl::StatusOr<Subprocess> bash = Subprocess::Spawn({.argv = {"/bin/bash", script + ".sh"}});
  EXPECT_OK(bash);
  const auto exit = bash->Wait(absl::Seconds(20));
  EXPECT_TRUE(exit.ok() && exit->success());
  return files.ReadFile(script + ".out").value_or("");
}

TEST_F(CliTest, CompletesInBash) {
  const std::string script = WriteFile("c.bash", Run({"completion", "bash"}).out);
  EXPECT_EQ(Completed(script, {"jobs", "su"}), "submit\n");
  EXPECT_EQ(Completed(script, {"-o", "json", "jobs", "wat"}), "watch\n");
  EXPECT_EQ(Completed(script, {"jobs", "submit", "--set", "training.seq"}), "training.seq_length=\n");
  EXPECT_EQ(Completed(script, {"jobs", "submit", "--dry"}), "--dry-run\n");
  EXPECT_EQ(Completed(script, {"spec", "explain", "logger.log_i"}), "logger.log_interval\n");
  EXPECT_EQ(Completed(script, {"nodes", "list", "-o", "y"}), "yaml\n");
  EXPECT_EQ(Completed(script, {"completion", "z"}), "zsh\n");
}

TEST_F(CliTest, CompletionForOtherShellsNamesEveryCommand) {
  for (const char* shell : {"zsh", "fish"}) {
    const std::string script = Run({"completion", shell}).out;
    for (const char* word : {"jobs submit", "checkpoints list", "spec explain", "training.seq_length"})
      EXPECT_THAT(script, HasSubstr(word)) << shell;
    EXPECT_THAT(script, Not(HasSubstr("@"))) << shell;
    const std::string program = absl::StrCat("/usr/bin/", shell);
    if (!files_.Stat(program).ok()) continue;
    absl::StatusOr<Subprocess> check = Subprocess::Spawn({.argv = {program, "-n", WriteFile("c", script)}});
    ASSERT_OK(check);
    EXPECT_TRUE(check->Wait(absl::Seconds(20))->success()) << shell;
  }
  EXPECT_EQ(Run({"completion", "tcsh"}).code, kExitUsage);
}

}  // namespace
}  // namespace slipway::client
