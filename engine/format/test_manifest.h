// A small checkpoint for tests: one parameter stored whole and, for its moment, in three slices of two boxes, and a
// tied alias. Its two files have 64 bytes each.
#ifndef SLIPWAY_ENGINE_FORMAT_TEST_MANIFEST_H_
#define SLIPWAY_ENGINE_FORMAT_TEST_MANIFEST_H_

#include <string>

#include "common/checksum.h"
#include "engine/format/manifest.h"

namespace slipway::engine::format {

inline std::string ExampleContents(char fill) { return std::string(64, fill); }

inline constexpr char kExampleJob[] = "job-example";

inline Manifest ExampleManifest(int64_t step = 120, int64_t epoch = 3, const std::string& job_id = kExampleJob) {
  Manifest manifest;
  manifest.job_id = job_id;
  manifest.step = step;
  manifest.epoch = epoch;
  manifest.consumed_samples = 4800;
  manifest.consumed_tokens = int64_t{1} << 53;
  manifest.resolved_spec = R"({"training":{"seed":7,"name":"é"}})";
  manifest.mesh = {{"dp", 2}, {"tp", 1}};
  manifest.lineage = {{.epoch = epoch - 1, .forked_from = {}},
                      {.epoch = epoch, .forked_from = LineageEntry::Fork{epoch - 1, 100}}};
  manifest.counters = {{"skipped_steps", 2}};
  manifest.values = {{"loss_scale", 1.0 / 3}};
  manifest.files = {{"a.safetensors", {64, ChecksumOf(ExampleContents('a'))}},
                    {"b.safetensors", {64, ChecksumOf(ExampleContents('b'))}}};
  const std::vector<int64_t> shape = {4, 4};
  const Box left{{0, 0}, {4, 2}}, right{{0, 2}, {4, 2}};
  manifest.tensors = {
      {"w", StateKind::kWeight, DType::kBFloat16, shape, "", {{"a.safetensors", 0, WholeTensor(shape)}}},
      {"w",
       StateKind::kExpAvg,
       DType::kFloat32,
       shape,
       "",
       {{"a.safetensors", 32, {left, 0, 5}}, {"b.safetensors", 0, {left, 5, 8}}, {"b.safetensors", 12, {right, 0, 8}}}},
      {"lm_head", StateKind::kWeight, DType::kBFloat16, shape, "w", {}}};
  return manifest;
}

}  // namespace slipway::engine::format

#endif  // SLIPWAY_ENGINE_FORMAT_TEST_MANIFEST_H_
