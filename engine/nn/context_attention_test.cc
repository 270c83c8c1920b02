// Attention over rows that several ranks (threads) share against attention over whole rows on one: outputs and
// gradients for every way of communicating, whatever the rows' lengths and the numbers of heads; what is resident; and
// what is refused.
#include "engine/nn/context_attention.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/comm/thread_communicator.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using ::slipway::testing::TensorEqual;
using ::slipway::testing::TensorNear;
using ::testing::HasSubstr;

constexpr int64_t kHeadDim = 6;

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

comm::CommPtr GroupOfAll(comm::GroupFactory& factory, int ranks) {
  std::vector<int> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  return factory.MakeGroup("cp", members);
}

struct Rows {
  std::vector<int64_t> lengths;
  int64_t tokens;
};

struct Case {
  ContextComm comm;
  int ranks;
};

std::string NameOf(const Case& c) {
  const std::map<ContextComm, std::string> names = {
      {ContextComm::kRing, "Ring"}, {ContextComm::kAllGather, "AllGather"}, {ContextComm::kAllToAll, "AllToAll"}};
  return names.at(c.comm) + "Of" + std::to_string(c.ranks);
}

struct Outcome {
  at::Tensor out, gradient;  // in the order of the whole rows
};

Outcome Shared(const Case& c, const Rows& rows, HeadCounts counts, const at::Tensor& qkv, const at::Tensor& dout,
               const DropoutSite& dropout = {}) {
  Outcome whole{at::full(dout.sizes(), NAN, dout.options()), at::full(qkv.sizes(), NAN, qkv.options())};
  std::vector<int64_t> samples(rows.lengths.size());
  std::iota(samples.begin(), samples.end(), 40);
  std::mutex mutex;
  comm::RunRanks(c.ranks, [&](int rank, comm::GroupFactory& factory) {
    const ContextParallel context{GroupOfAll(factory, c.ranks), c.comm};
    const SequenceLayout layout =
        MakeSequenceLayout(rows.lengths, samples, rows.tokens, at::kCPU, {.rank = rank, .size = c.ranks});
    const at::Tensor tokens = at::tensor(layout.context->tokens_host);
    const at::Tensor own = qkv.index_select(0, tokens).requires_grad_();
    const at::Tensor out = ContextAttention(own, layout, counts, /*first_head=*/3, dropout, context);
    out.backward(dout.index_select(0, tokens));
    std::lock_guard lock(mutex);
    whole.out.index_copy_(0, tokens, out.detach());
    whole.gradient.index_copy_(0, tokens, own.grad());
  });
  return whole;
}

Outcome Alone(const SequenceLayout& layout, HeadCounts counts, const at::Tensor& qkv, const at::Tensor& dout,
              const DropoutSite& dropout = {}) {
  const at::Tensor x = qkv.clone().requires_grad_();
  const at::Tensor out =
      dropout.probability == 0 ? Attention(x, layout, counts) : AttentionWithDropout(x, layout, counts, 3, dropout);
  out.backward(dout);
  return {out.detach(), x.grad()};
}

class ContextAttentionTest : public ::testing::TestWithParam<Case> {
 protected:
  // Against whole rows that are padded as the ranks pad them.
  void Check(const Rows& rows, HeadCounts counts, const DropoutSite& dropout = {}) {
    const at::Tensor qkv = Random({rows.tokens, (counts.heads + 2 * counts.groups) * kHeadDim}, 1);
    const at::Tensor dout = Random({rows.tokens, counts.heads * kHeadDim}, 2);
    std::vector<int64_t> samples(rows.lengths.size());
    std::iota(samples.begin(), samples.end(), 40);
    const auto any = MakeSequenceLayout(rows.lengths, samples, rows.tokens, at::kCPU, {.size = GetParam().ranks});
    const Outcome one = Alone(*any.context->whole, counts, qkv, dout, dropout);
    const Outcome many = Shared(GetParam(), rows, counts, qkv, dout, dropout);
    EXPECT_THAT(many.out, TensorNear(one.out, 1e-12));
    EXPECT_THAT(many.gradient, TensorNear(one.gradient, 1e-12));
  }
};

