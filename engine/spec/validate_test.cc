#include "engine/spec/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/arch/presets.h"
#include "engine/spec/spec_overrides.h"
#include "engine/spec/test_specs.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::spec {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The faults of the valid mock job after some changes.
std::string FaultsAfter(const std::vector<std::string>& overrides, const ValidateOptions& options = {}) {
  v1::TrainingSpec spec = MockSpec();
  const SpecFaults applied = ApplyOverrides(overrides, &spec);
  EXPECT_THAT(applied, IsEmpty()) << FaultsText(applied);
  return FaultsText(Validate(spec, options));
}

const std::vector<std::string> kChat = {"dataset.kind=chat", "dataset.path=/d/train.jsonl", "tokenizer.path=/t"};
const std::vector<std::string> kIndexed = {"dataset.kind=indexed", "dataset.path=/d/text_document"};

std::vector<std::string> With(std::vector<std::string> base, const std::vector<std::string>& more) {
  base.insert(base.end(), more.begin(), more.end());
  return base;
}

TEST(ValidateTest, AcceptsGoodJobs) {
  EXPECT_EQ(FaultsAfter({}), "");
  EXPECT_EQ(FaultsAfter(kChat), "");
  EXPECT_EQ(FaultsAfter(With(kIndexed, {"dataset.sample_order=megatron", "validation.eval_interval=10"})), "");
  EXPECT_EQ(
      FaultsAfter({"model.hidden_dropout=0.1", "parallelism.data_parallel_size=2", "scheduler.lr_warmup_fraction=0.1"}),
      "");
  EXPECT_EQ(FaultsAfter({"scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_iters=10"}), "");
  EXPECT_EQ(FaultsAfter({"training.recompute_granularity=selective", "training.recompute_modules=[layernorm, mlp_act]",
                         "parallelism.data_parallel_sharding_strategy=optim_grads_params"}),
            "");
  EXPECT_EQ(FaultsAfter({"model.preset=tiny_qwen3_moe", "training.recompute_granularity=selective",
                         "training.recompute_modules=[moe, core_attn]"}),
            "");
  EXPECT_EQ(FaultsAfter({"model.preset=tiny_qwen3_moe", "model.moe_expert_capacity_factor=1.5",
                         "parallelism.data_parallel_size=4", "parallelism.expert_model_parallel_size=2",
                         "parallelism.expert_tensor_parallel_size=2"}),
            "");
  // What config.json says is not known yet; the routing settings go with any model.
  EXPECT_EQ(FaultsAfter({"model.preset=null", "model.hf_path=/m", "model.moe_z_loss_coeff=1e-3",
                         "parallelism.data_parallel_size=2", "parallelism.expert_model_parallel_size=2"}),
            "");
}

TEST(ValidateTest, NamesEverythingThatAnEmptyJobLacks) {
  const std::string faults = FaultsText(Validate(v1::TrainingSpec()));
  for (const char* path : {"name", "dataset.kind", "training.train_iters", "training.global_batch_size",
                           "training.seq_length", "optimizer.lr"}) {
    EXPECT_THAT(faults, HasSubstr(std::string(path) + ": is required"));
  }
  EXPECT_THAT(faults, HasSubstr("model: give one of hf_path, preset, or explicit fields"));
}

