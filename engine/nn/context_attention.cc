#include "engine/nn/context_attention.h"

#include "engine/nn/context_blocks.h"
#include "engine/nn/context_heads.h"
#include "engine/nn/function_support.h"

namespace slipway::engine::nn {
namespace {

using comm::WorkPtr;
using internal::AutogradContext;
using internal::BlockCall;
using internal::LocalQueries;
using internal::SaveCall;
using internal::SavedCall;
using internal::variable_list;

// Sends to the next rank of the ring and receives from the one before: an exchange in which all other shares are empty,
// because two plain messages between one pair would queue behind each other (ADR 0007).
WorkPtr Shift(comm::Communicator& group, const at::Tensor& into, const at::Tensor& from) {
  const int size = group.size(), next = (group.rank() + 1) % size, previous = (group.rank() + size - 1) % size;
  std::vector<int64_t> sent(size, 0), received(size, 0);
  sent[next] = from.size(0);
  received[previous] = into.size(0);
  return group.AllToAll(into, from, received, sent);
}

// A block and the one that comes after it; both memories are used in turn.
struct Ring {
  explicit Ring(at::Tensor own, comm::Communicator& group) : current(std::move(own)), group(group) {}

  void BeginShift() {
    if (!incoming.defined()) incoming = at::empty_like(current);
    work = Shift(group, incoming, current);
  }
  void EndShift() {
    if (work == nullptr) return;
    std::exchange(work, nullptr)->Wait();
    std::swap(current, incoming);
  }

  at::Tensor current, incoming;
  comm::Communicator& group;
  WorkPtr work;
};

// The rank whose block is at hand in a step of the ring.
int SourceOf(int step, const comm::Communicator& group) { return (group.rank() - step + group.size()) % group.size(); }

struct Parts {
  at::Tensor q;   // columns of qkv
  at::Tensor kv;  // a copy: what travels
};
Parts Split(const at::Tensor& qkv, HeadCounts counts) {
  const int64_t size = qkv.size(1) / (counts.heads + 2 * counts.groups);
  return {qkv.narrow(1, 0, counts.heads * size),
          qkv.narrow(1, counts.heads * size, 2 * counts.groups * size).contiguous()};
}

struct Gathered {
  at::Tensor blocks;  // [size · T, …], rank by rank
  WorkPtr work;
  at::Tensor Block(int rank, int64_t tokens) const { return blocks.narrow(0, rank * tokens, tokens); }
};
Gathered Gather(const at::Tensor& own, comm::Communicator& group) {
  Gathered gathered{at::empty({group.size() * own.size(0), own.size(1)}, own.options()), nullptr};
  gathered.work = group.AllGather(gathered.blocks, own);
  return gathered;
}

struct ContextCall {
  BlockCall block;
  ContextParallel context;
};

struct ContextFunction : torch::autograd::Function<ContextFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const ContextCall& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    comm::Communicator& group = *call.context.group;
    Parts parts = Split(qkv, call.block.counts);
    LocalQueries queries(call.block, parts.q);
    if (call.context.comm == ContextComm::kRing) {
      Ring blocks(std::move(parts.kv), group);
      for (int step = 0; step < group.size(); ++step) {
        if (step + 1 < group.size()) blocks.BeginShift();
        queries.Attend(SourceOf(step, group), blocks.current);
        blocks.EndShift();
      }
    } else {
      const Gathered all = Gather(parts.kv, group);
      queries.Attend(group.rank(), parts.kv);
      all.work->Wait();
      for (int step = 1; step < group.size(); ++step) {
        const int source = SourceOf(step, group);
        queries.Attend(source, all.Block(source, qkv.size(0)));
      }
    }
    auto [out, lse] = queries.Result();
    SaveCall(context, call);
    context->save_for_backward({qkv, out, lse});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto& call = SavedCall<ContextCall>(context);
    const variable_list saved = context->get_saved_variables();
    Parts parts = Split(saved[0], call.block.counts);
    LocalQueries queries(call.block, parts.q);
    queries.BeginBackward(grads[0].contiguous(), saved[1], saved[2]);
    const at::Tensor dkv = call.context.comm == ContextComm::kRing
                               ? RingBackward(queries, std::move(parts.kv), *call.context.group)
                               : GatheredBackward(queries, parts.kv, *call.context.group);
    at::Tensor dqkv = at::empty_like(saved[0]);
    const at::Tensor dq = queries.QueryGradient();
    dqkv.narrow(1, 0, dq.size(1)).copy_(dq);
    dqkv.narrow(1, dq.size(1), dkv.size(1)).copy_(dkv);
    return {dqkv, at::Tensor()};
  }

