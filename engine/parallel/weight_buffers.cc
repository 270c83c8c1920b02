#include "engine/parallel/weight_buffers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

#include "engine/parallel/flat_store.h"

namespace slipway::engine::parallel {

using arch::GatherWindow;

WeightBuffers::WeightBuffers(const arch::BucketPlan& plan, const std::vector<Bucket>& buckets,
                             std::vector<comm::CommPtr> groups, const Options& options)
    : plan_(plan),
      buckets_(buckets),
      groups_(std::move(groups)),
      options_(options),
      works_(buckets.size()),
      gathered_(buckets.size()),
      window_(options.overlap) {
  if (options_.sharded) return;
  for (int index = 0; index < static_cast<int>(plan_.groups.size()); ++index) {
    views_.push_back(ViewOf(index, buckets_[plan_.groups[index].bucket].weights));
  }
}

at::Tensor WeightBuffers::ViewOf(int group, const at::Tensor& flat) const {
  const arch::PlannedGroup& planned = plan_.groups[group];
  return flat.narrow(0, planned.offset, planned.Elements()).view(planned.shape);
}

at::Tensor WeightBuffers::Acquire(int group) {
  const int bucket = plan_.groups[group].bucket;
  if (!options_.sharded) {
    Await(bucket);
    return views_[group];
  }
  const at::NoGradGuard no_grad;
  const absl::StatusOr<std::vector<GatherWindow::Action>> actions = window_.Acquire(bucket);
  TORCH_CHECK(actions.ok(), plan_.groups[group].name, ": ", std::string(actions.status().message()));
  Do(*actions);
  Await(bucket);
  return ViewOf(group, gathered_[bucket]);
}

void WeightBuffers::Release(int group) {
  if (options_.sharded) window_.Release(plan_.groups[group].bucket);
}

void WeightBuffers::SlicesChanged() {
  const at::NoGradGuard no_grad;
  if (options_.sharded) return Do(window_.Clear());
  if (!options_.gather) return;
  Settle();
  // The last bucket is the first that a forward pass uses.
  for (int bucket = static_cast<int>(buckets_.size()) - 1; bucket >= 0; --bucket) {
    if (buckets_[bucket].trainable && groups_[bucket]->size() > 1) {
      works_[bucket] = groups_[bucket]->AllGather(buckets_[bucket].weights, buckets_[bucket].weight_slice());
    }
  }
  if (!options_.overlap) Settle();
}

void WeightBuffers::Settle() {
  for (int bucket = static_cast<int>(buckets_.size()) - 1; bucket >= 0; --bucket) Await(bucket);
}

void WeightBuffers::Await(int bucket) {
  if (works_[bucket] != nullptr) std::exchange(works_[bucket], nullptr)->Wait();
}

void WeightBuffers::Do(const std::vector<GatherWindow::Action>& actions) {
  for (const GatherWindow::Action& action : actions) {
    if (action.kind == GatherWindow::Action::Kind::kGather) {
      Gather(action.bucket);
    } else {
      LetGo(action.bucket);
    }
  }
}

void WeightBuffers::Gather(int bucket) {
  const at::Tensor& slice = buckets_[bucket].weights;
  gathered_[bucket] = at::empty({plan_.buckets[bucket].elements}, slice.options());
  gathered_bytes_ += static_cast<int64_t>(gathered_[bucket].nbytes());
  peak_bytes_ = std::max(peak_bytes_, gathered_bytes_);
  works_[bucket] = groups_[bucket]->AllGather(gathered_[bucket], slice);
}

// A gather that nobody waited for is waited for here: its buffer must not go before it is done.
void WeightBuffers::LetGo(int bucket) {
  Await(bucket);
  gathered_bytes_ -= static_cast<int64_t>(gathered_[bucket].nbytes());
  gathered_[bucket] = at::Tensor();
}

}  // namespace slipway::engine::parallel
