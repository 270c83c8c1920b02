#include "engine/ops/ops.h"

#include <torch/library.h>

#include <string_view>

#include "engine/ops/cpu_kernels.h"
#include "engine/ops/reference.h"

namespace slipway::engine::ops {
namespace {

std::string_view NameOf(std::string_view schema) { return schema.substr(0, schema.find('(')); }

template <typename Function>
void Register(torch::Library& library, std::string_view schema, Function* function) {
  library.impl(std::string(NameOf(schema)).c_str(), function);
}

TORCH_LIBRARY(slipway, m) {
  for (const char* schema : {kRmsNorm,
                             kAddRmsNorm,
                             kRmsNormBackward,
                             kRope,
                             kQkNormRope,
                             kQkNormRopeBackward,
                             kSwiGlu,
                             kSwiGluBackward,
                             kAttention,
                             kAttentionBackward,
                             kAttentionBlock,
                             kAttentionBlockBackward,
                             kAttentionDropout,
                             kAttentionDropoutBackward,
                             kDropoutMask,
                             kAddDropout,
                             kDropoutBackward,
                             kEmbedding,
                             kEmbeddingBackward,
                             kLogits,
                             kCrossEntropy,
                             kCrossEntropyBackward,
                             kMmAccumulate,
                             kBiasGradAccumulate,
                             kGroupedMm,
                             kGroupedMmAccumulate,
                             kSumSquares,
                             kAdamW}) {
    m.def(schema);
  }
}

TORCH_LIBRARY_IMPL(slipway, CompositeExplicitAutograd, m) {
  Register(m, kRmsNorm, reference::RmsNorm);
  Register(m, kAddRmsNorm, reference::AddRmsNorm);
  Register(m, kRmsNormBackward, reference::RmsNormBackward);
  Register(m, kRope, reference::Rope);
  Register(m, kQkNormRope, reference::QkNormRope);
  Register(m, kQkNormRopeBackward, reference::QkNormRopeBackward);
  Register(m, kSwiGlu, reference::SwiGlu);
  Register(m, kSwiGluBackward, reference::SwiGluBackward);
  Register(m, kAttention, reference::Attention);
  Register(m, kAttentionBackward, reference::AttentionBackward);
  Register(m, kAttentionBlock, reference::AttentionBlock);
  Register(m, kAttentionBlockBackward, reference::AttentionBlockBackward);
  Register(m, kAttentionDropout, reference::AttentionDropout);
  Register(m, kAttentionDropoutBackward, reference::AttentionDropoutBackward);
  Register(m, kDropoutMask, reference::DropoutMask);
  Register(m, kAddDropout, reference::AddDropout);
  Register(m, kDropoutBackward, reference::DropoutBackward);
  Register(m, kEmbedding, reference::Embedding);
  Register(m, kEmbeddingBackward, reference::EmbeddingBackward);
  Register(m, kLogits, reference::Logits);
  Register(m, kCrossEntropy, reference::CrossEntropy);
  Register(m, kCrossEntropyBackward, reference::CrossEntropyBackward);
  Register(m, kMmAccumulate, reference::MmAccumulate);
  Register(m, kBiasGradAccumulate, reference::BiasGradAccumulate);
  Register(m, kGroupedMm, reference::GroupedMm);
  Register(m, kGroupedMmAccumulate, reference::GroupedMmAccumulate);
  Register(m, kSumSquares, reference::SumSquares);
  Register(m, kAdamW, reference::AdamW);
}

// Operations without a kernel of their own here run the reference on the CPU too.
TORCH_LIBRARY_IMPL(slipway, CPU, m) {
  Register(m, kRmsNorm, cpu::RmsNorm);
  Register(m, kAddRmsNorm, cpu::AddRmsNorm);
  Register(m, kRmsNormBackward, cpu::RmsNormBackward);
  Register(m, kRope, cpu::Rope);
  Register(m, kSwiGlu, cpu::SwiGlu);
  Register(m, kSwiGluBackward, cpu::SwiGluBackward);
  Register(m, kCrossEntropy, cpu::CrossEntropy);
  Register(m, kCrossEntropyBackward, cpu::CrossEntropyBackward);
  Register(m, kAttention, cpu::Attention);
  Register(m, kAttentionBackward, cpu::AttentionBackward);
  Register(m, kAttentionBlock, cpu::AttentionBlock);
  Register(m, kAttentionBlockBackward, cpu::AttentionBlockBackward);
  Register(m, kEmbeddingBackward, cpu::EmbeddingBackward);
  Register(m, kSumSquares, cpu::SumSquares);
  Register(m, kAdamW, cpu::AdamW);
}

}  // namespace

c10::OperatorHandle FindOperator(const char* schema) {
  const std::string name = "slipway::" + std::string(NameOf(schema));
  return c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
}

}  // namespace slipway::engine::ops
