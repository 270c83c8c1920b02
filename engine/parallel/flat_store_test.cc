#include "engine/parallel/flat_store.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/comm/thread_communicator.h"
#include "engine/parallel/initial_weights.h"
#include "engine/topology/pipeline_partition.h"
#include "tests/support/status_matchers.h"

namespace slipway::engine::parallel {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

arch::ModelArch TinyArch(bool tied) {
  return {.family = arch::Family::kQwen3,
          .num_layers = 2,
          .hidden_size = 32,
          .num_attention_heads = 4,
          .num_query_groups = 2,
          .kv_channels = 8,
          .ffn_hidden_size = 48,
          .vocab_size = 101,
          .max_position_embeddings = 64,
          .rotary_base = 10000,
          .norm_epsilon = 1e-6,
          .qk_layernorm = true,
          .untie_embeddings_and_output_weights = !tied};
}

std::vector<arch::Piece> PiecesOf(const arch::ModelArch& arch, int pp, int stage) {
  const topology::PipelineStage part =
      topology::PartitionLayers(static_cast<int>(arch.num_layers), pp)->OfRank(stage)[0];
  std::vector<arch::Piece> pieces;
  if (part.has_embedding) pieces.push_back({arch::Piece::Kind::kEmbedding});
  for (int i = 0; i < part.num_layers; ++i) pieces.push_back({arch::Piece::Kind::kLayer, part.first_layer + i});
  if (part.has_head) pieces.push_back({arch::Piece::Kind::kHead});
  return pieces;
}

constexpr std::array<arch::Sharding, 4> kShardings = {arch::Sharding::kNoShard, arch::Sharding::kOptim,
                                                      arch::Sharding::kOptimGrads, arch::Sharding::kOptimGradsParams};

struct Rank {
  topology::Coordinates at;
  comm::ParallelGroups groups;
  std::unique_ptr<FlatStore> store;
};

// Runs `body` on every rank of a mesh, with its part of the model in a store.
void OnMesh(const topology::MeshSizes& sizes, const arch::ModelArch& arch, const FlatStoreOptions& options,
            const std::function<void(Rank&)>& body, const comm::ThreadWorldOptions& world = {}) {
  ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, topology::Mesh::Create(sizes));
  comm::RunRanks(
      mesh.world(),
      [&](int rank, comm::GroupFactory& factory) {
        Rank self{mesh.CoordinatesOf(rank), MakeParallelGroups(mesh, rank, factory), nullptr};
        auto store = FlatStore::Create(arch::BuildParamTable(arch), PiecesOf(arch, sizes.pp, self.at.pp), mesh, rank,
                                       self.groups, options);
        if (!store.ok()) throw std::runtime_error(std::string(store.status().message()));
        self.store = *std::move(store);
        body(self);
      },
      world);
}

at::Tensor ViewOf(FlatStore& store, const LogicalShare& share, at::Tensor Bucket::*flat) {
  return (store.buckets()[share.bucket].*flat).narrow(0, share.offset, share.elements);
}

std::set<std::string> GroupNames(FlatStore& store) {
  std::set<std::string> names;
  for (const LogicalShare& share : store.shares()) names.insert(share.spec->fuse_group.name);
  return names;
}

std::vector<arch::Piece> AllPieces(FlatStore& store) {
  std::vector<arch::Piece> pieces;
  for (const LogicalShare& share : store.shares()) pieces.push_back(share.spec->piece);
  return pieces;
}

void GiveGradient(nn::ParamHandle& param, float value) {
  param.RegisterUse();
  nn::GradTarget target = param.BeginGrad();
  if (target.accumulate) {
    target.main_grad.add_(value);
  } else {
    target.main_grad.fill_(value);
  }
  param.EndGrad();
}

