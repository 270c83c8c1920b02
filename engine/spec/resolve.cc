#include "engine/spec/resolve.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/strip.h"
#include "common/checksum.h"
#include "engine/arch/model_arch.h"
#include "engine/arch/presets.h"
#include "engine/spec/field_reader.h"
#include "engine/spec/moe_fields.h"
#include "engine/spec/spec_fields.h"
#include "engine/topology/pipeline_layout.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::Message;

// The default as it stands in the (meta) option, read as YAML text of that field would be.
void SetDefault(const FieldPath& field, v1::TrainingSpec* spec) {
  Message* holder = spec;
  for (size_t i = 0; i + 1 < field.fields.size(); ++i) {
    holder = holder->GetReflection()->MutableMessage(holder, field.fields[i]);
  }
  YamlNode node;
  node.kind = YamlNode::Kind::kScalar;
  node.value = MetaOf(field.field()).default_value();
  SpecFaults faults;  // a test checks that every default of the proto can be read
  FieldReader("default", "default", &faults, nullptr).ReadField(node, field.path, field.field(), holder);
}

void FillFromPreset(v1::ModelSpec* model) {
  const auto preset = arch::FindPreset(model->preset());
  if (!preset.ok()) return;  // Validate says so
  if (!model->has_architecture()) model->set_architecture(std::string(arch::FamilyName(preset->family)));
  if (!model->has_num_layers()) model->set_num_layers(preset->num_layers);
  if (!model->has_hidden_size()) model->set_hidden_size(preset->hidden_size);
  if (!model->has_num_attention_heads()) model->set_num_attention_heads(preset->num_attention_heads);
  if (!model->has_num_query_groups()) model->set_num_query_groups(preset->num_query_groups);
  if (!model->has_kv_channels()) model->set_kv_channels(preset->kv_channels);
  if (!model->has_ffn_hidden_size()) model->set_ffn_hidden_size(preset->ffn_hidden_size);
  if (!model->has_vocab_size()) model->set_vocab_size(preset->vocab_size);
  if (!model->has_max_position_embeddings()) model->set_max_position_embeddings(preset->max_position_embeddings);
  if (!model->has_rotary_base()) model->set_rotary_base(preset->rotary_base);
  if (!model->has_norm_epsilon()) model->set_norm_epsilon(preset->norm_epsilon);
  if (!model->has_untie_embeddings_and_output_weights()) {
    model->set_untie_embeddings_and_output_weights(preset->untie_embeddings_and_output_weights);
  }
  if (!model->has_add_qkv_bias()) model->set_add_qkv_bias(preset->add_qkv_bias);
  if (!model->has_qk_layernorm()) model->set_qk_layernorm(preset->qk_layernorm);
  if (!model->has_init_method_std()) model->set_init_method_std(preset->init_method_std);
  if (preset->moe) FillMoeFromPreset(*preset->moe, model);
  if (preset->rope_scaling && !model->has_rope_scaling()) {
    v1::RopeScalingSpec* scaling = model->mutable_rope_scaling();
    scaling->set_factor(preset->rope_scaling->factor);
    scaling->set_low_freq_factor(preset->rope_scaling->low_freq_factor);
    scaling->set_high_freq_factor(preset->rope_scaling->high_freq_factor);
    scaling->set_original_max_position_embeddings(preset->rope_scaling->original_max_position_embeddings);
  }
}

void FillExplicitModel(const v1::TrainSpec& training, v1::ModelSpec* model) {
  const bool is_llama = model->architecture() == "llama";
  // Nothing follows from a value that is itself wrong.
  if (!model->has_num_query_groups() && model->num_attention_heads() > 0) {
    model->set_num_query_groups(model->num_attention_heads());
  }
  if (!model->has_kv_channels() && model->num_attention_heads() > 0 && model->hidden_size() > 0 &&
      model->hidden_size() % model->num_attention_heads() == 0) {
    model->set_kv_channels(model->hidden_size() / model->num_attention_heads());
  }
  if (!model->has_max_position_embeddings() && training.seq_length() > 0) {
    model->set_max_position_embeddings(training.seq_length());
  }
  if (!model->has_rotary_base()) model->set_rotary_base(10000);
  if (!model->has_norm_epsilon()) model->set_norm_epsilon(is_llama ? 1e-5 : 1e-6);
  if (!model->has_untie_embeddings_and_output_weights()) model->set_untie_embeddings_and_output_weights(false);
  if (!model->has_add_qkv_bias()) model->set_add_qkv_bias(model->architecture() == "qwen2");
  const bool has_experts = model->architecture() == "qwen3_moe";
  if (!model->has_qk_layernorm()) model->set_qk_layernorm(model->architecture() == "qwen3" || has_experts);
  if (has_experts) FillExplicitMoe(model);
  if (!model->has_init_method_std()) model->set_init_method_std(0.02);
}