// One mistake is one fault, whatever else would follow from it; numbers are shown as they were written.
TEST(ValidateTest, OneMistakeIsOneFault) {
  const std::string explicit_model =
      "model: {architecture: llama, num_layers: 2, hidden_size: 64, num_attention_heads: 4, ffn_hidden_size: 96, "
      "vocab_size: 128}\n";
  const std::string rest =
      "name: a\noptimizer: {lr: 1e-3}\nvalidation: {eval_interval: 5}\nparallelism: {data_parallel_size: 2}\n"
      "scheduler: {lr_warmup_iters: 3, lr_decay_iters: 9}\n"
      "training: {train_iters: 10, global_batch_size: 4, micro_batch_size: 2, seq_length: 16}\n"
      "dataset: {kind: indexed, path: /d, sample_order: megatron, requested_samples: 40}\n";
  const std::string text = explicit_model + rest;
  const auto faults_of = [](const std::string& job) {
    const ReadSpecResult read = ReadSpec(job, "job.yaml");
    return MergeFaults(read, Validate(read.spec, {.unread = UnreadPaths(read)}));
  };
  EXPECT_THAT(faults_of(text), IsEmpty()) << FaultsText(faults_of(text));
  // Each value of the job, replaced by one of the wrong type and by one out of range.
  int changed = 0;
  for (size_t colon = text.find(": "); colon != std::string::npos; colon = text.find(": ", colon + 1)) {
    if (text[colon + 2] == '{') continue;
    const size_t end = text.find_first_of(",}\n", colon);
    for (const char* bad : {"[]", "-7"}) {
      const std::string job = text.substr(0, colon + 2) + bad + text.substr(end);
      EXPECT_EQ(faults_of(job).size(), 1u) << job << FaultsText(faults_of(job));
      ++changed;
    }
  }
  EXPECT_GT(changed, 30);
  EXPECT_EQ(FaultsText(faults_of("model: llama\n" + rest)),
            "job.yaml:1:8: model: expected a section with `key: value` lines, got `llama`");
  EXPECT_EQ(
      FaultsAfter({"training.train_iters=9223372036854775807"}),
      "training.train_iters = 9223372036854775807: times training.global_batch_size = 4 times training.seq_length "
      "= 32 is above 2^62 tokens");
}

struct BadValue {
  std::vector<std::string> overrides;
  std::string fault;
};

class BadValueTest : public ::testing::TestWithParam<BadValue> {};

TEST_P(BadValueTest, IsTheOnlyFault) { EXPECT_EQ(FaultsAfter(GetParam().overrides), GetParam().fault); }

INSTANTIATE_TEST_SUITE_P(
    Fields, BadValueTest,
    ::testing::Values(BadValue{{"training.train_iters=0"}, "training.train_iters = 0: must be at least 1"},
                      BadValue{{"optimizer.adam_eps=0"}, "optimizer.adam_eps = 0: must be above 0"},
                      BadValue{{"model.hidden_dropout=1"}, "model.hidden_dropout = 1: must be at most 0.99"},
                      BadValue{{"spec_version=2"}, "spec_version = 2: must be at most 1"},
                      BadValue{{"scheduler.lr_decay_style=cosin"},
                               "scheduler.lr_decay_style = cosin: must be one of constant, linear, cosine, "
                               "inverse-square-root, WSD; did you mean `cosine`?"},
                      BadValue{{"precision.name=fp8"}, "precision.name = fp8: must be one of bf16_mixed, fp32"},
                      BadValue{{"checkpoint.path=out"}, "checkpoint.path = out: must be an absolute path on the nodes"},
                      BadValue{{"checkpoint.path="}, "checkpoint.path = \"\": must not be empty; null resets it"},
                      BadValue{{"env.SLIPWAY_X=1"}, "env.SLIPWAY_X: names that start with SLIPWAY_ are Slipway's own"},
                      BadValue{
                          {"env.1A=1"},
                          "env.\"1A\": a variable's name has letters, digits and `_` and does not start with a digit"},
                      BadValue{{"labels.-x=1"},
                               "labels.\"-x\": a label's key has 1 to 63 letters, digits and `-._/`, with a letter or "
                               "digit at both ends"}));

