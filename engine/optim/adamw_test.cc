#include "engine/optim/adamw.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/comm/thread_communicator.h"
#include "engine/parallel/initial_weights.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::optim {
namespace {

using parallel::Bucket;
using parallel::FlatStore;
using parallel::FlatStoreOptions;
using parallel::LogicalShare;
using parallel::OwnedRange;

// Two stages' worth of parameters of every kind: cut by rows and columns, replicated, shared heads, tied, no decay.
std::vector<arch::ParamSpec> Table() {
  using Kind = arch::Piece::Kind;
  const arch::Init normal{arch::Init::Kind::kNormal, 0.1};
  const auto cut = [&](arch::Piece piece, std::string name, std::vector<int64_t> shape, int dim) {
    arch::ParamSpec spec{.name = name, .shape = std::move(shape), .piece = piece, .tp_shard_dim = dim};
    spec.fuse_group = {name};
    spec.init = normal;
    return spec;
  };
  std::vector<arch::ParamSpec> table;
  table.push_back(cut({Kind::kEmbedding}, "embed", {24, 8}, 0));
  table.back().vocabulary = true;
  table.push_back(cut({Kind::kLayer, 0}, "column", {16, 8}, 0));
  table.push_back(cut({Kind::kLayer, 0}, "shared", {8, 8}, 0));  // two heads of 4 rows
  table.back().tp_unit = 4;
  table.back().tp_replicate_units = true;
  table.push_back(cut({Kind::kLayer, 1}, "row", {8, 16}, 1));
  table.push_back(
      {.name = "norm", .shape = {8}, .piece = {Kind::kLayer, 1}, .weight_decay = false, .fuse_group = {"norm"}});
  table.back().init = {arch::Init::Kind::kOnes};
  table.push_back(cut({Kind::kHead}, "head", {24, 8}, 0));
  table.back().vocabulary = true;
  table.back().tied_to = "embed";
  return table;
}

std::vector<arch::Piece> PiecesOf(int pp, int stage) {
  using Kind = arch::Piece::Kind;
  if (pp == 1) return {{Kind::kEmbedding}, {Kind::kLayer, 0}, {Kind::kLayer, 1}, {Kind::kHead}};
  if (stage == 0) return {{Kind::kEmbedding}, {Kind::kLayer, 0}};
  return {{Kind::kLayer, 1}, {Kind::kHead}};
}

// Element `index` of a tensor's gradient before it is summed over the job: the same on every layout. Some are zero.
float GradientOf(const std::string& name, int64_t index, int step) {
  if (index % 11 == 3) return 0;
  return std::sin(static_cast<float>(index % 97) * 0.7f + static_cast<float>(step) + static_cast<float>(name.size()));
}

// The shares of each fuse group on this rank, by the group's name.
std::map<std::string, std::vector<const LogicalShare*>> SharesByGroup(const FlatStore& store) {
  std::map<std::string, std::vector<const LogicalShare*>> groups;
  for (const LogicalShare& share : store.shares()) groups[share.spec->fuse_group.name].push_back(&share);
  return groups;
}

// A share's part of what its group's handle gives; this table has no group with several members.
at::Tensor PartOf(const at::Tensor& whole, const LogicalShare& share) {
  return whole.view(-1).narrow(0, 0, share.elements);
}

// Gives this rank's part of a gradient whose sum over all copies is GradientOf, as a backward would. The first element
// of `embed` becomes `first` instead.
void GiveGradients(FlatStore& store, const topology::MeshSizes& sizes, int step, std::optional<float> first) {
  for (const auto& [group, shares] : SharesByGroup(store)) {
    const LogicalShare& share = *shares[0];
    const arch::ParamSpec& spec = *share.spec;
    const std::string& name = spec.tied_to.has_value() ? *spec.tied_to : spec.name;
    float copies = static_cast<float>(sizes.dp);
    if (spec.vocabulary && sizes.pp > 1) copies *= 2;  // both uses
    copies *= static_cast<float>(arch::TpGradSumRanks(spec, sizes.tp, false));
    nn::ParamPtr param = store.Handle(group);
    param->RegisterUse();
    const nn::GradTarget target = param->BeginGrad();
    EXPECT_FALSE(target.accumulate);
    at::Tensor grad = PartOf(target.main_grad, share);
    const int64_t columns = share.box.extent.back();
    for (int64_t i = 0; i < share.elements; ++i) {
      const int64_t row = spec.shape.size() == 1 ? 0 : share.box.start[0] + i / columns;
      const int64_t index = row * spec.shape.back() + share.box.start.back() + i % columns;
      grad[i].fill_(GradientOf(name, index, step) / copies);
    }
    if (first.has_value()) grad[0].fill_(*first);
    param->EndGrad();
  }
}

struct TrainingRun {
  std::map<std::string, at::Tensor> weights;  // whole tensors, fp32
  std::vector<float> norms;
  std::vector<float> skipped;
  std::vector<double> zeros, params_norms;
  float updates = 0;
};

struct TrainOptions {
  topology::MeshSizes sizes;
  arch::Sharding sharding = arch::Sharding::kOptim;
  at::ScalarType dtype = at::kFloat;
  int steps = 3;
  AdamWOptions adamw;
  int poisoned_step = -1;  // one rank's gradient is infinite
  int poisoned_loss = -1;  // one rank's loss is not a number
};

TrainingRun Train(const TrainOptions& options) {
  TrainingRun result;
  std::mutex mutex;
  std::set<std::string> reports;  // every rank must say the same
  const topology::Mesh mesh = *topology::Mesh::Create(options.sizes);
  comm::RunRanks(mesh.world(), [&](int rank, comm::GroupFactory& factory) {
    const topology::Coordinates at = mesh.CoordinatesOf(rank);
    const comm::ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
    auto created = FlatStore::Create(Table(), PiecesOf(options.sizes.pp, at.pp), mesh, rank, groups,
                                     {.compute_dtype = options.dtype,
                                      .sharding = options.sharding,
                                      .bucket_elements = 100,
                                      .make_vocab_size_divisible_by = 1});
    if (!created.ok()) throw std::runtime_error(std::string(created.status().message()));
    FlatStore& store = **created;
    store.InitializeWeights(7);
    AdamWOptions adamw = options.adamw;
    adamw.count_zeros = adamw.params_norm = true;
    AdamW optimizer(store, groups, adamw);
    std::vector<float> norms, skipped;
    std::vector<double> zeros, params_norms;
    for (int step = 0; step < options.steps; ++step) {
      store.BeginStep();
      const bool poison = step == options.poisoned_step && rank == mesh.world() - 1;
      GiveGradients(store, options.sizes, step,
                    poison ? std::optional(std::numeric_limits<float>::infinity()) : std::nullopt);
      store.FinishGradients();
      const bool bad_loss = step == options.poisoned_loss && rank == mesh.world() - 1;
      const StepOutcome outcome =
          optimizer.Step(1e-2, at::full({}, bad_loss ? std::numeric_limits<float>::quiet_NaN() : 1.5f));
      zeros.push_back(outcome.num_zeros.item<double>());
      params_norms.push_back(outcome.params_norm.item<double>());
      norms.push_back(outcome.grad_norm.item<float>());
      skipped.push_back(outcome.skipped.item<float>());
    }
    std::map<std::string, at::Tensor> weights;  // of the handles
    for (const auto& [group, shares] : SharesByGroup(store)) {
      const nn::ParamPtr param = store.Handle(group);
      weights[group] = param->Acquire().to(at::kFloat).clone();
      param->Release();
    }
    std::lock_guard lock(mutex);
    reports.insert(absl::StrCat(absl::StrJoin(norms, " "), "; ", absl::StrJoin(skipped, " "), "; ",
                                absl::StrJoin(zeros, " "), "; ", absl::StrJoin(params_norms, " ")));
    result.zeros = zeros;
    result.params_norms = params_norms;
    result.norms = norms;
    result.skipped = skipped;
    result.updates = optimizer.updates().item<float>();
    for (const LogicalShare& share : store.shares()) {
      at::Tensor& whole = result.weights[share.spec->name];
      if (!whole.defined()) whole = at::full(share.spec->shape, std::nanf(""));
      at::Tensor box = whole;
      for (size_t dim = 0; dim < share.box.start.size(); ++dim) {
        box = box.narrow(static_cast<int64_t>(dim), share.box.start[dim], share.box.extent[dim]);
      }
      const at::Tensor part = PartOf(weights.at(share.spec->fuse_group.name), share).view(share.box.extent);
      if (!box.isnan().any().item<bool>()) {
        EXPECT_TRUE(at::equal(box, part)) << share.spec->name << ": replicas differ";
      }
      box.copy_(part);
    }
  });
  EXPECT_EQ(reports.size(), 1u);
  return result;
}

// The formulas of torch.optim.AdamW and clip_grad_norm_, in double.
std::map<std::string, std::vector<double>> Reference(const AdamWOptions& options, int steps,
                                                     std::vector<double>* norms) {
  std::map<std::string, std::vector<double>> weights, m, v;
  std::map<std::string, bool> decay;
  for (const arch::ParamSpec& spec : Table()) {
    if (spec.tied_to.has_value()) continue;
    std::vector<float> drawn(spec.NumElements());
    parallel::DrawInitialWeights(spec, 7, std::vector<int64_t>(spec.shape.size(), 0), spec.shape, 0, spec.NumElements(),
                                 drawn.data());
    weights[spec.name].assign(drawn.begin(), drawn.end());
    m[spec.name].resize(drawn.size());
    v[spec.name].resize(drawn.size());
    decay[spec.name] = spec.weight_decay;
  }
  for (int step = 0; step < steps; ++step) {
    double squares = 0;
    for (const auto& [name, values] : weights) {
      for (size_t i = 0; i < values.size(); ++i)
        squares += std::pow(GradientOf(name, static_cast<int64_t>(i), step), 2);
    }
    norms->push_back(std::sqrt(squares));
    const double scale =
        options.max_grad_norm > 0 ? std::min(1.0, options.max_grad_norm / (std::sqrt(squares) + 1e-6)) : 1.0;
    for (auto& [name, values] : weights) {
      for (size_t i = 0; i < values.size(); ++i) {
        const double g = scale * GradientOf(name, static_cast<int64_t>(i), step);
        double& mean = m[name][i];
        double& square = v[name][i];
        mean = options.beta1 * mean + (1 - options.beta1) * g;
        square = options.beta2 * square + (1 - options.beta2) * g * g;
        if (decay[name]) values[i] *= 1 - 1e-2 * options.weight_decay;
        const double t = step + 1;
        values[i] -= 1e-2 * (mean / (1 - std::pow(options.beta1, t))) /
                     (std::sqrt(square / (1 - std::pow(options.beta2, t))) + options.epsilon);
      }
    }
  }
  return weights;
}

TEST(AdamW, FollowsTorch) {
  for (const double max_norm : {0.0, 1.0, 100.0}) {
    const AdamWOptions options{.beta2 = 0.95, .weight_decay = 0.1, .max_grad_norm = max_norm};
    const TrainingRun run = Train({.steps = 4, .adamw = options});
    std::vector<double> norms;
    const auto expected = Reference(options, 4, &norms);
    for (size_t i = 0; i < norms.size(); ++i) EXPECT_NEAR(run.norms[i] / norms[i], 1.0, 1e-6);
    EXPECT_EQ(run.updates, 4.0f);
    for (const auto& [name, values] : expected) {
      const at::Tensor got = run.weights.at(name).contiguous();
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_NEAR(got.data_ptr<float>()[i], values[i], 2e-6 * std::max(1.0, std::abs(values[i]))) << name << " " << i;
      }
    }
  }
}

