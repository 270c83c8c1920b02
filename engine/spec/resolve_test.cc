#include "engine/spec/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/arch/presets.h"
#include "engine/spec/arch_from_spec.h"
#include "engine/spec/layout.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/spec_writer.h"
#include "engine/spec/test_specs.h"
#include "engine/spec/validate.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::FieldDescriptor;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SpecProtoTest, EveryFieldIsOfAKindThatTheReaderKnows) {
  for (const FieldPath& field : AllFields()) {
    const FieldDescriptor* descriptor = field.field();
    const v1::FieldMeta& meta = MetaOf(descriptor);
    EXPECT_NE(meta.resume(), v1::RESUME_RULE_UNSPECIFIED) << field.path;
    if (descriptor->is_map()) {
      EXPECT_EQ(descriptor->message_type()->map_value()->cpp_type(), FieldDescriptor::CPPTYPE_STRING) << field.path;
      continue;
    }
    if (IsList(descriptor)) {
      EXPECT_EQ(descriptor->cpp_type(), FieldDescriptor::CPPTYPE_STRING) << field.path;
      EXPECT_TRUE(meta.default_value().empty()) << field.path << ": what an empty list means stands in its comment";
      continue;
    }
    EXPECT_EQ(descriptor->real_containing_oneof(), nullptr) << field.path;
    EXPECT_TRUE(descriptor->has_presence()) << field.path;
    const auto type = descriptor->cpp_type();
    EXPECT_TRUE(type == FieldDescriptor::CPPTYPE_STRING || type == FieldDescriptor::CPPTYPE_BOOL ||
                type == FieldDescriptor::CPPTYPE_INT32 || type == FieldDescriptor::CPPTYPE_INT64 ||
                type == FieldDescriptor::CPPTYPE_DOUBLE)
        << field.path;
    if (!meta.choices().empty() && !meta.default_value().empty()) {
      EXPECT_THAT(meta.choices(), ::testing::Contains(meta.default_value())) << field.path;
    }
  }
}

TEST(ResolveTest, FillsEveryDefaultWithAValueThatIsValid) {
  const v1::TrainingSpec resolved = Resolve(MockSpec("model: {}\n"));
  for (const FieldPath& field : AllFields()) {
    if (field.path.starts_with("model.rope_scaling") || MetaOf(field.field()).default_value().empty()) continue;
    EXPECT_TRUE(HasValue(resolved, field)) << field.path;
  }
  EXPECT_EQ(resolved.spec_version(), 1);
  EXPECT_EQ(resolved.project(), "default");
  EXPECT_EQ(resolved.optimizer().adam_eps(), 1e-8);
  EXPECT_TRUE(resolved.validation().eval_at_start());
  EXPECT_EQ(resolved.dataset().split(), "969,30,1");
  EXPECT_EQ(resolved.scheduler().lr_decay_iters(), 100);
  EXPECT_EQ(resolved.scheduler().lr_warmup_iters(), 0);
  EXPECT_FALSE(resolved.dataset().has_requested_samples());
  EXPECT_THAT(Validate(resolved), IsEmpty()) << FaultsText(Validate(resolved));
}

TEST(ResolveTest, IsIdempotentAndKeepsWhatIsSet) {
  const v1::TrainingSpec spec =
      MockSpec("scheduler: {lr_decay_iters: 7, lr_warmup_fraction: 0.5}\nvalidation: {eval_at_start: false}\n");
  const v1::TrainingSpec once = Resolve(spec);
  EXPECT_EQ(SpecToYaml(Resolve(once)), SpecToYaml(once));
  EXPECT_EQ(once.scheduler().lr_decay_iters(), 7);
  EXPECT_FALSE(once.scheduler().has_lr_warmup_iters());
  EXPECT_FALSE(once.validation().eval_at_start());
}

TEST(ResolveTest, DerivesPathsAndSamples) {
  v1::TrainingSpec spec;
  spec.mutable_model()->set_hf_path("/m");
  spec.mutable_dataset()->set_sample_order("megatron");
  spec.mutable_training()->set_train_iters(10);
  spec.mutable_training()->set_global_batch_size(8);
  const v1::TrainingSpec resolved = Resolve(spec);
  EXPECT_EQ(resolved.tokenizer().path(), "/m");
  EXPECT_EQ(resolved.dataset().requested_samples(), 80);
  EXPECT_FALSE(resolved.model().has_hidden_size());
}

