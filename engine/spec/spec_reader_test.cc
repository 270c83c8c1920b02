#include "engine/spec/spec_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_join.h"
#include "common/str_cat.h"
#include "engine/spec/spec_overrides.h"
#include "engine/spec/spec_writer.h"
#include "engine/spec/test_specs.h"
#include "engine/spec/validate.h"
#include "engine/spec/yaml_tree.h"

namespace slipway::engine::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

std::vector<std::string> FaultsOf(const std::string& text) {
  std::vector<std::string> texts;
  for (const SpecFault& fault : ReadSpec(text, "job.yaml").faults) texts.push_back(FaultText(fault));
  return texts;
}

TEST(SpecReaderTest, ReadsEveryKindOfField) {
  const ReadSpecResult read = ReadSpec(R"(
name: run-7
labels: {team: a, "b/c": "7"}
model:
  hf_path: /models/m
  random_init: true
training:
  seed: 0
  train_iters: 9007199254740993
parallelism: {data_parallel_size: 2}
optimizer:
  lr: 1e-4
  clip_grad: 0
env:
  FOO: 1
)",
                                       "job.yaml");
  EXPECT_THAT(read.faults, IsEmpty());
  EXPECT_EQ(read.spec.name(), "run-7");
  EXPECT_EQ(read.spec.labels().at("b/c"), "7");
  EXPECT_TRUE(read.spec.model().random_init());
  EXPECT_TRUE(read.spec.training().has_seed());
  EXPECT_EQ(read.spec.training().seed(), 0);
  EXPECT_EQ(read.spec.training().train_iters(), 9007199254740993);
  EXPECT_EQ(read.spec.parallelism().data_parallel_size(), 2);
  EXPECT_EQ(read.spec.optimizer().lr(), 1e-4);
  EXPECT_TRUE(read.spec.optimizer().has_clip_grad());
  EXPECT_EQ(read.spec.env().at("FOO"), "1");
  EXPECT_FALSE(read.spec.training().has_seq_length());
  EXPECT_EQ(read.locations.at("training.seed"), "job.yaml:8:9");
  EXPECT_EQ(read.locations.at("labels.team"), "job.yaml:3:16");
}

TEST(SpecReaderTest, ReadsJson) {
  const ReadSpecResult read = ReadSpec(
      "{\n\t\"name\": \"a\\u0041\\/b\",\n\t\"training\": {\"train_iters\": 5, \"deterministic\": "
      "true},\n\t\"optimizer\": {\"lr\": 1.5E-3}}",
      "job.json");
  EXPECT_THAT(read.faults, IsEmpty()) << FaultsText(read.faults);
  EXPECT_EQ(read.spec.name(), "aA/b");
  EXPECT_EQ(read.spec.training().train_iters(), 5);
  EXPECT_EQ(read.spec.optimizer().lr(), 1.5e-3);
}

// As Python's json.dumps writes characters above U+FFFF.
TEST(SpecReaderTest, ReadsSurrogatePairsInJson) {
  const std::string text =
      R"({"labels": {"mood": "\ud83d\ude00 \u00e9", "\ud83d\ude00": "x"}, "training": {"sed": 1}})";
  for (const char* name : {"job.json", "stdin"}) {
    const ReadSpecResult read = ReadSpec(text, name);
    EXPECT_EQ(FaultsText(read.faults), StrCat(name, ":1:79: training.sed: unknown key; did you mean `seed`?"));
    EXPECT_EQ(read.spec.labels().at("mood"), "😀 é");
    EXPECT_EQ(read.spec.labels().at("😀"), "x");
  }
  for (const char* half : {R"("\ud83d")", R"("\ud83d\u0041")", R"("\ude00")"}) {
    EXPECT_THAT(FaultText(ReadSpec(StrCat("{\n  \"name\": ", half, "}"), "job.json").faults.at(0)),
                ::testing::MatchesRegex("job.json:2:[0-9]+: not readable as JSON: invalid string: surrogate .*"));
    EXPECT_THAT(FaultText(ReadSpec(StrCat("{\n  \"name\": ", half, "}"), "stdin").faults.at(0)),
                StartsWith("stdin:2:"));
  }
}