constexpr std::array<arch::Sharding, 4> kShardings = {arch::Sharding::kNoShard, arch::Sharding::kOptim,
                                                      arch::Sharding::kOptimGrads, arch::Sharding::kOptimGradsParams};

TEST(AdamW, ShardedStateEqualsReplicatedBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const TrainingRun replicated = Train({.sizes = {.dp = 3}, .sharding = arch::Sharding::kNoShard, .dtype = dtype});
    for (const arch::Sharding sharding : kShardings) {
      const TrainingRun sharded = Train({.sizes = {.dp = 3}, .sharding = sharding, .dtype = dtype});
      EXPECT_EQ(sharded.norms, replicated.norms) << ShardingName(sharding);
      EXPECT_EQ(sharded.zeros, replicated.zeros) << ShardingName(sharding);
      for (const auto& [name, weight] : sharded.weights)
        EXPECT_TRUE(at::equal(weight, replicated.weights.at(name))) << name << " " << ShardingName(sharding);
    }
  }
}

TEST(AdamW, TheNormCountsEverythingOnceOnAnyLayout) {
  const TrainingRun one = Train({});
  double squares = 0, zeros = 0;
  for (const auto& [name, weight] : one.weights) {
    squares += weight.square().sum().item<double>();
    for (int64_t i = 0; i < weight.numel(); ++i) zeros += GradientOf(name, i, 2) == 0;
  }
  EXPECT_NEAR(one.params_norms[2] / std::sqrt(squares), 1.0, 1e-6);
  EXPECT_EQ(one.zeros[2], zeros);
  EXPECT_GT(zeros, 0);
  for (const topology::MeshSizes sizes :
       {topology::MeshSizes{.tp = 2}, topology::MeshSizes{.tp = 4}, topology::MeshSizes{.pp = 2},
        topology::MeshSizes{.tp = 4, .dp = 2, .pp = 2}}) {
    for (const arch::Sharding sharding : kShardings) {
      const TrainingRun run = Train({.sizes = sizes, .sharding = sharding});
      EXPECT_EQ(run.zeros, one.zeros) << MeshText(sizes) << " " << ShardingName(sharding);
      for (size_t i = 0; i < one.norms.size(); ++i) {
        EXPECT_NEAR(run.norms[i] / one.norms[i], 1.0, 1e-6) << MeshText(sizes);
        EXPECT_NEAR(run.params_norms[i] / one.params_norms[i], 1.0, 1e-6) << MeshText(sizes);
      }
      for (const auto& [name, weight] : run.weights) {
        const at::Tensor& expected = one.weights.at(name == "head" ? "embed" : name);
        EXPECT_LT((weight - expected).abs().max().item<float>(), 1e-6) << name << " on " << MeshText(sizes);
      }
    }
  }
}

