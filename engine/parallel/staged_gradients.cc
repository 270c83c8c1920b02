// Gradients as slices: a backward's bucket passes through a staging buffer.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/parallel/flat_store.h"
#include "engine/parallel/gradient_buffers.h"

namespace slipway::engine::parallel {
namespace {

class StagedGradients final : public GradientBuffers {
 public:
  StagedGradients(const arch::BucketPlan& plan, std::vector<Bucket>& buckets, std::vector<comm::CommPtr> groups,
                  const Options& options)
      : plan_(plan), buckets_(buckets), groups_(std::move(groups)), options_(options), states_(plan.groups.size()) {
    BeginStep();
  }

  void BeginStep() override {
    for (GroupState& state : states_) state.open_uses = 0;
    reduced_.assign(buckets_.size(), false);
    filling_ = -1;
    open_grads_ = 0;
    finished_ = false;
    staging_ = at::Tensor();
  }

  void BeginLastBackward(const std::vector<int>&) override {}

  void RegisterUse(int group) override { ++states_[group].open_uses; }

  nn::GradTarget BeginGrad(int group) override {
    const arch::PlannedGroup& planned = plan_.groups[group];
    TORCH_CHECK(!finished_, "gradient of ", planned.name,
                " after its reduction: a backward ran after the last micro-batch");
    if (planned.bucket != filling_) Fill(planned);
    ++open_grads_;
    GroupState& state = states_[group];
    const bool accumulate = std::exchange(state.written_in, fillings_) == fillings_;
    return {staging_.narrow(0, planned.offset, planned.Elements()).view(planned.shape), accumulate};
  }

  void EndGrad(int group) override {
    TORCH_CHECK(states_[group].open_uses > 0, "gradient of ", plan_.groups[group].name, " without a registered use");
    --states_[group].open_uses;
    --open_grads_;
  }

  void Finish() override {
    const at::NoGradGuard no_grad;
    if (filling_ >= 0) Flush();
    Complete();
    for (size_t index = 0; index < buckets_.size(); ++index) {
      if (buckets_[index].trainable && !reduced_[index]) buckets_[index].main_grads.zero_();
    }
    finished_ = true;
  }

  int64_t peak_staging_bytes() const override { return peak_bytes_; }

 private:
  struct GroupState {
    int open_uses = 0;
    uint64_t written_in = 0;  // the number of the filling that has a gradient of it
  };
  struct Reduction {
    int bucket;
    comm::WorkPtr work;
    at::Tensor sent;
    at::Tensor sum;  // undefined when it goes straight into the slice
  };

  // A new staging buffer for the group's bucket.
  void Fill(const arch::PlannedGroup& group) {
    TORCH_CHECK(open_grads_ == 0, "an operation writes the gradient of ", group.name,
                " while it writes one of another bucket: its parameters must share a bucket");
    const at::NoGradGuard no_grad;
    if (filling_ >= 0) Flush();
    filling_ = group.bucket;
    ++fillings_;
    // Zero: what no operation writes (padding, a group without a gradient in this pass) must add nothing.
    staging_ = at::zeros({plan_.buckets[filling_].elements}, buckets_[filling_].main_grads.options());
    peak_bytes_ = std::max<int64_t>(
        peak_bytes_,
        static_cast<int64_t>(staging_.nbytes() + (under_way_.has_value() ? under_way_->sent.nbytes() : 0)));
  }

  // Sends off what was filled; the reduction before it is done first, so that no third buffer is needed.
  void Flush() {
    Complete();
    const Bucket& bucket = buckets_[filling_];
    Reduction reduction{.bucket = filling_, .sent = std::exchange(staging_, at::Tensor())};
    const bool in_fp32 = options_.reduce_in_fp32 || bucket.sign_update_rate > 0;
    if (!in_fp32) reduction.sent = reduction.sent.to(at::kBFloat16);
    const bool direct = in_fp32 && !reduced_[filling_];
    if (!direct) reduction.sum = at::empty({bucket.shard_elements}, reduction.sent.options());
    reduction.work = groups_[filling_]->ReduceScatter(direct ? bucket.main_grads : reduction.sum, reduction.sent,
                                                      comm::ReduceOp::kSum);
    under_way_ = std::move(reduction);
    filling_ = -1;
    if (!options_.overlap) Complete();
  }

  void Complete() {
    if (!under_way_.has_value()) return;
    const Reduction reduction = *std::exchange(under_way_, std::nullopt);
    reduction.work->Wait();
    at::Tensor& slice = buckets_[reduction.bucket].main_grads;
    const bool first = !reduced_[reduction.bucket];
    reduced_[reduction.bucket] = true;
    if (!reduction.sum.defined()) return;
    if (first) {
      slice.copy_(reduction.sum);
    } else {
      slice.add_(reduction.sum);
    }
  }

  const arch::BucketPlan& plan_;
  std::vector<Bucket>& buckets_;
  std::vector<comm::CommPtr> groups_;  // by bucket
  Options options_;
  std::vector<GroupState> states_;  // by group
  std::vector<bool> reduced_;       // by bucket: its slice holds a sum of this step
  int filling_ = -1;                // the bucket that is written
  uint64_t fillings_ = 0;
  int open_grads_ = 0;
  bool finished_ = false;
  at::Tensor staging_;
  std::optional<Reduction> under_way_;
  int64_t peak_bytes_ = 0;
};

}  // namespace

std::unique_ptr<GradientBuffers> MakeStagedGradients(const arch::BucketPlan& plan, std::vector<Bucket>& buckets,
                                                     std::vector<comm::CommPtr> groups,
                                                     const GradientBuffers::Options& options) {
  return std::make_unique<StagedGradients>(plan, buckets, std::move(groups), options);
}

}  // namespace slipway::engine::parallel