// train_iters × global_batch_size, or 0 when one is missing or the product does not fit.
int64_t TotalSamples(const v1::TrainSpec& training) {
  int64_t samples = 0;
  if (__builtin_mul_overflow(training.train_iters(), training.global_batch_size(), &samples)) return 0;
  return samples;
}

void FillVirtualStages(v1::ParallelismSpec* parallelism) {
  if (parallelism->has_virtual_pipeline_model_parallel_size()) return;
  const auto stages = topology::ParsePipelineLayout(parallelism->pipeline_model_parallel_layout());
  const int ranks = std::max(parallelism->pipeline_model_parallel_size(), 1);
  const int chunks = stages.ok() ? static_cast<int>(stages->size()) / ranks : 1;
  parallelism->set_virtual_pipeline_model_parallel_size(std::max(chunks, 1));
}

void FillDerived(v1::TrainingSpec* spec) {
  v1::ModelSpec* model = spec->mutable_model();
  if (model->has_preset()) {
    FillFromPreset(model);
  } else if (!model->has_hf_path() && model->has_architecture()) {
    FillExplicitModel(spec->training(), model);
  }
  v1::SchedulerSpec* scheduler = spec->mutable_scheduler();
  if (!scheduler->has_lr_decay_iters() && spec->training().train_iters() > 0) {
    scheduler->set_lr_decay_iters(spec->training().train_iters());
  }
  if (!scheduler->has_lr_warmup_iters() && !scheduler->has_lr_warmup_fraction()) scheduler->set_lr_warmup_iters(0);
  if (!spec->tokenizer().has_path() && model->has_hf_path()) spec->mutable_tokenizer()->set_path(model->hf_path());
  FillVirtualStages(spec->mutable_parallelism());
  v1::DatasetSpec* dataset = spec->mutable_dataset();
  if (dataset->sample_order() == "megatron" && !dataset->has_requested_samples()) {
    if (const int64_t samples = TotalSamples(spec->training()); samples > 0) dataset->set_requested_samples(samples);
  }
}

void MakeSections(v1::TrainingSpec* spec) {
  const google::protobuf::Reflection* reflection = spec->GetReflection();
  for (int i = 0; i < spec->GetDescriptor()->field_count(); ++i) {
    const auto* field = spec->GetDescriptor()->field(i);
    if (IsSection(field)) reflection->MutableMessage(spec, field);
  }
}

}  // namespace

v1::TrainingSpec Resolve(const v1::TrainingSpec& spec) {
  v1::TrainingSpec resolved = spec;
  MakeSections(&resolved);
  for (const FieldPath& field : AllFields()) {
    const bool optional_section = field.fields.size() > 2;  // model.rope_scaling: only where it is given
    if (optional_section) {
      const Message& parent = resolved.model();
      if (!parent.GetReflection()->HasField(parent, field.fields[1])) continue;
    }
    if (!MetaOf(field.field()).default_value().empty() && !HasValue(resolved, field)) SetDefault(field, &resolved);
  }
  FillDerived(&resolved);
  return resolved;
}

std::string SpecHash(const v1::TrainingSpec& resolved) {
  v1::TrainingSpec hashed = resolved;
  hashed.clear_name();
  hashed.clear_project();
  hashed.clear_labels();
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    hashed.SerializeToCodedStream(&coded);
  }
  return std::string(absl::StripPrefix(ChecksumOf(bytes), "xxh3-128:"));
}

int64_t WorldSize(const v1::TrainingSpec& resolved) {
  const v1::ParallelismSpec& sizes = resolved.parallelism();
  return int64_t{sizes.data_parallel_size()} * sizes.tensor_model_parallel_size() *
         sizes.pipeline_model_parallel_size() * sizes.context_parallel_size();
}

int64_t MicroBatchesPerStep(const v1::TrainingSpec& resolved) {
  const v1::TrainSpec& training = resolved.training();
  return training.global_batch_size() / (training.micro_batch_size() * resolved.parallelism().data_parallel_size());
}

}  // namespace slipway::engine::spec