// Case L8: the step is skipped by all ranks and nothing changes, not even the count of updates.
TEST(AdamW, L8ANonFiniteGradientSkipsTheStep) {
  for (const topology::MeshSizes sizes : {topology::MeshSizes{}, topology::MeshSizes{.tp = 2, .dp = 2, .pp = 2}}) {
    const TrainingRun poisoned = Train({.sizes = sizes, .steps = 2, .poisoned_step = 1});
    const TrainingRun before = Train({.sizes = sizes, .steps = 1});
    EXPECT_THAT(poisoned.skipped, ::testing::ElementsAre(0.0f, 1.0f));
    EXPECT_FALSE(std::isfinite(poisoned.norms[1]));
    EXPECT_EQ(poisoned.updates, 1.0f);
    for (const auto& [name, weight] : before.weights) EXPECT_TRUE(at::equal(weight, poisoned.weights.at(name))) << name;
  }
}

TEST(AdamW, L8ANonFiniteLossSkipsTheStep) {
  const TrainingRun poisoned = Train({.sizes = {.dp = 2}, .steps = 2, .poisoned_loss = 1});
  const TrainingRun before = Train({.sizes = {.dp = 2}, .steps = 1});
  EXPECT_THAT(poisoned.skipped, ::testing::ElementsAre(0.0f, 1.0f));
  for (const auto& [name, weight] : before.weights) EXPECT_TRUE(at::equal(weight, poisoned.weights.at(name))) << name;
}

}  // namespace
}  // namespace slipway::engine::optim