  // The gradient of a block follows it one step behind: after the last step it is at home.
  static at::Tensor RingBackward(LocalQueries& queries, at::Tensor kv, comm::Communicator& group) {
    Ring gradients(queries.NewGradient(kv), group);
    Ring blocks(std::move(kv), group);
    for (int step = 0; step < group.size(); ++step) {
      if (step + 1 < group.size()) blocks.BeginShift();
      const LocalQueries::BlockGradient gradient = queries.Backward(SourceOf(step, group), blocks.current);
      gradients.EndShift();
      queries.AddTo(gradients.current, gradient);
      gradients.BeginShift();
      blocks.EndShift();
    }
    gradients.EndShift();
    return gradients.current;
  }

  static at::Tensor GatheredBackward(LocalQueries& queries, const at::Tensor& kv, comm::Communicator& group) {
    const Gathered all = Gather(kv, group);
    const int64_t tokens = kv.size(0);
    at::Tensor gradients = queries.NewGradient(all.blocks);
    const auto add = [&](int source, const at::Tensor& block) {
      queries.AddTo(gradients.narrow(0, source * tokens, tokens), queries.Backward(source, block));
    };
    add(group.rank(), kv);
    all.work->Wait();
    for (int step = 1; step < group.size(); ++step) {
      const int source = SourceOf(step, group);
      add(source, all.Block(source, tokens));
    }
    at::Tensor own = at::empty({tokens, kv.size(1)}, gradients.options());
    group.ReduceScatter(own, gradients, comm::ReduceOp::kSum)->Wait();
    return own;
  }
};

}  // namespace

ContextComm ContextCommOf(std::string_view name) {
  if (name == "p2p") return ContextComm::kRing;
  if (name == "all_gather") return ContextComm::kAllGather;
  TORCH_CHECK(name == "a2a", "context-parallel communication '", std::string(name),
              "' is none of p2p, all_gather, a2a");
  return ContextComm::kAllToAll;
}

at::Tensor ContextAttention(const at::Tensor& qkv, const SequenceLayout& layout, HeadCounts counts, int64_t first_head,
                            const DropoutSite& dropout, const ContextParallel& context) {
  TORCH_CHECK(layout.context != nullptr && layout.context->place.size == context.group->size(),
              "the rows are not cut over the ", context.group->size(), " ranks of group ", context.group->name());
  if (context.comm == ContextComm::kAllToAll) {
    const int ranks = context.group->size();
    const HeadCounts own = internal::HeadsOfRank(counts, ranks);
    const at::Tensor whole = internal::TokensForHeads(qkv, *layout.context, counts, context.group);
    const SequenceLayout& rows = *layout.context->whole;
    const at::Tensor out =
        dropout.probability == 0
            ? Attention(whole, rows, own)
            : AttentionWithDropout(whole, rows, own, first_head + context.group->rank() * own.heads, dropout);
    return internal::HeadsForTokens(out, *layout.context, context.group);
  }
  TORCH_CHECK(dropout.probability == 0,
              "attention dropout under context parallelism needs the exchange of heads (cp_comm_type a2a)");
  return ContextFunction::apply(qkv, ContextCall{internal::MakeBlockCall(qkv, layout, counts), context});
}

}  // namespace slipway::engine::nn