TEST(InitialWeights, DoNotDependOnTheBox) {
  arch::ParamSpec spec{.name = "w", .shape = {5, 7}, .init = {arch::Init::Kind::kNormal, 0.5}};
  std::vector<float> whole(35), part(6);
  DrawInitialWeights(spec, 3, {0, 0}, {5, 7}, 0, 35, whole.data());
  DrawInitialWeights(spec, 3, {1, 2}, {2, 3}, 0, 6, part.data());
  for (int row = 0; row < 2; ++row) {
    for (int column = 0; column < 3; ++column) {
      EXPECT_EQ(part[row * 3 + column], whole[(row + 1) * 7 + column + 2]);
    }
  }
  std::vector<float> middle(3);  // of the box, over the end of a row
  DrawInitialWeights(spec, 3, {1, 2}, {2, 3}, 2, 5, middle.data());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(middle[i], part[2 + i]);
  std::vector<float> other(35);
  DrawInitialWeights(spec, 4, {0, 0}, {5, 7}, 0, 35, other.data());
  EXPECT_NE(whole, other);
  spec.name = "v";
  DrawInitialWeights(spec, 3, {0, 0}, {5, 7}, 0, 35, other.data());
  EXPECT_NE(whole, other);
}

TEST(InitialWeights, HaveTheirSpread) {
  const arch::ParamSpec spec{.name = "w", .shape = {100, 1000}, .init = {arch::Init::Kind::kNormal, 0.02}};
  std::vector<float> values(100000);
  DrawInitialWeights(spec, 1, {0, 0}, {100, 1000}, 0, 100000, values.data());
  double sum = 0, squares = 0;
  for (float v : values) {
    sum += v;
    squares += double{v} * v;
  }
  EXPECT_NEAR(sum / 1e5, 0.0, 3e-4);
  EXPECT_NEAR(std::sqrt(squares / 1e5), 0.02, 2e-4);
}

TEST(FlatStore, EveryLayoutHasTheSameWeights) {
  for (const topology::MeshSizes sizes :
       {topology::MeshSizes{.tp = 4, .pp = 2}, topology::MeshSizes{.tp = 2, .dp = 2}}) {
    OnMesh(sizes, TinyArch(true), {.compute_dtype = at::kBFloat16}, [](Rank& rank) {
      rank.store->InitializeWeights(11);
      for (const LogicalShare& share : rank.store->shares()) {
        arch::ParamSpec origin = *share.spec;
        if (origin.tied_to.has_value()) origin.name = *origin.tied_to;
        std::vector<float> expected(share.elements);
        DrawInitialWeights(origin, 11, share.box.start, share.box.extent, 0, share.elements, expected.data());
        const at::Tensor drawn = at::from_blob(expected.data(), {share.elements}, at::kFloat);
        EXPECT_TRUE(at::equal(ViewOf(*rank.store, share, &Bucket::weights), drawn.to(at::kBFloat16))) << origin.name;
      }
      for (const OwnedRange& range : rank.store->owned_ranges()) {
        const Bucket& bucket = rank.store->buckets()[range.share->bucket];
        EXPECT_EQ(bucket.shard_begin + range.offset, range.share->offset + range.begin);
        EXPECT_TRUE(at::equal(
            bucket.master.narrow(0, range.offset, range.end - range.begin).to(at::kBFloat16),
            ViewOf(*rank.store, *range.share, &Bucket::weights).narrow(0, range.begin, range.end - range.begin)));
      }
    });
  }
}

TEST(FlatStore, GradientsAreSummedOverReplicasWithAndWithoutSharding) {
  for (const arch::Sharding sharding : kShardings) {
    OnMesh({.dp = 3}, TinyArch(false), {.sharding = sharding, .bucket_elements = 2000}, [](Rank& rank) {
      FlatStore& store = *rank.store;
      ASSERT_GT(store.buckets().size(), 3u);
      for (int step = 0; step < 2; ++step) {
        store.BeginStep();
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
          if (micro_batch == 1) store.BeginLastBackward(AllPieces(store));
          for (const std::string& name : GroupNames(store)) {  // not the order of a backward
            if (name == "final_norm") continue;
            GiveGradient(*store.Handle(name), 1.0f + static_cast<float>(rank.at.dp));
          }
        }
        store.FinishGradients();
        for (const OwnedRange& range : store.owned_ranges()) {
          const Bucket& bucket = store.buckets()[range.share->bucket];
          const at::Tensor grad = bucket.grad_slice().narrow(0, range.offset, range.end - range.begin);
          const float expected = range.share->spec->fuse_group.name == "final_norm" ? 0.0f : 2.0f * (1 + 2 + 3);
          EXPECT_TRUE(at::equal(grad, at::full_like(grad, expected))) << range.share->spec->name;
        }
      }
    });
  }
}

