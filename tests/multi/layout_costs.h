// Whether a rank of the matrix holds and sends what its plan says, no more and no less.
#ifndef SLIPWAY_TESTS_MULTI_LAYOUT_COSTS_H_
#define SLIPWAY_TESTS_MULTI_LAYOUT_COSTS_H_

#include <map>
#include <string>
#include <vector>

#include "engine/arch/data_parallel_traffic.h"
#include "engine/comm/communicator.h"
#include "engine/comm/parallel_groups.h"
#include "engine/nn/recompute.h"
#include "engine/parallel/flat_store.h"
#include "engine/topology/mesh.h"
#include "engine/topology/pipeline_schedule.h"

namespace slipway::testing {

// Operations of one rank by group and kind.
class CommCounts final : public engine::comm::CommObserver {
 public:
  void Begin(const std::string& group, const char* operation, uint64_t, int64_t bytes) override {
    engine::arch::Volume& volume = volumes_[{group, operation}];
    ++volume.operations;
    volume.bytes += bytes;
  }
  void End(const std::string&, const char*, uint64_t) override {}
  const engine::arch::Volumes& volumes() const { return volumes_; }

 private:
  engine::arch::Volumes volumes_;
};

// Of one rank. Compared are the groups over which gradients and norms are summed, where nothing but these is sent; of a
// model with experts only what is held.
class CostCheck {
 public:
  CostCheck(const engine::arch::ModelArch& arch, std::vector<std::vector<engine::arch::Piece>> chunks,
            const engine::topology::Mesh& mesh, int rank, const engine::comm::ParallelGroups& groups,
            const engine::parallel::FlatStoreOptions& options, const engine::nn::RecomputeOptions& recompute,
            const CommCounts& counts);
  CostCheck(CostCheck&&) = delete;

  // What making the store allocated.
  void ExpectAllocated(int64_t bytes) const;
  void BeginStep() { before_ = counts_.volumes(); }
  // A step of this schedule with its optimizer is done.
  void ExpectStep(const engine::topology::PipelineSchedule& schedule, const engine::parallel::FlatStore& store,
                  const std::string& layout);

 private:
  // By the names that the groups have here: groups of the same ranks are one group.
  engine::arch::Volumes Compared(const engine::arch::Volumes& volumes) const;

  bool has_experts_;
  std::vector<engine::arch::ParamSpec> table_;
  engine::arch::BucketPlan plan_;
  std::vector<std::vector<engine::arch::Piece>> chunks_;
  engine::nn::RecomputeOptions recompute_;
  int pp_rank_;
  std::map<std::string, std::string> names_;  // of the plan's groups here
  std::vector<std::string> others_;           // groups that carry other things
  engine::arch::DataParallelTraffic traffic_;
  const CommCounts& counts_;
  engine::arch::Volumes before_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_MULTI_LAYOUT_COSTS_H_