TEST(ResolveTest, SurvivesNumbersThatOverflow) {
  v1::TrainingSpec spec = MockSpec();
  spec.mutable_dataset()->set_sample_order("megatron");
  spec.mutable_training()->set_train_iters(int64_t{1} << 62);
  spec.mutable_training()->set_global_batch_size(int64_t{1} << 62);
  EXPECT_FALSE(Resolve(spec).dataset().has_requested_samples());
  EXPECT_THAT(FaultsText(Validate(spec)), HasSubstr("above 2^62 tokens"));
}

TEST(ResolveTest, PresetAndExplicitFieldsMakeTheSameArchitecture) {
  for (const auto name : arch::PresetNames()) {
    v1::TrainingSpec spec;
    spec.mutable_model()->set_preset(std::string(name));
    v1::TrainingSpec resolved = Resolve(spec);
    ASSERT_OK_AND_ASSIGN(const arch::ModelArch preset, arch::FindPreset(name));
    ASSERT_OK_AND_ASSIGN(const arch::ModelArch made, ArchFromSpec(resolved));
    EXPECT_EQ(made, preset) << name;
    resolved.mutable_model()->clear_preset();
    EXPECT_EQ(SpecToYaml(Resolve(resolved)), SpecToYaml(resolved)) << name;
  }
}

TEST(ResolveTest, ExpertsOfExplicitFields) {
  const ReadSpecResult read = ReadSpec(
      "model: {architecture: qwen3_moe, num_layers: 4, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 96, "
      "vocab_size: 260, num_moe_experts: 4, moe_router_topk: 2, moe_ffn_hidden_size: 32, moe_layer_freq: 2}\n"
      "training: {seq_length: 48}\n",
      "job.yaml");
  ASSERT_THAT(read.faults, IsEmpty()) << FaultsText(read.faults);
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch made, ArchFromSpec(Resolve(read.spec)));
  EXPECT_EQ(made.moe->num_experts, 4);
  EXPECT_EQ(made.moe->layers, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(made.moe->load_balancing, arch::LoadBalancing::kSequence);
  EXPECT_EQ(made.moe->aux_loss_coeff, 0);
  EXPECT_TRUE(made.qk_layernorm);
  // A dense model's spec says nothing of experts.
  EXPECT_FALSE(Resolve(MockSpec()).model().has_moe_token_dispatcher_type());
}

TEST(ResolveTest, ExpertTensorParallelSizeFollowsTheTensorParallelSize) {
  v1::TrainingSpec spec = Resolve(MockSpec("parallelism: {tensor_model_parallel_size: 2}\n"));
  EXPECT_EQ(ExpertTensorParallelSize(spec.parallelism()), 2);
  spec.mutable_parallelism()->set_tensor_model_parallel_size(1);  // a resume on another layout
  EXPECT_EQ(ExpertTensorParallelSize(Resolve(spec).parallelism()), 1);
  spec.mutable_parallelism()->set_expert_tensor_parallel_size(4);
  EXPECT_EQ(ExpertTensorParallelSize(Resolve(spec).parallelism()), 4);
}

TEST(ResolveTest, ExplicitFieldsTakeTheFamilysDefaults) {
  const ReadSpecResult read = ReadSpec(
      "model: {architecture: qwen3, num_layers: 2, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 96, "
      "vocab_size: 260}\n"
      "training: {seq_length: 48}\n",
      "job.yaml");
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch made, ArchFromSpec(Resolve(read.spec)));
  EXPECT_EQ(made.kv_channels, 16);
  EXPECT_EQ(made.num_query_groups, 4);
  EXPECT_EQ(made.max_position_embeddings, 48);
  EXPECT_TRUE(made.qk_layernorm);
  EXPECT_FALSE(made.add_qkv_bias);
  EXPECT_EQ(made.norm_epsilon, 1e-6);
}

TEST(ResolveTest, ArchFromSpecNamesWhatIsMissing) {
  v1::TrainingSpec spec;
  EXPECT_THAT(ArchFromSpec(Resolve(spec)).status().ToString(), HasSubstr("give one of hf_path, preset"));
  spec.mutable_model()->set_preset("tiny_lama");
  EXPECT_THAT(ArchFromSpec(Resolve(spec)).status().ToString(), HasSubstr("tiny_llama"));
  spec.mutable_model()->clear_preset();
  spec.mutable_model()->set_hf_path("/no/such/model");
  EXPECT_THAT(ArchFromSpec(Resolve(spec)).status().ToString(), HasSubstr("/no/such/model/config.json"));
}

