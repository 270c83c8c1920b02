#include "tests/multi/layout_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "engine/model/recompute.h"

namespace slipway::testing {
namespace {

using namespace ::slipway::engine;  // NOLINT: as in the harness
using arch::Volume;
using arch::Volumes;

std::vector<arch::Piece> Joined(const std::vector<std::vector<arch::Piece>>& chunks) {
  std::vector<arch::Piece> all;
  for (const auto& pieces : chunks) all.insert(all.end(), pieces.begin(), pieces.end());
  return all;
}

Volumes Difference(const Volumes& after, const Volumes& before) {
  Volumes difference;
  for (const auto& [key, volume] : after) {
    const auto old = before.find(key);
    const Volume base = old == before.end() ? Volume() : old->second;
    if (volume != base) difference[key] = {volume.operations - base.operations, volume.bytes - base.bytes};
  }
  return difference;
}

}  // namespace

CostCheck::CostCheck(const arch::ModelArch& arch, std::vector<std::vector<arch::Piece>> chunks,
                     const topology::Mesh& mesh, int rank, const comm::ParallelGroups& groups,
                     const parallel::FlatStoreOptions& options, const nn::RecomputeOptions& recompute,
                     const CommCounts& counts)
    : has_experts_(arch.moe.has_value()),
      table_(arch::BuildParamTable(arch)),
      plan_(*arch::PlanBuckets(
          table_, Joined(chunks),
          {.tp = arch::PlacementOf(mesh.sizes(), mesh.CoordinatesOf(rank), options.make_vocab_size_divisible_by),
           .shards = groups.dp_cp->size(),
           .expert_shards = groups.edp->size(),
           .bucket_elements = options.bucket_elements,
           .sequence_parallel = options.sequence_parallel})),
      chunks_(std::move(chunks)),
      recompute_(recompute),
      pp_rank_(mesh.CoordinatesOf(rank).pp),
      names_({{"dp-cp", groups.dp_cp->name()},
              {"edp", groups.edp->name()},
              {"tp", groups.tp->name()},
              {"embedding", groups.embedding->name()},
              {"world", groups.world->name()}}),
      others_({groups.tp->name(), groups.cp->name()}),
      traffic_(table_, plan_,
               {.sharding = options.sharding,
                .shard = groups.dp_cp->rank(),
                .tp = mesh.sizes().tp,
                .pp = mesh.sizes().pp,
                .world = mesh.world(),
                .compute_bytes = static_cast<int64_t>(c10::elementSize(options.compute_dtype)),
                .overlap_grad_reduce = options.overlap_grad_reduce,
                .overlap_param_gather = options.overlap_param_gather,
                .grad_reduce_in_fp32 = options.grad_reduce_in_fp32,
                .params_norm = true}),
      counts_(counts) {}

void CostCheck::ExpectAllocated(int64_t bytes) const {
  const arch::ResidentBytes& planned = traffic_.resident();
  EXPECT_EQ(bytes, planned.weights + planned.gradients + planned.optimizer);
}

Volumes CostCheck::Compared(const Volumes& volumes) const {
  Volumes compared;
  for (const auto& [key, volume] : volumes) {
    if (std::find(others_.begin(), others_.end(), key.first) != others_.end()) continue;
    const bool known = std::any_of(names_.begin(), names_.end(), [&](const auto& n) { return n.second == key.first; });
    if (known) compared[key] = volume;
  }
  return compared;
}

void CostCheck::ExpectStep(const topology::PipelineSchedule& schedule, const parallel::FlatStore& store,
                           const std::string& layout) {
  for (const topology::Pass& pass : schedule.ranks[pp_rank_]) {
    const std::vector<arch::Piece>& pieces = chunks_[pass.chunk];
    if (pass.kind == topology::PassKind::kForward) {
      traffic_.Forward(pieces);
      continue;
    }
    std::vector<model::PieceRun> runs = model::RunsOf(pieces, recompute_);
    for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
      const std::vector<arch::Piece> part(pieces.begin() + static_cast<int64_t>(run->first),
                                          pieces.begin() + static_cast<int64_t>(run->end));
      if (run->recomputed) traffic_.Forward(part);
      traffic_.Backward(part);
    }
  }
  traffic_.EndStep();
  Volumes planned;
  for (const auto& [key, volume] : traffic_.TakeVolumes()) {
    Volume& here = planned[{names_.at(key.first), key.second}];
    here.operations += volume.operations;
    here.bytes += volume.bytes;
  }
  const parallel::StoreBytes held = store.Bytes();
  const arch::ResidentBytes& resident = traffic_.resident();
  EXPECT_EQ(held.weights, resident.weights) << layout;
  EXPECT_EQ(held.gradients, resident.gradients) << layout;
  EXPECT_EQ(held.optimizer, resident.optimizer) << layout;
  // Routers and dispatchers send over the same groups, and use weights in an order of their own.
  if (has_experts_) return;
  EXPECT_EQ(Compared(Difference(counts_.volumes(), before_)), Compared(planned)) << layout << ", stage " << pp_rank_;
  EXPECT_EQ(held.peak_gathered, resident.peak_gathered) << layout;
  EXPECT_EQ(held.peak_staging, resident.peak_staging) << layout;
  int64_t largest = 0;
  for (const arch::PlannedBucket& bucket : plan_.buckets) largest = std::max(largest, bucket.elements);
  const auto compute = static_cast<int64_t>(c10::elementSize(store.options().compute_dtype));
  EXPECT_LE(held.peak_gathered, 2 * largest * compute) << layout;
  EXPECT_LE(held.peak_staging, 2 * largest * 4) << layout;
}

}  // namespace slipway::testing