INSTANTIATE_TEST_SUITE_P(
    Rules, BadValueTest,
    ::testing::Values(
        BadValue{{"model.hf_path=/m"}, "model.preset = tiny_llama: give either it or model.hf_path"},
        BadValue{{"model.preset=null", "model.hf_path=/m", "model.num_layers=2", "model.hidden_size=8"},
                 "model.num_layers: the architecture comes from model.hf_path; leave out model.num_layers, "
                 "model.hidden_size"},
        BadValue{{"model.preset=null", "model.architecture=llama", "model.num_layers=2", "model.hidden_size=8",
                  "model.num_attention_heads=2", "model.ffn_hidden_size=16"},
                 "model.vocab_size: is required with explicit fields"},
        BadValue{{"model.random_init=true", "model.pretrained_checkpoint=/c"},
                 "model.random_init = true: the first weights come from model.pretrained_checkpoint; leave it out"},
        BadValue{{"training.micro_batch_size=3", "parallelism.data_parallel_size=2"},
                 "training.global_batch_size = 4: is not a multiple of training.micro_batch_size * "
                 "parallelism.data_parallel_size = 3 * 2"},
        BadValue{{"optimizer.min_lr=1"}, "optimizer.min_lr = 1: must be at most optimizer.lr = 0.001"},
        BadValue{{"scheduler.lr_warmup_init=1"}, "scheduler.lr_warmup_init = 1: must be at most optimizer.lr = 0.001"},
        BadValue{{"scheduler.lr_warmup_iters=5", "scheduler.lr_warmup_fraction=0.5"},
                 "scheduler.lr_warmup_fraction = 0.5: give either it or scheduler.lr_warmup_iters = 5"},
        BadValue{{"scheduler.lr_warmup_iters=100"},
                 "scheduler.lr_warmup_iters = 100: must be below scheduler.lr_decay_iters = 100"},
        BadValue{{"scheduler.lr_warmup_fraction=1"},
                 "scheduler.lr_warmup_fraction = 1: must be below 1: warm-up ends before decay does"},
        BadValue{{"training.recompute_granularity=selective", "training.recompute_modules=[core_atn]"},
                 "training.recompute_modules = core_atn: must be one of core_attn, layernorm, mlp_act, moe; did you "
                 "mean `core_attn`?"},
        BadValue{{"training.recompute_granularity=selective", "training.recompute_modules=[mlp_act, mlp_act]"},
                 "training.recompute_modules = mlp_act: is given twice"},
        BadValue{{"training.recompute_granularity=selective", "training.recompute_modules=[moe]"},
                 "training.recompute_modules = moe: this model has no experts; leave it out"},
        BadValue{{"training.recompute_modules=[mlp_act, layernorm]"},
                 "training.recompute_modules = [mlp_act, layernorm]: only for training.recompute_granularity "
                 "selective, and it is none"},
        BadValue{{"training.recompute_granularity=full"},
                 "training.recompute_method: is required for training.recompute_granularity full: uniform or block"},
        BadValue{{"training.recompute_method=block"},
                 "training.recompute_method = block: only for training.recompute_granularity full, and it is none"},
        BadValue{{"training.recompute_granularity=full", "training.recompute_method=uniform",
                  "training.recompute_num_layers=2", "parallelism.pipeline_model_parallel_size=2"},
                 "training.recompute_num_layers = 2: a stage has at most 1 of the 2 layers"},
        BadValue{{"parallelism.data_parallel_sharding_strategy=optimizer"},
                 "parallelism.data_parallel_sharding_strategy = optimizer: must be one of no_shard, optim, "
                 "optim_grads, optim_grads_params"},
        BadValue{{"scheduler.lr_decay_style=WSD"},
                 "scheduler.lr_wsd_decay_iters: is required for scheduler.lr_decay_style WSD"},
        BadValue{{"scheduler.lr_wsd_decay_iters=5"},
                 "scheduler.lr_wsd_decay_iters = 5: only for scheduler.lr_decay_style WSD, and it is cosine"},
        BadValue{{"scheduler.lr_decay_style=WSD", "scheduler.lr_wsd_decay_iters=101"},
                 "scheduler.lr_wsd_decay_iters = 101: must be at most scheduler.lr_decay_iters = 100"},
        BadValue{{"parallelism.pipeline_model_parallel_size=2", "parallelism.virtual_pipeline_model_parallel_size=2",
                  "model.num_layers=4", "training.global_batch_size=3"},
                 "parallelism.microbatch_group_size_per_vp_stage = 2: leaves a last group of 1 of the 3 micro-batches "
                 "of a step, fewer than parallelism.pipeline_model_parallel_size = 2"},
        BadValue{{"parallelism.microbatch_group_size_per_vp_stage=2"},
                 "parallelism.microbatch_group_size_per_vp_stage = 2: only with "
                 "parallelism.virtual_pipeline_model_parallel_size above 1, which is 1"},
        BadValue{{"parallelism.pipeline_model_parallel_size=2", "parallelism.pipeline_model_parallel_layout=Et|mtL"},
                 "parallelism.pipeline_model_parallel_layout = Et|mtL: position 4: m (multi-token prediction) is not "
                 "supported; leave it out"},
        BadValue{{"parallelism.pipeline_model_parallel_size=2", "model.num_layers=5",
                  "parallelism.pipeline_model_parallel_layout=Et*2|t*2|t|L",
                  "parallelism.virtual_pipeline_model_parallel_size=3"},
                 "parallelism.virtual_pipeline_model_parallel_size = 3: parallelism.pipeline_model_parallel_layout "
                 "makes 4 stages, 2 on each of the 2 pipeline ranks; leave it out or set it to 2"},
        BadValue{{"parallelism.data_parallel_size=2", "parallelism.order=tp-cp-pp"},
                 "parallelism.order = tp-cp-pp: rank order \"tp-cp-pp\" lacks dp, whose size is 2"},
        BadValue{{"parallelism.context_parallel_size=2", "training.seq_length=18"},
                 "training.seq_length = 18: must be a multiple of 2 * parallelism.context_parallel_size = 4"},
        BadValue{
            {"parallelism.context_parallel_size=2", "parallelism.tensor_model_parallel_size=4",
             "parallelism.cp_comm_type=a2a"},
            "parallelism.cp_comm_type = a2a: exchanges tokens for heads, and the 1 heads of a tensor-parallel rank "
            "do not divide over parallelism.context_parallel_size = 2; p2p and all_gather go with any number of "
            "heads"},
        BadValue{{"parallelism.context_parallel_size=2", "model.attention_dropout=0.1"},
                 "model.attention_dropout = 0.1: with parallelism.context_parallel_size = 2 needs "
                 "parallelism.cp_comm_type a2a, which computes whole rows, and it is p2p"},
        BadValue{
            {"parallelism.sequence_parallel=true"},
            "parallelism.sequence_parallel = true: needs parallelism.tensor_model_parallel_size above 1, which is 1"},
        BadValue{{"parallelism.sequence_parallel=true", "parallelism.tensor_model_parallel_size=2",
                  "training.seq_length=17"},
                 "training.seq_length = 17: the 1 * 17 tokens of a micro-batch on one context-parallel rank are not a "
                 "multiple of parallelism.tensor_model_parallel_size = 2, which sequence parallelism needs"},
        BadValue{
            {"parallelism.tp_comm_overlap=true"},
            "parallelism.tp_comm_overlap = true: needs parallelism.tensor_model_parallel_size above 1, which is 1"},
        BadValue{{"dataset.path=/d"}, "dataset.path = /d: mock data has no files; leave it out"},
        BadValue{{"dataset.sample_order=megatron"},
                 "dataset.sample_order = megatron: only for indexed data, and dataset.kind is mock"},
        BadValue{{"dataset.requested_samples=10"},
                 "dataset.requested_samples = 10: only for dataset.sample_order megatron"}));