INSTANTIATE_TEST_SUITE_P(All, ContextAttentionTest,
                         ::testing::Values(Case{ContextComm::kRing, 2}, Case{ContextComm::kRing, 3},
                                           Case{ContextComm::kRing, 4}, Case{ContextComm::kAllGather, 2},
                                           Case{ContextComm::kAllGather, 4}, Case{ContextComm::kAllToAll, 2},
                                           Case{ContextComm::kAllToAll, 4}),
                         [](const auto& c) { return NameOf(c.param); });

TEST_P(ContextAttentionTest, UniformRows) { Check({{24, 24}, 48}, {.heads = 12, .groups = 12}); }

TEST_P(ContextAttentionTest, PackedRowsOfAnyLengthAndPadding) {
  Check({{17, 1, 0, 30, 7}, 120}, {.heads = 12, .groups = 12});
}

TEST_P(ContextAttentionTest, GroupedQueries) {
  Check({{24, 9}, 48}, {.heads = 12, .groups = 6});
  Check({{24, 9}, 48}, {.heads = 12, .groups = 3});  // fewer groups than four ranks
  Check({{24, 9}, 48}, {.heads = 12, .groups = 1});
}

TEST_P(ContextAttentionTest, DropoutIsTheSameOrRefused) {
  const DropoutSite dropout{.probability = 0.3, .seed = 5, .step = 2, .site = 7};
  if (GetParam().comm == ContextComm::kAllToAll) {
    Check({{17, 23}, 48}, {.heads = 12, .groups = 6}, dropout);
  } else {
    EXPECT_THROW(Check({{17, 23}, 48}, {.heads = 12, .groups = 6}, dropout), c10::Error);
  }
}

// The values differ in how they travel alone.
TEST(ContextAttentionBitsTest, RingAndGatherGiveTheSameBits) {
  const Rows rows{{24, 9, 15}, 56};
  const HeadCounts counts{.heads = 4, .groups = 2};
  const at::Tensor qkv = Random({56, 8 * kHeadDim}, 1).to(at::kFloat),
                   dout = Random({56, 4 * kHeadDim}, 2).to(at::kFloat);
  const Outcome ring = Shared({ContextComm::kRing, 2}, rows, counts, qkv, dout);
  const Outcome gathered = Shared({ContextComm::kAllGather, 2}, rows, counts, qkv, dout);
  EXPECT_THAT(ring.out, TensorEqual(gathered.out));
  EXPECT_THAT(ring.gradient, TensorEqual(gathered.gradient));
}

// bf16 in and out, partial results merged in fp32: as near to exact as one pass is.
TEST(ContextAttentionBitsTest, Bf16IsMergedInFp32) {
  const Rows rows{{64}, 64};
  const HeadCounts counts{.heads = 4, .groups = 2};
  const at::Tensor qkv = Random({64, 8 * 16}, 1).to(at::kBFloat16), dout = Random({64, 4 * 16}, 2).to(at::kBFloat16);
  const SequenceLayout layout = MakeSequenceLayout({64}, {40}, 64, at::kCPU);
  const Outcome exact = Alone(layout, counts, qkv.to(at::kDouble), dout.to(at::kDouble));
  for (const ContextComm comm : {ContextComm::kRing, ContextComm::kAllGather, ContextComm::kAllToAll}) {
    const Outcome shared = Shared({comm, 2}, rows, counts, qkv, dout);
    EXPECT_EQ(shared.out.scalar_type(), at::kBFloat16);
    EXPECT_THAT(shared.out, TensorNear(exact.out, 6e-3));
    EXPECT_THAT(shared.gradient, TensorNear(exact.gradient, 8e-3));
  }
}

