#include "engine/spec/resume_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/spec/resolve.h"
#include "engine/spec/spec_overrides.h"
#include "engine/spec/test_specs.h"

namespace slipway::engine::spec {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ResumeChange Resume(const std::vector<std::string>& overrides, const std::string& more = "") {
  const SpecPatch patch = PatchFromOverrides(overrides);
  EXPECT_THAT(patch.faults, IsEmpty());
  return ApplyResumePatch(Resolve(MockSpec(more)), patch.patch, patch.clear_paths);
}

TEST(ResumeChangeTest, NothingChanges) {
  const ResumeChange change = Resume({});
  EXPECT_THAT(change.faults, IsEmpty());
  EXPECT_THAT(change.changes, IsEmpty());
  EXPECT_THAT(change.notes, IsEmpty());
  EXPECT_FALSE(change.layout_changed);
}

TEST(ResumeChangeTest, MutableAndLayoutFieldsChange) {
  const ResumeChange change =
      Resume({"parallelism.data_parallel_size=2", "checkpoint.save_interval=10", "labels.a=b"}, "labels: {c: d}\n");
  EXPECT_THAT(change.faults, IsEmpty()) << FaultsText(change.faults);
  EXPECT_TRUE(change.layout_changed);
  EXPECT_THAT(change.changes,
              ElementsAre(FieldChange{"labels", "{c: d}", "{a: b, c: d}", v1::RESUME_RULE_MUTABLE},
                          FieldChange{"parallelism.data_parallel_size", "1", "2", v1::RESUME_RULE_LAYOUT},
                          FieldChange{"checkpoint.save_interval", "500", "10", v1::RESUME_RULE_MUTABLE}));
}

TEST(ResumeChangeTest, AListIsReplaced) {
  const ResumeChange change =
      ApplyResumePatch(Resolve(MockSpec()), PatchFromOverrides({"training.recompute_granularity=selective",
                                                                "training.recompute_modules=[core_attn, mlp_act]"})
                                                .patch,
                       {});
  EXPECT_THAT(change.faults, IsEmpty()) << FaultsText(change.faults);
  const ResumeChange again =
      ApplyResumePatch(change.spec, PatchFromOverrides({"training.recompute_modules=[layernorm]"}).patch, {});
  EXPECT_THAT(again.faults, IsEmpty()) << FaultsText(again.faults);
  EXPECT_THAT(again.changes, ElementsAre(FieldChange{"training.recompute_modules", "[core_attn, mlp_act]",
                                                     "[layernorm]", v1::RESUME_RULE_LAYOUT}));
}

TEST(ResumeChangeTest, FixedFieldsAreRefusedWithBothValues) {
  const ResumeChange change = Resume({"training.seed=7", "training.seq_length=16", "name=tiny"});
  EXPECT_EQ(FaultsText(change.faults),
            "training.seq_length = 16: cannot change on resume: the job was submitted with 32\n"
            "training.seed = 7: cannot change on resume: the job was submitted with 1234");
}

TEST(ResumeChangeTest, TheResultIsValidated) {
  const ResumeChange change = Resume({"parallelism.data_parallel_size=3"});
  EXPECT_THAT(FaultsText(change.faults), HasSubstr("training.global_batch_size = 4: is not a multiple of"));
}

// Extending a run keeps the schedule, and the answer says so; naming lr_decay_iters stretches it.
TEST(CasesTest, R8ExtendingARunKeepsItsSchedule) {
  ResumeChange change = Resume({"training.train_iters=200"});
  EXPECT_THAT(change.faults, IsEmpty());
  EXPECT_EQ(change.spec.scheduler().lr_decay_iters(), 100);
  EXPECT_THAT(
      change.notes,
      ElementsAre(HasSubstr("scheduler.lr_decay_iters stays 100 although training.train_iters goes from 100 to 200")));

  change = Resume({"training.train_iters=200", "scheduler.lr_decay_iters=200"});
  EXPECT_EQ(change.spec.scheduler().lr_decay_iters(), 200);
  EXPECT_THAT(change.notes, ElementsAre(HasSubstr("goes from 100 to 200")));

  change = Resume({"training.train_iters=200", "scheduler.lr_decay_iters=null"});
  EXPECT_EQ(change.spec.scheduler().lr_decay_iters(), 200);

  change = Resume({"training.train_iters=200", "scheduler.lr_decay_iters=100"});
  EXPECT_EQ(change.spec.scheduler().lr_decay_iters(), 100);
  EXPECT_THAT(change.notes, ElementsAre(HasSubstr("stays 100")));
}

TEST(ResumeChangeTest, ClearingResetsToTheDefault) {
  const ResumeChange change = Resume({"checkpoint.save_interval=null"}, "checkpoint: {save_interval: 7}\n");
  EXPECT_EQ(change.spec.checkpoint().save_interval(), 500);
  EXPECT_THAT(change.faults, IsEmpty());
  EXPECT_THAT(FaultsText(ApplyResumePatch(Resolve(MockSpec()), {}, {"checkpoint.save_intervall"}).faults),
              HasSubstr("checkpoint.save_intervall: unknown key; did you mean `save_interval`?"));
}

TEST(ResumeChangeTest, TheMegatronOrderStaysAsItWasBuilt) {
  v1::TrainingSpec before = MockSpec();
  EXPECT_THAT(ApplyOverrides({"dataset.kind=indexed", "dataset.path=/d", "dataset.sample_order=megatron"}, &before),
              IsEmpty());
  before = Resolve(before);
  EXPECT_EQ(before.dataset().requested_samples(), 400);
  v1::TrainingSpec patch;
  patch.mutable_training()->set_train_iters(200);
  const ResumeChange change = ApplyResumePatch(before, patch, {});
  EXPECT_EQ(change.spec.dataset().requested_samples(), 400);
  EXPECT_THAT(FaultsText(change.faults), HasSubstr("more than the dataset.requested_samples = 400"));
}

}  // namespace
}  // namespace slipway::engine::spec