TEST(SpecReaderTest, JsonHasTheSamePlacesAndFaultsAsYaml) {
  const std::string text =
      "\xEF\xBB\xBF{\"name\": \"é\", \"training\":\n  {\"seed\": 1, \"seed\" : [2, {}],\t\"seq_length\": \"5\"},\n"
      "\"model\": null, \"optimizer\": {\"lr\": 1e4, \"min_lr\": true}}";
  std::vector<std::string> faults;
  for (const SpecFault& fault : ReadSpec(text, "a.yaml").faults) faults.push_back(FaultText(fault));
  EXPECT_THAT(
      faults,
      ElementsAre("a.yaml:2:15: training.seed: given twice, first at a.yaml:2:4",
                  "a.yaml:2:47: training.seq_length: expected a whole number, got the text `\"5\"`; leave out the "
                  "quotes",
                  "a.yaml:3:51: optimizer.min_lr: expected a number, got `true`"));
  EXPECT_THAT(FaultText(ReadSpec("{\n\"name\": tru}", "a.json").faults.at(0)),
              StartsWith("a.json:2:12: not readable as JSON: invalid literal"));  // where it stops to be one
  EXPECT_THAT(FaultText(ReadSpec("{\"optimizer\": {\"lr\": 1e400}}", "a.json").faults.at(0)),
              StartsWith("a.json:1:26: not readable as JSON: number overflow"));
  EXPECT_THAT(FaultText(ReadSpec("name: a\n", "a.json").faults.at(0)), HasSubstr("a.json:1:"));
  EXPECT_EQ(FaultText(ReadSpec(" \n", "a.json").faults.at(0)), "a.json: is empty");
  std::string deep;
  for (int i = 0; i < 50000; ++i) deep += "{\"a\":[";
  EXPECT_THAT(FaultText(ReadSpec(deep, "a.json").faults.at(0)), HasSubstr("not readable as JSON"));
  for (int i = 0; i < 50000; ++i) deep += "]}";
  EXPECT_THAT(FaultText(ReadSpec(deep, "a.json").faults.at(0)),
              HasSubstr("a.json:1:97: not readable as JSON: nested more"));
}

TEST(SpecReaderTest, ReportsAllFaultsAtOnceWithTheirPlaces) {
  EXPECT_THAT(
      FaultsOf(R"(name: x
trainning: {seed: 1}
training:
  sed: 7
  seq_length: 2.5
  train_iters: "100"
  global_batch_size: 1e3
  micro_batch_size: 010
  deterministic: yes
parallelism:
  data_parallel_size: 3000000000
optimizer:
  lr: fast
  min_lr: .inf
  weight_decay: [1]
  global_batch_size: 7
model: llama
labels: [a]
)"),
      ElementsAre(
          "job.yaml:2:1: trainning: unknown key; did you mean `training`?",
          "job.yaml:4:3: training.sed: unknown key; did you mean `seed`?",
          "job.yaml:5:15: training.seq_length: expected a whole number, got `2.5`",
          "job.yaml:6:16: training.train_iters: expected a whole number, got the text `\"100\"`; leave out the quotes",
          "job.yaml:7:22: training.global_batch_size: expected a whole number, got `1e3`",
          "job.yaml:8:21: training.micro_batch_size: expected a whole number without leading zeros, got `010`",
          "job.yaml:9:18: training.deterministic: expected true or false, got `yes`",
          "job.yaml:11:23: parallelism.data_parallel_size: expected a whole number of 32 bits, at most 2147483647, got "
          "`3000000000`",
          "job.yaml:13:7: optimizer.lr: expected a number, got `fast`",
          "job.yaml:14:11: optimizer.min_lr: expected a number, got `.inf`",
          "job.yaml:15:17: optimizer.weight_decay: expected a number, got a list",
          "job.yaml:16:3: optimizer.global_batch_size: unknown key here; it belongs to `training.global_batch_size`",
          "job.yaml:17:8: model: expected a section with `key: value` lines, got `llama`",
          "job.yaml:18:9: labels: expected `key: value` pairs, got a list"));
}

