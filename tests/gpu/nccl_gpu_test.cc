// The layout matrix on two GPUs over NCCL, against one GPU. Ranks are processes, one a GPU. In fp32 (with TF32 off) the
// tolerance is that of the CPU matrix times ten: matrix products of other shapes add in another order. In bf16 every
// activation and gradient has 8 bits, and partial sums over ranks are rounded once more: losses within 1 %, gradients
// within 5 %.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/comm/backend_registry.h"
#include "tests/gpu/gpu_environment.h"
#include "tests/multi/layout_harness.h"
#include "tests/support/gloo_ranks.h"
#include "tests/support/rank_process.h"

namespace slipway::testing {
namespace {

using namespace ::slipway::engine;  // NOLINT: as in the harness

// Layouts of two ranks, by the names under which they go to the rank processes.
const std::map<std::string, Layout>& TwoRankLayouts() {
  static const std::map<std::string, Layout> layouts = {
      {"one", {}},
      {"dp2", {.sizes = {.dp = 2}}},
      {"dp2_replicated", {.sizes = {.dp = 2}, .sharding = arch::Sharding::kNoShard}},
      {"dp2_gradients", {.sizes = {.dp = 2}, .sharding = arch::Sharding::kOptimGrads}},
      {"dp2_parameters", {.sizes = {.dp = 2}, .sharding = arch::Sharding::kOptimGradsParams}},
      {"tp2", {.sizes = {.tp = 2}}},
      {"tp2_sequence_parallel", {.sizes = {.tp = 2}, .sequence_parallel = true}},
      {"tp2_overlap", {.sizes = {.tp = 2}, .sequence_parallel = true, .tp_comm_overlap = true}},
      {"cp2_p2p", {.sizes = {.cp = 2}, .cp_comm = nn::ContextComm::kRing}},
      {"cp2_all_gather", {.sizes = {.cp = 2}, .rows_per_micro_batch = 2, .cp_comm = nn::ContextComm::kAllGather}},
      {"cp2_a2a", {.sizes = {.cp = 2}, .cp_comm = nn::ContextComm::kAllToAll}},
      {"pp2", {.sizes = {.pp = 2}}},
      {"pp2_vpp2", {.sizes = {.pp = 2}, .vpp = 2}},
  };
  return layouts;
}

arch::ModelArch ModelOf(const std::string& name) {
  arch::ModelArch arch = name == "llama" ? MatrixLlama() : MatrixTiedQwen3();
  arch.num_layers = 4;  // for two virtual stages on each of two ranks
  return arch;
}

void PrintResult(const LayoutResult& result) {
  std::cout.precision(17);
  for (const double loss : result.losses) std::cout << "loss " << loss << "\n";
  for (const double norm : result.norms) std::cout << "norm " << norm << "\n";
  std::cout << "evaluation " << result.evaluation << "\n";
  for (const auto& [name, gradient] : result.gradients) {
    // What the rank does not own is NaN and stays out of the sums; both ranks' sums together are the tensor's.
    const at::Tensor owned = at::nan_to_num(gradient.to(at::kDouble), 0.0);
    const at::Tensor weights = at::arange(owned.numel(), at::kDouble).mul(0.7).cos().view(owned.sizes());
    std::cout << "grad " << name << " " << owned.pow(2).sum().item<double>() << " "
              << (owned * weights).sum().item<double>() << "\n";
  }
  std::cout << std::flush;
}

SLIPWAY_RANK_BODY(TrainOverNccl) {
  void* const plugin = LoadGpuPlugin();
  if (plugin == nullptr || !comm::RegisterPluginBackends(plugin).ok()) return 20;
  at::globalContext().setFloat32MatmulPrecision("highest");
  const std::vector<std::string> parts = absl::StrSplit(rank.argument, ':');  // fd, port, layout, model, type
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(rank.rank));
  const c10::DeviceGuard guard(device);
  return WithGroups(rank, {.backend = "nccl", .device = device, .timeout = absl::Seconds(60)},
                    [&](const comm::ProcessRendezvous&, comm::GroupFactory& factory) {
                      const Layout& layout = TwoRankLayouts().at(parts[2]);
                      LayoutResult result = TrainRank(
                          ModelOf(parts[3]), layout, rank.rank, factory,
                          {.device = device, .compute_dtype = parts[4] == "bf16" ? at::kBFloat16 : at::kFloat});
                      if (layout.sizes.dp == 2 && layout.sharding == arch::Sharding::kNoShard && rank.rank == 1)
                        result.gradients.clear();  // a second copy
                      PrintResult(result);
                      return 0;
                    });
}

struct Printed {
  std::vector<double> losses, norms;
  double evaluation = 0;
  std::map<std::string, std::pair<double, double>> gradients;  // sum of squares, a weighted sum
};

Printed RunMatrix(const std::string& layout, const std::string& model, const std::string& type) {
  Printed result;
  const int world = static_cast<int>(TwoRankLayouts().at(layout).sizes.World());
  ListeningSocket socket = Listen();
  RankProcesses ranks("TrainOverNccl", world, absl::StrCat(socket.Argument(), ":", layout, ":", model, ":", type));
  socket.fd.reset();
  for (const RankExit& exit : ranks.WaitAll(std::chrono::seconds(180))) {
    EXPECT_EQ(exit.code, 0) << exit.output;
    for (const absl::string_view line : absl::StrSplit(exit.output, '\n')) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ');
      double first = 0, second = 0;
      if (words.size() == 4 && words[0] == "grad" && absl::SimpleAtod(words[2], &first) &&
          absl::SimpleAtod(words[3], &second)) {
        result.gradients[words[1]].first += first;
        result.gradients[words[1]].second += second;
      }
      if (words.size() != 2 || !absl::SimpleAtod(words[1], &first)) continue;
      if (words[0] == "loss") result.losses.push_back(first);
      if (words[0] == "norm") result.norms.push_back(first);
      if (words[0] == "evaluation" && first != 0) result.evaluation = first;
    }
  }
  return result;
}

