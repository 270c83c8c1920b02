// How long the plan of a large job takes: layout, every group, memory, traffic and the simulated schedule.
//
//   plan_bench [REPEATS]        10 when not given
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "engine/arch/presets.h"
#include "engine/spec/plan.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_reader.h"
#include "engine/spec/validate.h"

namespace slipway::engine::spec {
namespace {

struct Size {
  const char* ranks;
  const char* parallelism;
};

constexpr Size kSizes[] = {
    {"64", "data_parallel_size: 2, tensor_model_parallel_size: 8, pipeline_model_parallel_size: 4"},
    {"1024",
     "data_parallel_size: 16, tensor_model_parallel_size: 8, pipeline_model_parallel_size: 8, "
     "virtual_pipeline_model_parallel_size: 4"},
    {"16384",
     "data_parallel_size: 128, tensor_model_parallel_size: 8, pipeline_model_parallel_size: 16, "
     "virtual_pipeline_model_parallel_size: 7"},
};

int Run(int repeats) {
  const arch::ModelArch model = *arch::FindPreset("llama3_1_405b");
  for (const Size& size : kSizes) {
    const std::string text = absl::StrCat(
        "name: bench\nmodel: {preset: llama3_1_405b}\ndataset: {kind: mock}\noptimizer: {lr: 1e-4}\n",
        "training: {train_iters: 10, global_batch_size: 4096, seq_length: 8192}\n", "parallelism: {", size.parallelism,
        "}\n");
    const v1::TrainingSpec spec = Resolve(ReadSpec(text, "bench").spec);
    absl::Duration best = absl::InfiniteDuration();
    double bubble = 0;
    for (int i = 0; i < repeats; ++i) {
      const absl::Time begin = absl::Now();
      if (!Validate(spec).empty()) return 1;
      const absl::StatusOr<Plan> plan = MakePlan(spec, model);
      if (!plan.ok()) {
        std::fprintf(stderr, "plan_bench: %s\n", plan.status().ToString().c_str());
        return 1;
      }
      best = std::min(best, absl::Now() - begin);
      bubble = plan->simulated_bubble;
    }
    std::printf("%6s ranks: validated and planned in %.1f ms, bubble %.1f %%\n", size.ranks,
                absl::ToDoubleMilliseconds(best), 100 * bubble);
  }
  return 0;
}

}  // namespace
}  // namespace slipway::engine::spec

int main(int argc, char** argv) { return slipway::engine::spec::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 10); }
