// Tokens to experts and back, on one rank and spread over ranks with both dispatchers, against one product a token:
// outputs, and gradients of tokens, weights of slots and experts.
#include "engine/nn/moe_dispatch.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "engine/comm/self_communicator.h"
#include "engine/comm/thread_communicator.h"
#include "engine/nn/local_param_handle.h"
#include "tests/support/tensor_near.h"

namespace slipway::engine::nn {
namespace {

using arch::Dispatcher;
using arch::MoeArch;
using ::slipway::testing::TensorNear;

constexpr int64_t kExperts = 4, kHidden = 3, kInner = 4;
constexpr double kTolerance = 1e-10;

at::Tensor Random(at::IntArrayRef shape, int seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

// What one rank has: tokens and their routing.
struct Tokens {
  at::Tensor x, experts, probs, dout;
};

// How the tokens of `rank` choose. `only`: the one expert that any token uses, or −1.
Tokens MakeTokens(int rank, int64_t count, int64_t only) {
  Tokens tokens{Random({count, kHidden}, 10 + rank), at::empty({count, 2}, at::kLong),
                Random({count, 2}, 20 + rank).abs(), Random({count, kHidden}, 30 + rank)};
  for (int64_t t = 0; t < count; ++t) {
    tokens.experts[t][0] = only >= 0 ? only : (t * 3 + rank) % kExperts;
    tokens.experts[t][1] = only >= 0 || t % 3 == 2 ? kExperts : (t * 3 + rank + 1) % kExperts;  // some slots are empty
  }
  tokens.probs.masked_fill_(tokens.experts == kExperts, 0);
  return tokens;
}

struct Experts {
  at::Tensor up = Random({kExperts, kInner, kHidden}, 1), down = Random({kExperts, kHidden, kInner}, 2);
};

struct Outcome {
  at::Tensor out, dx, dprobs, dup, ddown;
};

// One product a slot.
Outcome Plain(const Tokens& tokens, const Experts& experts) {
  const at::Tensor x = tokens.x.clone().requires_grad_(), probs = tokens.probs.clone().requires_grad_();
  const at::Tensor up = experts.up.clone().requires_grad_(), down = experts.down.clone().requires_grad_();
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < x.size(0); ++t) {
    at::Tensor sum = 0 * (x[t] + probs[t].sum() + up.sum() + down.sum());
    for (int64_t k = 0; k < 2; ++k) {
      const int64_t e = tokens.experts[t][k].item<int64_t>();
      if (e < kExperts) sum = sum + down[e].mv(up[e].mv(x[t]).tanh() * probs[t][k]);
    }
    rows.push_back(sum);
  }
  const at::Tensor out = at::stack(rows);
  out.backward(tokens.dout);
  return {out.detach(), x.grad(), probs.grad(), up.grad(), down.grad()};
}

// This rank's part, its experts cut to slices.
Outcome Dispatched(const Tokens& tokens, const Experts& experts, const MoeArch& moe, const comm::CommPtr& group,
                   int etp, int64_t capacity) {
  const int64_t local = kExperts * etp / group->size(), first = group->rank() / etp * local;
  const int64_t slice = kInner / etp, begin = group->rank() % etp * slice;
  const at::Tensor up = experts.up.narrow(0, first, local).narrow(1, begin, slice).contiguous();
  const at::Tensor down = experts.down.narrow(0, first, local).narrow(2, begin, slice).contiguous();
  const auto up_handle = c10::make_intrusive<LocalParamHandle>("up", up.view({local * slice, kHidden}), true);
  const auto down_handle = c10::make_intrusive<LocalParamHandle>("down", down.view({local * kHidden, slice}), true);
  const at::Tensor x = tokens.x.clone().requires_grad_(), probs = tokens.probs.clone().requires_grad_();
  const std::unique_ptr<TokenDispatcher> dispatcher = MakeDispatcher(moe, group, etp);
  const nn::Dispatched sent = dispatcher->Dispatch(x, {tokens.experts, probs}, capacity);
  const at::Tensor inner = GroupedLinear(sent.rows, up_handle, sent.ends).tanh() * sent.probs;
  const at::Tensor out = dispatcher->Combine(GroupedLinear(inner, down_handle, sent.ends), sent);
  out.backward(tokens.dout);
  if (capacity > 0) {
    EXPECT_EQ(sent.rows.size(0), local * capacity * group->size());
  }
  return {out.detach(), x.grad(), probs.grad(), up_handle->main_grad().view({local, slice, kHidden}),
          down_handle->main_grad().view({local, kHidden, slice})};
}

struct Case {
  int ranks;
  int etp;
  std::vector<int64_t> counts;  // tokens of each rank
  int64_t only = -1;
  int64_t capacity = 0;
};

void Check(const Case& c, Dispatcher dispatcher) {
  SCOPED_TRACE(::testing::Message() << c.ranks << " ranks, etp " << c.etp << ", only " << c.only << ", capacity "
                                    << c.capacity << ", " << std::string(arch::DispatcherName(dispatcher)));
  const MoeArch moe{.num_experts = kExperts, .topk = 2, .ffn_hidden_size = kInner, .dispatcher = dispatcher};
  const Experts experts;
  at::Tensor dup = at::zeros_like(experts.up), ddown = at::zeros_like(experts.down);
  std::vector<Outcome> plain;
  for (int rank = 0; rank < c.ranks; ++rank) {
    plain.push_back(Plain(MakeTokens(rank, c.counts[rank], c.only), experts));
    dup += plain.back().dup;
    ddown += plain.back().ddown;
  }
  comm::RunRanks(c.ranks, [&](int rank, comm::GroupFactory& factory) {
    std::vector<int> members(c.ranks);
    std::iota(members.begin(), members.end(), 0);
    const comm::CommPtr group =
        c.ranks == 1 ? comm::MakeSelfCommunicator("etp-ep") : factory.MakeGroup("etp-ep", members);
    const Tokens tokens = MakeTokens(rank, c.counts[rank], c.only);
    const Outcome mine = Dispatched(tokens, experts, moe, group, c.etp, c.capacity);
    const int64_t local = kExperts * c.etp / c.ranks, first = rank / c.etp * local;
    const int64_t slice = kInner / c.etp, begin = rank % c.etp * slice;
    EXPECT_THAT(mine.out, TensorNear(plain[rank].out, kTolerance)) << rank;
    EXPECT_THAT(mine.dx, TensorNear(plain[rank].dx, kTolerance)) << rank;
    EXPECT_THAT(mine.dprobs, TensorNear(plain[rank].dprobs, kTolerance)) << rank;
    EXPECT_THAT(mine.dup, TensorNear(dup.narrow(0, first, local).narrow(1, begin, slice), kTolerance)) << rank;
    EXPECT_THAT(mine.ddown, TensorNear(ddown.narrow(0, first, local).narrow(2, begin, slice), kTolerance)) << rank;
  });
}

class MoeDispatchTest : public ::testing::TestWithParam<Dispatcher> {};
INSTANTIATE_TEST_SUITE_P(All, MoeDispatchTest, ::testing::Values(Dispatcher::kAllToAll, Dispatcher::kAllGather),
                         [](const auto& name) { return std::string(arch::DispatcherName(name.param)); });

TEST_P(MoeDispatchTest, EqualsOneProductASlot) {
  Check({.ranks = 1, .etp = 1, .counts = {7}}, GetParam());
  Check({.ranks = 2, .etp = 1, .counts = {7, 7}}, GetParam());
  Check({.ranks = 4, .etp = 1, .counts = {5, 5, 5, 5}}, GetParam());
}

TEST_P(MoeDispatchTest, WithSlicesOfExperts) {
  Check({.ranks = 2, .etp = 2, .counts = {6, 6}}, GetParam());
  Check({.ranks = 4, .etp = 2, .counts = {5, 5, 5, 5}}, GetParam());
}

TEST_P(MoeDispatchTest, WithUnequalNumbersOfTokens) {
  Check({.ranks = 2, .etp = 1, .counts = {7, 2}}, GetParam());
  Check({.ranks = 4, .etp = 2, .counts = {1, 6, 3, 5}}, GetParam());
}

TEST_P(MoeDispatchTest, RanksToWhichNoTokenGoes) {
  Check({.ranks = 4, .etp = 1, .counts = {4, 4, 4, 4}, .only = 2}, GetParam());
  Check({.ranks = 4, .etp = 2, .counts = {4, 4, 4, 4}, .only = 0}, GetParam());
  Check({.ranks = 2, .etp = 1, .counts = {4, 4}, .only = kExperts}, GetParam());  // nobody goes anywhere
}

TEST_P(MoeDispatchTest, PaddedToCapacity) {
  Check({.ranks = 1, .etp = 1, .counts = {7}, .capacity = 6}, GetParam());
  Check({.ranks = 2, .etp = 1, .counts = {7, 7}, .capacity = 6}, GetParam());
  Check({.ranks = 4, .etp = 2, .counts = {4, 4, 4, 4}, .only = 1, .capacity = 4}, GetParam());
}

}  // namespace
}  // namespace slipway::engine::nn