// Counts what is alive among allocations of one size, but for the copies that thread communicators keep under way.
class BlockCounter final : public c10::Allocator {
 public:
  BlockCounter(c10::Allocator* base, size_t bytes) : base_(base), bytes_(bytes) {}

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr memory = base_->allocate(bytes);
    if (bytes != bytes_ || paused) return memory;
    std::lock_guard lock(mutex_);
    int& rank_alive = alive_[std::this_thread::get_id()];
    most_ = std::max(most_, ++rank_alive);
    auto* owned = new Owned{std::move(memory), this, std::this_thread::get_id()};
    return {owned->memory.get(), owned, &Release, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { base_->copy_data(to, from, bytes); }

  int most() const { return most_; }
  static thread_local bool paused;

 private:
  struct Owned {
    c10::DataPtr memory;
    BlockCounter* counter;
    std::thread::id rank;
  };
  static void Release(void* context) {
    const std::unique_ptr<Owned> owned(static_cast<Owned*>(context));
    std::lock_guard lock(owned->counter->mutex_);
    --owned->counter->alive_[owned->rank];
  }

  c10::Allocator* base_;
  size_t bytes_;
  std::mutex mutex_;
  std::map<std::thread::id, int> alive_;
  int most_ = 0;
};
thread_local bool BlockCounter::paused = false;

// Pauses the counting while a group copies what it is given.
class UncountedGroup final : public comm::Communicator {
 public:
  explicit UncountedGroup(comm::CommPtr group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }
  comm::WorkPtr AllReduce(at::Tensor x, comm::ReduceOp op) override {
    return Uncounted([&] { return group_->AllReduce(x, op); });
  }
  comm::WorkPtr AllGather(at::Tensor out, const at::Tensor& in) override {
    return Uncounted([&] { return group_->AllGather(out, in); });
  }
  comm::WorkPtr ReduceScatter(at::Tensor out, const at::Tensor& in, comm::ReduceOp op) override {
    return Uncounted([&] { return group_->ReduceScatter(out, in, op); });
  }
  comm::WorkPtr AllToAll(at::Tensor out, const at::Tensor& in, const std::vector<int64_t>& out_splits,
                         const std::vector<int64_t>& in_splits) override {
    return Uncounted([&] { return group_->AllToAll(out, in, out_splits, in_splits); });
  }
  comm::WorkPtr Broadcast(at::Tensor x, int root) override {
    return Uncounted([&] { return group_->Broadcast(x, root); });
  }
  comm::WorkPtr Send(const at::Tensor& x, int to) override {
    return Uncounted([&] { return group_->Send(x, to); });
  }
  comm::WorkPtr Recv(at::Tensor x, int from) override {
    return Uncounted([&] { return group_->Recv(x, from); });
  }
  void Barrier() override { group_->Barrier(); }

 private:
  template <typename Call>
  static comm::WorkPtr Uncounted(Call call) {
    BlockCounter::paused = true;
    comm::WorkPtr work = call();
    BlockCounter::paused = false;
    return work;
  }
  comm::CommPtr group_;
};

// The most blocks of keys and values that a rank holds at one time in a forward pass, as its allocations say. Eleven
// heads over one group of keys, twenty tokens a rank: no other tensor or buffer has a block's size.
int ResidentBlocks(ContextComm comm, int ranks) {
  const HeadCounts counts{.heads = 11, .groups = 1};
  const int64_t tokens = 20 * ranks, own = tokens / ranks;
  BlockCounter counter(c10::GetCPUAllocator(), static_cast<size_t>(own * 2 * kHeadDim) * sizeof(double));
  const at::Tensor qkv = Random({tokens, 13 * kHeadDim}, 1);
  c10::Allocator* before = c10::GetCPUAllocator();
  comm::RunRanks(ranks, [&](int rank, comm::GroupFactory& factory) {
    const ContextParallel context{c10::make_intrusive<UncountedGroup>(GroupOfAll(factory, ranks)), comm};
    const SequenceLayout layout = MakeSequenceLayout({tokens}, {0}, tokens, at::kCPU, {.rank = rank, .size = ranks});
    const at::Tensor mine = qkv.index_select(0, at::tensor(layout.context->tokens_host));
    context.group->Barrier();
    if (rank == 0) c10::SetCPUAllocator(&counter, /*priority=*/200);
    context.group->Barrier();
    {
      const at::NoGradGuard no_grad;
      ContextAttention(mine, layout, counts, 0, {}, context);
    }
    context.group->Barrier();
    if (rank == 0) c10::SetCPUAllocator(before, /*priority=*/200);
    context.group->Barrier();
  });
  return counter.most();
}

TEST(ContextAttentionMemoryTest, ARingHoldsTwoBlocks) {
  EXPECT_EQ(ResidentBlocks(ContextComm::kRing, 2), 2);
  EXPECT_EQ(ResidentBlocks(ContextComm::kRing, 4), 2);
}

// What a rank gives to its group, in bytes by operation.
class Bytes final : public comm::CommObserver {
 public:
  explicit Bytes(std::map<std::string, int64_t>& bytes) : bytes_(bytes) {}
  void Begin(const std::string&, const char* operation, uint64_t, int64_t count) override {
    bytes_[operation] += count;
  }
  void End(const std::string&, const char*, uint64_t) override {}