TEST(FlatStore, ReductionsHaveOneOrder) {
  // Ranks finish their gradients in opposite orders; the collectives must come in the same.
  class Recorder final : public comm::CommObserver {
   public:
    void Begin(const std::string& group, const char* operation, uint64_t, int64_t bytes) override {
      log.push_back(absl::StrCat(group, " ", operation, " ", bytes));
    }
    void End(const std::string&, const char*, uint64_t) override {}
    std::vector<std::string> log;
  };
  std::vector<std::shared_ptr<Recorder>> recorders = {std::make_shared<Recorder>(), std::make_shared<Recorder>()};
  size_t before_finish = 0;
  OnMesh({.dp = 2}, TinyArch(false), {.bucket_elements = 2000},
         [&](Rank& rank) {
           FlatStore& store = *rank.store;
           const std::set<std::string> names = GroupNames(store);
           store.BeginStep();
           store.BeginLastBackward(AllPieces(store));
           if (rank.at.dp == 0) {
             for (const std::string& name : names) GiveGradient(*store.Handle(name), 1.0f);
             before_finish = recorders[0]->log.size();
           } else {
             for (auto name = names.rbegin(); name != names.rend(); ++name) GiveGradient(*store.Handle(*name), 1.0f);
           }
           store.FinishGradients();
         },
         {.observer = [&](int rank) { return recorders[rank]; }});
  EXPECT_EQ(recorders[0]->log, recorders[1]->log);
  EXPECT_EQ(before_finish, recorders[0]->log.size());  // all were under way before FinishGradients
}

TEST(FlatStore, CopiesOnTensorRanksAndStagesAreSummed) {
  // 2 key/value heads on 4 tensor ranks, head norms that see their own heads only, embedding tied across two stages.
  OnMesh({.tp = 4, .dp = 2, .pp = 2}, TinyArch(true), {}, [](Rank& rank) {
    FlatStore& store = *rank.store;
    store.BeginStep();
    store.BeginLastBackward(AllPieces(store));
    const float mine = 1.0f + static_cast<float>(rank.at.tp) + 10.0f * static_cast<float>(rank.at.dp) +
                       100.0f * static_cast<float>(rank.at.pp);
    for (const std::string& name : GroupNames(store)) GiveGradient(*store.Handle(name), mine);
    store.FinishGradients();
    const float tp = static_cast<float>(rank.at.tp), pp = static_cast<float>(rank.at.pp);
    const auto over_dp = [](float at_dp0) { return 2 * at_dp0 + 10; };
    for (const OwnedRange& range : store.owned_ranges()) {
      const std::string& name = range.share->spec->name;
      float expected = over_dp(1 + tp + 100 * pp);
      if (name.find("q_norm") != std::string::npos || name.find("k_norm") != std::string::npos) {
        expected = over_dp(1 + 100 * pp) + over_dp(2 + 100 * pp) + over_dp(3 + 100 * pp) + over_dp(4 + 100 * pp);
      } else if (name.find("k_proj") != std::string::npos || name.find("v_proj") != std::string::npos) {
        const float first = tp < 2 ? 0 : 2;
        expected = over_dp(1 + first + 100 * pp) + over_dp(2 + first + 100 * pp);
      } else if (range.share->spec->vocabulary) {
        expected = over_dp(1 + tp) + over_dp(1 + tp + 100);
      }
      const at::Tensor grad =
          store.buckets()[range.share->bucket].grad_slice().narrow(0, range.offset, range.end - range.begin);
      EXPECT_TRUE(at::equal(grad, at::full_like(grad, expected))) << name << " " << grad[0].item<float>();
    }
  });
}

