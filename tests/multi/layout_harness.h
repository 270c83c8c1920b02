// The harness of the layout matrix: trains a tiny model for a few steps on a layout and says what came out, so that
// every layout can be compared with one rank. Ranks are threads (Train) or processes that the test has started
// (TrainRank); the model runs through the parts that a job runs through: store, factory, runner, optimizer.
#ifndef SLIPWAY_TESTS_MULTI_LAYOUT_HARNESS_H_
#define SLIPWAY_TESTS_MULTI_LAYOUT_HARNESS_H_

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "engine/arch/model_arch.h"
#include "engine/arch/sharding.h"
#include "engine/comm/parallel_groups.h"
#include "engine/nn/context_attention.h"
#include "engine/nn/recompute.h"
#include "engine/topology/mesh.h"
#include "tests/multi/layout_costs.h"

namespace slipway::testing {

inline constexpr int kMatrixSamples = 4;  // of a global batch
inline constexpr int kMatrixSteps = 5;

struct Layout {
  engine::topology::MeshSizes sizes;
  int vpp = 1;
  std::string pipeline_layout = {};  // a layout string; empty: layers are dealt evenly
  int vpp_group = 0;                 // micro-batches of a group; 0: pp
  std::string order = std::string(engine::topology::kDefaultRankOrder);
  engine::arch::Sharding sharding = engine::arch::Sharding::kOptim;
  int rows_per_micro_batch = 1;
  bool sequence_parallel = false;
  bool tp_comm_overlap = false;
  engine::nn::ContextComm cp_comm = engine::nn::ContextComm::kRing;
  bool ragged = false;  // rows of different lengths; the one rank to compare with has them too
  bool overlap = true;  // of gradient reduction and of parameter gathering
  bool grad_reduce_in_fp32 = true;
  engine::nn::RecomputeOptions recompute = {};

  std::string Text() const;
};

// Where and in which type the ranks compute.
struct MatrixDevice {
  at::Device device = at::kCPU;
  at::ScalarType compute_dtype = at::kFloat;
};

struct LayoutResult {
  std::vector<double> losses;  // mean over the weights of the global batch
  std::vector<double> norms;
  std::vector<double> zeros, params_norms;
  double evaluation = 0;                        // the loss sum after the last step
  std::map<std::string, at::Tensor> gradients;  // of step 1, whole tensors on the CPU; NaN is what no rank has given
};

// On the thread-per-rank communicator; what every rank holds and sends is compared with its plan (layout_costs.h).
LayoutResult Train(const engine::arch::ModelArch& arch, const Layout& layout);

// One rank's part. Losses, norms and the evaluation are set on rank 0; gradients are what this rank owns. `counts` sees
// the operations of the factory's groups, if given.
LayoutResult TrainRank(const engine::arch::ModelArch& arch, const Layout& layout, int rank,
                       engine::comm::GroupFactory& factory, const MatrixDevice& where = {},
                       const CommCounts* counts = nullptr);

// Losses, norm, evaluation and every gradient within `tolerance` of `one`.
void ExpectEqual(const LayoutResult& one, const LayoutResult& other, const std::string& name, double tolerance = 1e-5);

// The models of the matrix: a vocabulary that does not divide over two ranks; an output layer tied to the embedding.
engine::arch::ModelArch MatrixLlama();
engine::arch::ModelArch MatrixTiedQwen3();
// Experts in two of three layers, with a balancing loss of each sample and a z-loss.
engine::arch::ModelArch MatrixQwen3Moe();

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_MULTI_LAYOUT_HARNESS_H_