 private:
  std::map<std::string, int64_t>& bytes_;
};

TEST(ContextAttentionTrafficTest, EachWayMovesWhatItMust) {
  constexpr int kRanks = 4;
  constexpr int64_t kTokens = 32, kOwn = kTokens / kRanks, kDouble = 8;
  const HeadCounts counts{.heads = 8, .groups = 4};
  const int64_t block = kOwn * 2 * counts.groups * kHeadDim * kDouble;
  const int64_t all_heads = kOwn * (counts.heads + 2 * counts.groups) * kHeadDim * kDouble;
  const int64_t output = kOwn * counts.heads * kHeadDim * kDouble;
  const std::map<ContextComm, std::map<std::string, int64_t>> expected = {
      // Blocks go around in both passes, their gradients once more and home.
      {ContextComm::kRing, {{"all_to_all", (2 * (kRanks - 1) + kRanks) * block}}},
      {ContextComm::kAllGather, {{"all_gather", 2 * block}, {"reduce_scatter", kRanks * block}}},
      {ContextComm::kAllToAll, {{"all_to_all", 2 * (all_heads + output)}}}};
  for (const auto& [comm, bytes] : expected) {
    std::vector<std::map<std::string, int64_t>> moved(kRanks);
    comm::RunRanks(kRanks,
                   [&, comm = comm](int rank, comm::GroupFactory& factory) {
                     const ContextParallel context{GroupOfAll(factory, kRanks), comm};
                     const auto layout =
                         MakeSequenceLayout({kTokens}, {0}, kTokens, at::kCPU, {.rank = rank, .size = kRanks});
                     const at::Tensor x = Random({kOwn, 16 * kHeadDim}, rank).requires_grad_();
                     ContextAttention(x, layout, counts, 0, {}, context).sum().backward();
                   },
                   {.observer = [&](int rank) { return std::make_shared<Bytes>(moved[rank]); }});
    for (int rank = 0; rank < kRanks; ++rank) EXPECT_EQ(moved[rank], bytes) << NameOf({comm, kRanks});
  }
}

TEST(ContextAttentionRefusalTest, HeadsThatDoNotDivideAreNamed) {
  try {
    Shared({ContextComm::kAllToAll, 4}, {{16}, 16}, {.heads = 6, .groups = 2}, Random({16, 10 * kHeadDim}, 1),
           Random({16, 6 * kHeadDim}, 2));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("6 heads of a rank do not divide over 4 context-parallel ranks"));
  }
}

TEST(ContextAttentionRefusalTest, ALayoutOfWholeRowsIsRefused) {
  comm::RunRanks(2, [&](int, comm::GroupFactory& factory) {
    const SequenceLayout layout = MakeSequenceLayout({8}, {0}, 8, at::kCPU);
    EXPECT_THROW(ContextAttention(Random({8, 3 * kHeadDim}, 1), layout, {.heads = 1, .groups = 1}, 0, {},
                                  {GroupOfAll(factory, 2), ContextComm::kRing}),
                 c10::Error);
  });
}

TEST(ContextCommTest, HasMegatronsNames) {
  EXPECT_EQ(ContextCommOf("p2p"), ContextComm::kRing);
  EXPECT_EQ(ContextCommOf("all_gather"), ContextComm::kAllGather);
  EXPECT_EQ(ContextCommOf("a2a"), ContextComm::kAllToAll);
  EXPECT_THROW(ContextCommOf("ring"), c10::Error);
}

}  // namespace
}  // namespace slipway::engine::nn