TEST(FlatStore, ATiedUseOnTheSameRankIsReadyAfterBothUses) {
  OnMesh({.dp = 2}, TinyArch(true), {}, [](Rank& rank) {
    FlatStore& store = *rank.store;
    const nn::ParamPtr embedding = store.Handle("embedding");
    EXPECT_EQ(embedding.get(), store.Handle("output_layer").get());
    EXPECT_FALSE(store.Handle("layers.7.mlp.down").defined());
    store.BeginStep();
    store.BeginLastBackward(AllPieces(store));
    embedding->RegisterUse();
    embedding->RegisterUse();
    embedding->BeginGrad().main_grad.fill_(1.0);
    embedding->EndGrad();
    const nn::GradTarget second = embedding->BeginGrad();
    EXPECT_TRUE(second.accumulate);
    second.main_grad.add_(2.0);
    embedding->EndGrad();
    store.FinishGradients();
    EXPECT_THROW(embedding->BeginGrad(), c10::Error);  // a backward after the last
    EXPECT_THROW(embedding->EndGrad(), c10::Error);
  });
}

TEST(FlatStore, FrozenParametersHaveNoState) {
  ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, topology::Mesh::Create({}));
  std::vector<arch::ParamSpec> table = arch::BuildParamTable(TinyArch(false));
  for (arch::ParamSpec& spec : table) spec.trainable = spec.piece.kind == arch::Piece::Kind::kHead;
  comm::RunRanks(1, [&](int rank, comm::GroupFactory& factory) {
    const comm::ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
    ASSERT_OK_AND_ASSIGN(auto store, FlatStore::Create(table, PiecesOf(TinyArch(false), 1, 0), mesh, 0, groups, {}));
    store->InitializeWeights(1);
    EXPECT_FALSE(store->Handle("embedding")->requires_grad());
    EXPECT_TRUE(store->Handle("final_norm")->requires_grad());
    for (const Bucket& bucket : store->buckets()) EXPECT_EQ(bucket.main_grads.defined(), bucket.trainable);
    store->BeginStep();
    store->BeginLastBackward(AllPieces(*store));
    store->FinishGradients();
    store->PublishWeights();
    store->AdoptWeights();
  });
}

TEST(FlatStore, WeightsOnlyIsWeightsOnly) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    OnMesh({.dp = 2}, TinyArch(true), {.compute_dtype = dtype, .weights_only = true}, [&](Rank& rank) {
      FlatStore& store = *rank.store;
      store.InitializeWeights(1);
      store.PublishWeights();
      EXPECT_FALSE(store.Handle("embedding")->requires_grad());
      for (const Bucket& bucket : store.buckets()) {
        EXPECT_FALSE(bucket.main_grads.defined() || bucket.master.defined());
        EXPECT_FALSE(bucket.exp_avg.defined() || bucket.exp_avg_sq.defined());
        EXPECT_EQ(bucket.loaded_slice().numel(), bucket.weights.numel()) << "each rank loads all of it";
        EXPECT_EQ(bucket.loaded_slice().scalar_type(), dtype);
      }
    });
  }
}

TEST(FlatStore, PublishAndAdoptAreInverse) {
  OnMesh({.dp = 2}, TinyArch(false), {.compute_dtype = at::kBFloat16, .bucket_elements = 3000}, [](Rank& rank) {
    FlatStore& store = *rank.store;
    for (Bucket& bucket : store.buckets()) bucket.master.fill_(1.0 + rank.at.dp);
    store.PublishWeights();
    for (Bucket& bucket : store.buckets()) {
      EXPECT_EQ(bucket.weights[0].item<float>(), 1.0f);
      EXPECT_EQ(bucket.weights[-1].item<float>(), 2.0f);
      bucket.weights.fill_(5.0);
    }
    store.AdoptWeights();
    for (Bucket& bucket : store.buckets()) EXPECT_TRUE(at::equal(bucket.master, at::full_like(bucket.master, 5.0)));
  });
}