TEST(SpecReaderTest, RefusesKeysGivenTwice) {
  EXPECT_THAT(FaultsOf("name: a\ntraining: {seed: 1, seed: 2}\nname: b\nenv: {A: 1, A: 1}\n"),
              ElementsAre("job.yaml:2:21: training.seed: given twice, first at job.yaml:2:12",
                          "job.yaml:3:1: name: given twice, first at job.yaml:1:1",
                          "job.yaml:4:13: env.A: given twice, first at job.yaml:4:7"));
}

TEST(SpecReaderTest, RefusesAliasesMergeKeysTagsAndOddKeys) {
  EXPECT_THAT(
      FaultsOf("labels: &l {a: b}\nenv: *l\ntraining:\n  <<: *l\n  seed: !!int 7\n  train_iters: *l\n? [a]\n: 1\n"),
      ElementsAre(HasSubstr("env: aliases (`*name`) are not supported"),
                  HasSubstr("job.yaml:4:3: training: merge keys (`<<`) are not supported"),
                  HasSubstr("training.seed: tags (`tag:yaml.org,2002:int`) are not supported"),
                  HasSubstr("training.train_iters: aliases"), HasSubstr("expected a key, got a list")));
}

TEST(SpecReaderTest, RefusesASecondDocumentAndAnEmptyOne) {
  EXPECT_THAT(FaultsOf("name: a\n---\nname: b\n"),
              ElementsAre(StartsWith("job.yaml:2:1: a second document starts here")));
  for (const char* empty : {"", "\n\n", "# nothing\n", "---\n", "null\n", "~"}) {
    EXPECT_THAT(FaultsOf(empty), ElementsAre("job.yaml: is empty")) << empty;
  }
  EXPECT_THAT(FaultsOf("- a\n"), ElementsAre(HasSubstr("expected a section with `key: value` lines, got a list")));
  EXPECT_THAT(FaultsOf("just text"), ElementsAre(HasSubstr("got `just text`")));
}

TEST(SpecReaderTest, RefusesWhatIsNotText) {
  EXPECT_THAT(FaultsOf("name: \xff\xfe"), ElementsAre("job.yaml: is not UTF-8 text"));
  EXPECT_THAT(FaultsOf(std::string("name: a\nproject: \0b", 18)),
              ElementsAre("job.yaml: control character 0x00 in line 2"));
  EXPECT_THAT(FaultsOf(std::string(kMaxSpecBytes + 1, ' ')), ElementsAre(HasSubstr("is 1048577 bytes")));
  EXPECT_THAT(FaultsOf("name: [a"), ElementsAre(HasSubstr("not readable as YAML")));
  EXPECT_THAT(FaultsOf("name: \"a"), ElementsAre(HasSubstr("not readable as YAML")));
}

TEST(SpecReaderTest, RefusesDeepNesting) {
  for (const char* open : {"[", "{a: ", "- ", "? "}) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += open;
    EXPECT_THAT(FaultsOf(text), ElementsAre(HasSubstr("not readable as YAML"))) << open;
  }
}

TEST(SpecReaderTest, NullLeavesAFieldUnset) {
  const ReadSpecResult read =
      ReadSpec("name: null\ntraining:\n  seed: ~\n  train_iters:\nmodel:\nlabels: {a: null}\n", "job.yaml");
  EXPECT_THAT(read.faults, IsEmpty());
  EXPECT_EQ(read.spec.ByteSizeLong(), v1::TrainingSpec([] {
                                        v1::TrainingSpec s;
                                        s.mutable_training();
                                        return s;
                                      }())
                                          .ByteSizeLong());
}

TEST(SpecReaderTest, RefusesAnotherVersionBeforeItsKeys) {
  EXPECT_THAT(FaultsOf("spec_version: 2\nnew_key: 1\n"),
              ElementsAre("job.yaml:1:15: spec_version = 2: newer than this program reads; expected 1"));
  EXPECT_THAT(FaultsOf("spec_version: 1\n"), IsEmpty());
}