void ExpectNear(const Printed& one, const Printed& two, double loss_tolerance, double gradient_tolerance,
                const std::string& name) {
  ASSERT_EQ(one.losses.size(), static_cast<size_t>(kMatrixSteps)) << name;
  ASSERT_EQ(two.losses.size(), one.losses.size()) << name;
  for (size_t i = 0; i < one.losses.size(); ++i) {
    EXPECT_NEAR(two.losses[i] / one.losses[i], 1.0, loss_tolerance) << name << ", loss of step " << i + 1;
  }
  EXPECT_NEAR(two.norms[0] / one.norms[0], 1.0, gradient_tolerance) << name << ", gradient norm";
  EXPECT_NEAR(two.evaluation / one.evaluation, 1.0, loss_tolerance) << name << ", evaluation";
  ASSERT_EQ(two.gradients.size(), one.gradients.size()) << name;
  for (const auto& [tensor, want] : one.gradients) {
    const auto& got = two.gradients.at(tensor);
    const double norm = std::sqrt(want.first);
    EXPECT_NEAR(std::sqrt(got.first), norm, gradient_tolerance * norm + 1e-9) << name << ", norm of " << tensor;
    EXPECT_NEAR(got.second, want.second, gradient_tolerance * norm + 1e-9) << name << ", weighted sum of " << tensor;
  }
}

class NcclGpuTest : public ::testing::TestWithParam<std::string> {};

TEST_P(NcclGpuTest, EqualsOneGpu) {
  for (const std::string model : {"llama", "tied_qwen3"}) {
    for (const std::string type : {"fp32", "bf16"}) {
      const bool exact = type == "fp32";
      ExpectNear(RunMatrix("one", model, type), RunMatrix(GetParam(), model, type), exact ? 1e-4 : 1e-2,
                 exact ? 1e-4 : 5e-2, absl::StrCat(model, " ", type));
    }
  }
}

std::vector<std::string> LayoutNames() {
  std::vector<std::string> names;
  for (const auto& [name, layout] : TwoRankLayouts()) {
    if (name != "one") names.push_back(name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Layouts, NcclGpuTest, ::testing::ValuesIn(LayoutNames()),
                         [](const auto& layout) { return layout.param; });

}  // namespace
}  // namespace slipway::testing