TEST(FlatStore, ChecksumSeesOneBitAndNoLayoutOfReplicas) {
  std::mutex mutex;
  std::set<uint64_t> checksums;
  OnMesh({.dp = 2}, TinyArch(false), {}, [&](Rank& rank) {
    rank.store->InitializeWeights(5);
    const uint64_t before = rank.store->WeightsChecksum();
    {
      std::lock_guard lock(mutex);
      checksums.insert(before);
    }
    rank.store->buckets()[0].weights[17].add_(1e-6);
    EXPECT_NE(rank.store->WeightsChecksum(), before);
    EXPECT_NE(before, 0u);
  });
  EXPECT_EQ(checksums.size(), 1u);
}

TEST(FlatStore, ChecksumDoesNotDependOnSharding) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::mutex mutex;
    std::set<uint64_t> checksums;
    for (const arch::Sharding sharding : kShardings) {
      OnMesh({.dp = 3}, TinyArch(true), {.compute_dtype = dtype, .sharding = sharding, .bucket_elements = 2000},
             [&](Rank& rank) {
               rank.store->InitializeWeights(5);
               const uint64_t checksum = rank.store->WeightsChecksum();
               std::lock_guard lock(mutex);
               checksums.insert(checksum);
             });
    }
    EXPECT_EQ(checksums.size(), 1u);
  }
}

TEST(FlatStore, ShardedParametersAreWholeInUseFrozenOnesToo) {
  ASSERT_OK_AND_ASSIGN(const topology::Mesh mesh, topology::Mesh::Create({.dp = 2}));
  std::vector<arch::ParamSpec> table = arch::BuildParamTable(TinyArch(false));
  for (arch::ParamSpec& spec : table) spec.trainable = spec.piece.kind == arch::Piece::Kind::kHead;
  comm::RunRanks(2, [&](int rank, comm::GroupFactory& factory) {
    const comm::ParallelGroups groups = MakeParallelGroups(mesh, rank, factory);
    ASSERT_OK_AND_ASSIGN(auto store,
                         FlatStore::Create(table, PiecesOf(TinyArch(false), 1, 0), mesh, rank, groups,
                                           {.sharding = arch::Sharding::kOptimGradsParams, .bucket_elements = 2000}));
    store->InitializeWeights(5);
    int64_t whole = 0, held = store->Bytes().weights;
    for (const LogicalShare& share : store->shares()) {
      if (share.spec->fuse_group.index > 0) continue;
      nn::ParamPtr param = store->Handle(share.spec->fuse_group.name);
      const at::Tensor weight = param->Acquire();
      whole += static_cast<int64_t>(weight.nbytes());
      std::vector<float> expected(share.elements);
      DrawInitialWeights(*share.spec, 5, share.box.start, share.box.extent, 0, share.elements, expected.data());
      EXPECT_TRUE(at::equal(weight.view(-1).narrow(0, 0, share.elements),
                            at::from_blob(expected.data(), {share.elements}, at::kFloat)))
          << share.spec->name;
      param->Release();
    }
    EXPECT_LT(held, whole * 6 / 10);
    store->BeginStep();
    EXPECT_TRUE(store->Handle("final_norm")->requires_grad());
    GiveGradient(*store->Handle("final_norm"), 1.0f);
    store->FinishGradients();
    store->PublishWeights();
    EXPECT_THROW(GiveGradient(*store->Handle("final_norm"), 1.0f), c10::Error);  // too late
  });
}

TEST(FlatStore, RefusesWhatDoesNotDivide) {
  try {
    OnMesh({.tp = 3}, TinyArch(false), {}, [](Rank&) {});
    FAIL() << "4 heads on 3 ranks were accepted";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("3"));
  }
}

}  // namespace
}  // namespace slipway::engine::parallel