const std::vector<std::string> kExperts = {"model.preset=tiny_qwen3_moe"};

INSTANTIATE_TEST_SUITE_P(
    Experts, BadValueTest,
    ::testing::Values(
        BadValue{With(kExperts, {"model.moe_token_dispatcher_type=deepep"}),
                 "model.moe_token_dispatcher_type = deepep: must be one of alltoall, allgather"},
        BadValue{{"model.moe_router_topk=2", "model.moe_z_loss_coeff=0.1"},
                 "model.moe_router_topk: the model has no experts; leave out model.moe_router_topk, "
                 "model.moe_z_loss_coeff"},
        BadValue{With(kExperts, {"model.moe_layer_freq=0,1,1"}),
                 "model.moe_layer_freq = 0,1,1: \"0,1,1\" names 3 layers; the model has 2"},
        BadValue{With(kExperts, {"model.moe_router_topk=9"}), "model.moe_router_topk = 9: must lie between 1 and 8"},
        BadValue{
            With(kExperts, {"model.moe_router_score_function=sigmoid", "checkpoint.export_hf=true"}),
            "model.moe_router_score_function = sigmoid: is not what Hugging Face's Qwen3MoeForCausalLM computes, so "
            "the model cannot be exported; set checkpoint.export_hf to false to train it all the same"},
        BadValue{{"parallelism.expert_model_parallel_size=2", "parallelism.data_parallel_size=2"},
                 "parallelism.expert_model_parallel_size = 2: the model has no experts; must be 1"},
        BadValue{With(kExperts, {"parallelism.expert_model_parallel_size=3", "parallelism.data_parallel_size=3",
                                 "training.global_batch_size=3"}),
                 "parallelism.expert_model_parallel_size = 3: model.num_moe_experts = 8 is not a multiple of it"},
        BadValue{With(kExperts, {"parallelism.expert_tensor_parallel_size=5", "parallelism.data_parallel_size=5",
                                 "training.global_batch_size=5"}),
                 "parallelism.expert_tensor_parallel_size = 5: model.moe_ffn_hidden_size = 48 is not a multiple of it"},
        BadValue{With(kExperts, {"parallelism.tensor_model_parallel_size=2"}),
                 "parallelism.sequence_parallel = false: a model with 8 experts and "
                 "parallelism.tensor_model_parallel_size = 2 needs sequence parallelism; set it to true"}));

