// Gradients in whole buckets, reduced once a step.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "engine/parallel/flat_store.h"
#include "engine/parallel/gradient_buffers.h"

namespace slipway::engine::parallel {
namespace {

// bf16 copies of buckets that exist at one time.
constexpr size_t kMaxNarrowReductions = 2;

class ResidentGradients final : public GradientBuffers {
 public:
  ResidentGradients(const arch::BucketPlan& plan, std::vector<Bucket>& buckets, std::vector<comm::CommPtr> groups,
                    const Options& options)
      : plan_(plan), buckets_(buckets), groups_(std::move(groups)), options_(options), states_(plan.groups.size()) {
    groups_of_bucket_.resize(buckets_.size());
    for (int index = 0; index < static_cast<int>(plan_.groups.size()); ++index) {
      const arch::PlannedGroup& planned = plan_.groups[index];
      if (!buckets_[planned.bucket].trainable) continue;
      groups_of_bucket_[planned.bucket].push_back(index);
      states_[index].main_grad =
          buckets_[planned.bucket].main_grads.narrow(0, planned.offset, planned.Elements()).view(planned.shape);
    }
    BeginStep();
  }

  void BeginStep() override {
    for (GroupState& state : states_) {
      state.open_uses = 0;
      state.stale = true;
      state.last_backward = false;
      state.sealed = false;
    }
    open_groups_.clear();
    for (const std::vector<int>& groups : groups_of_bucket_) open_groups_.push_back(static_cast<int>(groups.size()));
    next_ = 0;
  }

  void BeginLastBackward(const std::vector<int>& groups) override {
    for (const int group : groups) states_[group].last_backward = true;
  }

  void RegisterUse(int group) override { ++states_[group].open_uses; }

  nn::GradTarget BeginGrad(int group) override {
    GroupState& state = states_[group];
    TORCH_CHECK(!state.sealed, "gradient of ", plan_.groups[group].name,
                " after its reduction began: a backward ran after the last micro-batch");
    return {state.main_grad, !std::exchange(state.stale, false)};
  }

  void EndGrad(int group) override {
    GroupState& state = states_[group];
    TORCH_CHECK(state.open_uses > 0, "gradient of ", plan_.groups[group].name, " without a registered use");
    if (--state.open_uses > 0 || !state.last_backward || !options_.overlap) return;
    --open_groups_[plan_.groups[group].bucket];
    if (alone_) return;
    const at::NoGradGuard no_grad;
    while (next_ < static_cast<int>(buckets_.size()) && open_groups_[next_] <= 0) Reduce(next_++);
  }

  void Finish() override {
    const at::NoGradGuard no_grad;
    while (next_ < static_cast<int>(buckets_.size())) Reduce(next_++);
    while (!reductions_.empty()) CompleteOldest();
  }

  int64_t peak_staging_bytes() const override { return peak_bytes_; }

 private:
  struct GroupState {
    at::Tensor main_grad;  // of the local shape; undefined for a frozen group
    int open_uses = 0;
    bool stale = true;
    bool last_backward = false;
    bool sealed = false;
  };
  struct Reduction {
    int bucket;
    comm::WorkPtr work;
    at::Tensor narrow;  // bf16: what was sent
    at::Tensor sum;     // bf16: what comes back; undefined when it comes in place
  };

  void Reduce(int index) {
    const Bucket& bucket = buckets_[index];
    for (const int group : groups_of_bucket_[index]) {
      GroupState& state = states_[group];
      state.sealed = true;
      if (std::exchange(state.stale, false)) state.main_grad.zero_();
    }
    comm::Communicator& group = *groups_[index];
    if (!bucket.trainable || group.size() == 1) return;
    if (options_.reduce_in_fp32 || bucket.sign_update_rate > 0) {
      reductions_.push_back(
          {.bucket = index,
           .work = options_.sharded ? group.ReduceScatter(bucket.grad_slice(), bucket.main_grads, comm::ReduceOp::kSum)
                                    : group.AllReduce(bucket.main_grads, comm::ReduceOp::kSum)});
      return;
    }
    if (reductions_.size() == kMaxNarrowReductions) CompleteOldest();
    Reduction reduction{.bucket = index, .narrow = bucket.main_grads.to(at::kBFloat16)};
    if (options_.sharded) {
      reduction.sum = at::empty({bucket.shard_elements}, reduction.narrow.options());
      reduction.work = group.ReduceScatter(reduction.sum, reduction.narrow, comm::ReduceOp::kSum);
    } else {
      reduction.sum = reduction.narrow;
      reduction.work = group.AllReduce(reduction.narrow, comm::ReduceOp::kSum);
    }
    reductions_.push_back(std::move(reduction));
    int64_t bytes = 0;
    for (const Reduction& under_way : reductions_) bytes += static_cast<int64_t>(under_way.narrow.nbytes());
    peak_bytes_ = std::max(peak_bytes_, bytes);
  }

  void CompleteOldest() {
    const Reduction reduction = std::move(reductions_.front());
    reductions_.pop_front();
    reduction.work->Wait();
    if (reduction.sum.defined()) buckets_[reduction.bucket].grad_slice().copy_(reduction.sum);
  }

  const arch::BucketPlan& plan_;
  std::vector<Bucket>& buckets_;
  std::vector<comm::CommPtr> groups_;  // by bucket
  Options options_;
  bool alone_ = IsAlone(groups_);
  std::vector<GroupState> states_;                  // by group
  std::vector<std::vector<int>> groups_of_bucket_;  // those that are trained
  std::vector<int> open_groups_;                    // by bucket: groups whose gradient is not complete
  int next_ = 0;                                    // the bucket to reduce next
  std::deque<Reduction> reductions_;                // under way, oldest first
  int64_t peak_bytes_ = 0;
};

}  // namespace

std::unique_ptr<GradientBuffers> MakeResidentGradients(const arch::BucketPlan& plan, std::vector<Bucket>& buckets,
                                                       std::vector<comm::CommPtr> groups,
                                                       const GradientBuffers::Options& options) {
  return std::make_unique<ResidentGradients>(plan, buckets, std::move(groups), options);
}

}  // namespace slipway::engine::parallel
