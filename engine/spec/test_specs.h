// Specs for the tests of this folder.
#ifndef SLIPWAY_ENGINE_SPEC_TEST_SPECS_H_
#define SLIPWAY_ENGINE_SPEC_TEST_SPECS_H_

#include <string>

#include "engine/spec/spec_reader.h"

namespace slipway::engine::spec {

// A valid job.
inline constexpr char kMockJob[] = R"(name: tiny
model:
  preset: tiny_llama
dataset:
  kind: mock
training:
  train_iters: 100
  global_batch_size: 4
  seq_length: 32
optimizer:
  lr: 1e-3
)";

inline v1::TrainingSpec MockSpec(const std::string& more = "") { return ReadSpec(kMockJob + more, "job.yaml").spec; }

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_TEST_SPECS_H_