INSTANTIATE_TEST_SUITE_P(
    Data, BadValueTest,
    ::testing::Values(
        BadValue{With(kChat, {"tokenizer.path=null"}),
                 "tokenizer.path: is required for chat data when model.hf_path is not given"},
        BadValue{With(kChat, {"dataset.path=null"}), "dataset.path: is required for chat data"},
        BadValue{With(kChat, {"validation.eval_interval=5"}),
                 "dataset.validation_path: is required when validation.eval_interval = 5"},
        BadValue{With(kChat, {"dataset.split=1,1"}),
                 "dataset.split = 1,1: only for indexed data; give dataset.validation_path"},
        BadValue{With(kChat, {"dataset.mock_num_samples=5"}), "dataset.mock_num_samples = 5: only for mock data"},
        BadValue{With(kIndexed, {"dataset.split=a"}),
                 "dataset.split = a: must be up to three shares that are not all 0, such as 969,30,1"},
        BadValue{With(kIndexed, {"dataset.split=0,0,0"}),
                 "dataset.split = 0,0,0: must be up to three shares that are not all 0, such as 969,30,1"},
        BadValue{With(kIndexed, {"dataset.split=1", "validation.eval_interval=5"}),
                 "dataset.split = 1: leaves no validation share for validation.eval_interval = 5"},
        BadValue{With(kIndexed, {"dataset.overlong=drop"}), "dataset.overlong = drop: only for chat data"},
        BadValue{With(kIndexed, {"dataset.sample_order=megatron", "dataset.shuffle=false"}),
                 "dataset.shuffle = false: only for dataset.sample_order epoch"},
        BadValue{With(kIndexed, {"dataset.sample_order=megatron", "dataset.requested_samples=399"}),
                 "training.train_iters = 100: times training.global_batch_size = 4 is more than the "
                 "dataset.requested_samples = 399 that the order was "
                 "built for"}));

