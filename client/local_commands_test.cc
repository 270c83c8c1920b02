// Commands that work without a server: data, models, specs, completion.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "common/subprocess.h"
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
  EXPECT_EQ(Completed(script, {"spec", "explain", "logger.log"}), "logger.log_interval\n");
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