TEST(SpecReaderTest, MergesFaultsOfReadingAndOfValidation) {
  const ReadSpecResult read = ReadSpec("name: Bad\ntraining:\n  seq_length: x\n  train_iters: 0\n", "job.yaml");
  std::vector<std::string> texts;
  for (const SpecFault& fault : MergeFaults(read, Validate(read.spec))) texts.push_back(FaultText(fault));
  const std::string all = absl::StrJoin(texts, "\n");
  EXPECT_THAT(all, HasSubstr("job.yaml:1:7: name = Bad: must have 1 to 63"));
  EXPECT_THAT(all, HasSubstr("job.yaml:3:15: training.seq_length: expected a whole number, got `x`"));
  EXPECT_THAT(all, HasSubstr("job.yaml:4:16: training.train_iters = 0: must be at least 1"));
  EXPECT_THAT(all, HasSubstr("job.yaml:2:1: training.global_batch_size: is required"));  // the section's place
  EXPECT_THAT(all, HasSubstr("dataset.kind: is required"));
  EXPECT_EQ(all.find("training.seq_length: is required"), std::string::npos);
}

TEST(YamlTreeTest, ChecksUtf8) {
  EXPECT_TRUE(IsValidUtf8("aé日🙂"));
  for (const char* bad : {"\x80", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                          "\xe6\x97", "a\xc3"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
  }
}

TEST(SpecReaderTest, ListsSurviveWriting) {
  const ReadSpecResult read =
      ReadSpec("training: {recompute_modules: [core_attn, 'mlp_act'], seed: 3}\n", "job.yaml");
  EXPECT_THAT(read.faults, IsEmpty());
  EXPECT_THAT(read.spec.training().recompute_modules(), ElementsAre("core_attn", "mlp_act"));
  for (const std::string& text : {SpecToYaml(read.spec), SpecToJson(read.spec)}) {
    const ReadSpecResult again = ReadSpec(text, "again");
    EXPECT_THAT(again.faults, IsEmpty()) << text;
    EXPECT_EQ(SpecToJson(again.spec), SpecToJson(read.spec));
  }
  EXPECT_THAT(FaultsOf("training:\n  recompute_modules: moe\n"),
              ElementsAre("job.yaml:2:22: training.recompute_modules: expected a list, such as [a, b], got `moe`"));
  EXPECT_THAT(FaultsOf("training:\n  recompute_modules: [{a: b}]\n"), ElementsAre(HasSubstr("expected text")));
}

// Damaged configurations are answered, never a crash or a hang; what is accepted survives writing and reading again.
TEST(SpecReaderTest, MutatedTextsNeverCrash) {
  const std::string seed_text =
      std::string(kMockJob) +
      "labels: {a: b, \"c\": 'd'}\nenv: &e\n  FOO: |\n    x\nscheduler: {lr_warmup_iters: 3, lr_decay_style: cosine}\n";
  const std::vector<std::string> pieces = {
      ":", " ",   "\n", "  ",           "-",    "[",    "]",       "{",         "}",
      ",", "&a",  "*a", "!t",           "|",    ">",    "'",       "\"",        "#",
      "%", "@",   "`",  "---",          "...",  "<<: ", "null",    "~",         "1e999",
      "-", "0x1", "\t", "\xef\xbb\xbf", "\xff", "? ",   "\\u0000", "training:", "9999999999999999999"};
  std::mt19937 random(7);
  for (int round = 0; round < 4000; ++round) {
    std::string text = seed_text;
    const int changes = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < changes; ++i) {
      const size_t at = random() % (text.size() + 1);
      switch (random() % 4) {
        case 0:
          text.insert(at, pieces[random() % pieces.size()]);
          break;
        case 1:
          text.erase(at, random() % 9);
          break;
        case 2:
          if (at < text.size()) text[at] = static_cast<char>(random());
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 40));
      }
    }
    const ReadSpecResult read = ReadSpec(text, "f");
    const SpecFaults faults = MergeFaults(read, Validate(read.spec));
    if (!faults.empty()) continue;
    const ReadSpecResult again = ReadSpec(SpecToYaml(read.spec), "again");
    ASSERT_THAT(again.faults, IsEmpty()) << text;
    ASSERT_EQ(SpecToJson(again.spec), SpecToJson(read.spec)) << text;
  }
}

}  // namespace
}  // namespace slipway::engine::spec