TEST(ValidateTest, ChecksTheArchitecture) {
  EXPECT_THAT(FaultsAfter({"training.seq_length=1000000"}), HasSubstr("is above model.max_position_embeddings"));
  EXPECT_THAT(FaultsAfter({"model.kv_channels=7"}), HasSubstr("model.kv_channels = 7: must be even"));
  EXPECT_THAT(FaultsAfter({"model.add_qkv_bias=true"}), HasSubstr("model.add_qkv_bias = true"));
  EXPECT_THAT(FaultsAfter({"model.preset=tiny_lama"}), HasSubstr("model.preset = tiny_lama"));
}

TEST(ValidateTest, UsesTheArchitectureOfAModelDirectory) {
  const std::vector<std::string> overrides = {"model.preset=null", "model.hf_path=/m", "training.seq_length=1000000"};
  EXPECT_EQ(FaultsAfter(overrides), "");  // nobody has read config.json yet
  ASSERT_OK_AND_ASSIGN(const arch::ModelArch arch, arch::FindPreset("tiny_llama"));
  EXPECT_THAT(FaultsAfter(overrides, {.arch = arch}),
              HasSubstr("training.seq_length = 1000000: is above model.max_position_embeddings"));
}

TEST(ValidateTest, HugeLayoutsAreRefusedQuietly) {
  const std::string faults =
      FaultsAfter({"parallelism.data_parallel_size=65536", "parallelism.tensor_model_parallel_size=65536",
                   "parallelism.pipeline_model_parallel_size=65536", "parallelism.context_parallel_size=65536"});
  EXPECT_THAT(faults, HasSubstr("parallelism: makes more than 1048576 ranks"));
}

TEST(ValidateTest, RefusesFieldsOfANewerClient) {
  v1::TrainingSpec spec = MockSpec();
  spec.mutable_training()->GetReflection()->MutableUnknownFields(spec.mutable_training())->AddVarint(900, 1);
  EXPECT_THAT(FaultsText(Validate(spec)),
              HasSubstr("training: has 1 field(s) that this version does not know, the first with number 900"));
}

TEST(ValidateTest, RelativePathsPassWhereTheyAreStillToBeResolved) {
  EXPECT_EQ(FaultsAfter({"checkpoint.path=out"}, {.require_absolute_paths = false}), "");
}

// Names are refused at submit with the rule, so that no file name, label or log line has to cope with them.
TEST(CasesTest, O12Names) {
  for (const std::string& bad :
       {std::string("日本"), std::string("a b"), std::string("../x"), std::string("-rf"), std::string(""),
        std::string(300, 'a'), std::string("a\n"), std::string("a\0b", 3), std::string("🙂"), std::string("A_b"),
        std::string("."), std::string(".."), std::string("a/b"), std::string("a."), std::string(64, 'a')}) {
    v1::TrainingSpec spec = MockSpec();
    spec.set_name(bad);
    const SpecFaults faults = Validate(spec);
    ASSERT_EQ(faults.size(), 1u) << bad;
    EXPECT_EQ(faults[0].path, "name");
    EXPECT_THAT(faults[0].message, HasSubstr("must have 1 to 63 lower-case letters, digits, `-`, `.` or `_`"));
    EXPECT_EQ(FaultText(faults[0]).find('\n'), std::string::npos);
    EXPECT_EQ(FaultText(faults[0]).find('\0'), std::string::npos);
    spec.set_name("ok");
    spec.set_project(bad);
    EXPECT_EQ(Validate(spec).size(), 1u) << bad;
  }
  for (const std::string& good :
       {std::string("a.b"), std::string("a"), std::string("0"), std::string("a_b-c.d"), std::string(63, 'a')}) {
    v1::TrainingSpec spec = MockSpec();
    spec.set_name(good);
    EXPECT_THAT(Validate(spec), IsEmpty()) << good;
  }
}

}  // namespace
}  // namespace slipway::engine::spec
