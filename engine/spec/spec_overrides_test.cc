#include "engine/spec/spec_overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/spec/test_specs.h"

namespace slipway::engine::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> Apply(std::vector<std::string> overrides, v1::TrainingSpec* spec) {
  std::vector<std::string> texts;
  for (const SpecFault& fault : ApplyOverrides(overrides, spec)) texts.push_back(FaultText(fault));
  return texts;
}

TEST(SpecOverridesTest, SetsScalarsMapsAndSections) {
  v1::TrainingSpec spec = MockSpec();
  EXPECT_THAT(
      Apply({"training.seed=7", "optimizer.lr=2e-4", "name=7", "env.FOO=a=b c", "labels.a.b=1", "labels={team: x}",
             "scheduler={lr_warmup_iters: 3}", "training.deterministic=true", "dataset.split=1,1,1"},
            &spec),
      IsEmpty());
  EXPECT_EQ(spec.training().seed(), 7);
  EXPECT_EQ(spec.training().train_iters(), 100);
  EXPECT_EQ(spec.optimizer().lr(), 2e-4);
  EXPECT_EQ(spec.name(), "7");
  EXPECT_EQ(spec.env().at("FOO"), "a=b c");
  EXPECT_EQ(spec.labels().at("a.b"), "1");
  EXPECT_EQ(spec.labels().at("team"), "x");
  EXPECT_EQ(spec.scheduler().lr_warmup_iters(), 3);
  EXPECT_EQ(spec.dataset().split(), "1,1,1");
}

TEST(SpecOverridesTest, SetsLists) {
  v1::TrainingSpec spec = MockSpec();
  EXPECT_THAT(Apply({"training.recompute_modules=[core_attn, \"layernorm\"]", "training.recompute_modules=[mlp_act]"},
                    &spec),
              IsEmpty());
  EXPECT_THAT(spec.training().recompute_modules(), ElementsAre("mlp_act"));  // the last one counts
  EXPECT_THAT(Apply({"training.recompute_modules=mlp_act"}, &spec),
              ElementsAre("--set #1: training.recompute_modules: expected a list, such as [a, b], got `mlp_act`"));
  EXPECT_THAT(Apply({"training.recompute_modules=null"}, &spec), IsEmpty());
  EXPECT_EQ(spec.training().recompute_modules_size(), 0);
}

TEST(SpecOverridesTest, NullResets) {
  v1::TrainingSpec spec = MockSpec("env: {A: x, B: y}\n");
  EXPECT_THAT(Apply({"training.train_iters=null", "env.A=null", "optimizer=null", "model.preset=\"null\"",
                     "parallelism.device=null"},
                    &spec),
              IsEmpty());
  EXPECT_FALSE(spec.training().has_train_iters());
  EXPECT_FALSE(spec.env().contains("A"));
  EXPECT_TRUE(spec.env().contains("B"));
  EXPECT_FALSE(spec.has_optimizer());
  EXPECT_EQ(spec.model().preset(), "null");
  EXPECT_FALSE(spec.has_parallelism());  // no empty section is left behind
}

TEST(SpecOverridesTest, FaultsNameTheOverride) {
  v1::TrainingSpec spec;
  EXPECT_THAT(
      Apply({"training.sed=7", "training.seed", "training.seed=x", "training.seed=", "optimizer.lr=\"1\"",
             "training.seed.x=1", "=1", "training.seed=[", "training=7", "labels.=1", "env.A=\xff"},
            &spec),
      ElementsAre("--set #1: training.sed: unknown key; did you mean `seed`?",
                  "--set #2: expected section.key=value, got `training.seed`",
                  "--set #3: training.seed: expected a whole number, got `x`",
                  HasSubstr("--set #4: training.seed: a value is missing"),
                  HasSubstr("--set #5: optimizer.lr: expected a number, got the text"),
                  HasSubstr("`seed` is a value and has no key `x`"), HasSubstr("--set #7: expected section.key=value"),
                  HasSubstr("--set #8: training.seed: not readable as YAML"),
                  HasSubstr("--set #9: training: expected a section"),
                  HasSubstr("--set #10: labels.: a key is missing"),
                  HasSubstr("--set #11: env.A: the value is not UTF-8")));
  EXPECT_FALSE(spec.has_training());
  EXPECT_FALSE(spec.has_optimizer());
}

TEST(SpecOverridesTest, BringsLocationsUpToDate) {
  ReadSpecResult read = ReadSpec(kMockJob, "job.yaml");
  ApplyOverrides({"training.seed=1"}, &read.spec, &read.locations);
  EXPECT_EQ(read.locations.at("training.seed"), "--set #1");
  EXPECT_EQ(read.locations.at("training.seq_length"), "job.yaml:9:15");
}

TEST(SpecOverridesTest, MakesAPatch) {
  const SpecPatch patch = PatchFromOverrides(
      {"training.train_iters=200", "scheduler.lr_decay_iters=null", "optimizer.lr=null", "optimizer.lr=1e-5",
       "parallelism.data_parallel_size=2", "parallelism.data_parallel_size=null"});
  EXPECT_THAT(patch.faults, IsEmpty());
  EXPECT_EQ(patch.patch.training().train_iters(), 200);
  EXPECT_EQ(patch.patch.optimizer().lr(), 1e-5);
  EXPECT_FALSE(patch.patch.parallelism().has_data_parallel_size());
  EXPECT_THAT(patch.clear_paths, ElementsAre("scheduler.lr_decay_iters", "parallelism.data_parallel_size"));
}

}  // namespace
}  // namespace slipway::engine::spec