TEST(SpecHashTest, LeavesOutWhatDoesNotCompute) {
  const v1::TrainingSpec resolved = Resolve(MockSpec("env: {A: x, B: y, C: z}\n"));
  const std::string hash = SpecHash(resolved);
  EXPECT_EQ(hash.size(), 32u);
  v1::TrainingSpec other = resolved;
  other.set_name("other");
  other.set_project("p");
  (*other.mutable_labels())["a"] = "b";
  EXPECT_EQ(SpecHash(other), hash);
  other.mutable_training()->set_seed(99);
  EXPECT_NE(SpecHash(other), hash);
  v1::TrainingSpec reparsed;
  ASSERT_TRUE(reparsed.ParseFromString(resolved.SerializeAsString()));
  EXPECT_EQ(SpecHash(reparsed), hash);
}

TEST(SpecWriterTest, RoundTripsEveryField) {
  v1::TrainingSpec spec =
      Resolve(MockSpec("env: {A: 'yes', B: \"7\", C: 'x: y # z', D: \"a\\nb\\té日\"}\nproject: 'null'\n"));
  spec.mutable_model()->mutable_rope_scaling()->set_factor(8);
  spec.mutable_optimizer()->set_lr(1.0 / 3);
  spec.mutable_training()->set_train_iters(9223372036854775807);
  spec.mutable_validation();
  for (const std::string& text : {SpecToYaml(spec), SpecToJson(spec)}) {
    const ReadSpecResult read = ReadSpec(text, "written");
    EXPECT_THAT(read.faults, IsEmpty()) << FaultsText(read.faults) << text;
    EXPECT_EQ(SpecToYaml(read.spec), SpecToYaml(spec));
    EXPECT_EQ(SpecHash(read.spec), SpecHash(spec));
  }
  EXPECT_THAT(SpecToYaml(spec), HasSubstr("\n  adam_eps: 1.0e-8\n"));
  EXPECT_THAT(SpecToYaml(spec), HasSubstr("\nproject: \"null\"\n"));
  EXPECT_THAT(SpecToJson(spec), HasSubstr("\"train_iters\": 9223372036854775807"));
}

TEST(SpecWriterTest, StringsAreNeverMistaken) {
  for (const char* text : {"",   " ",  "a ", "null", "True", "1",  "1e3", "-", "- a", "a: b", "#",
                           "*a", "&a", "é",  "a\nb", "'",    "\"", "0x1", ".", "=",   "<<"}) {
    v1::TrainingSpec spec;
    spec.set_name(text);
    const ReadSpecResult read = ReadSpec(SpecToYaml(spec), "written");
    EXPECT_THAT(read.faults, IsEmpty()) << text;
    EXPECT_EQ(read.spec.name(), text);
    EXPECT_TRUE(read.spec.has_name()) << text;
  }
}

TEST(SpecFieldsTest, WritesNumbersShort) {
  EXPECT_EQ(DoubleText(1e-8), "1e-8");
  EXPECT_EQ(DoubleText(0.1), "0.1");
  EXPECT_EQ(DoubleText(1000000), "1000000");
  EXPECT_EQ(DoubleText(1e300), "1e+300");
  EXPECT_EQ(DoubleText(-0.5), "-0.5");
}

TEST(ResolveTest, VirtualStagesFollowFromTheLayoutString) {
  const auto chunks = [](const std::string& parallelism) {
    const v1::TrainingSpec resolved = Resolve(MockSpec("parallelism: {" + parallelism + "}\n"));
    return resolved.parallelism().virtual_pipeline_model_parallel_size();
  };
  EXPECT_EQ(chunks("pipeline_model_parallel_size: 2"), 1);
  EXPECT_EQ(chunks("pipeline_model_parallel_size: 2, pipeline_model_parallel_layout: 'Et|||tL'"), 2);
  EXPECT_EQ(chunks("pipeline_model_parallel_size: 2, virtual_pipeline_model_parallel_size: 3"), 3);
  EXPECT_EQ(chunks("pipeline_model_parallel_layout: 'no layout'"), 1);  // Validate says what is wrong
}

}  // namespace
}  // namespace slipway::engine::spec
