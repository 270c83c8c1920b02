#include "engine/parallel/flat_store.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/status_macros.h"
#include "engine/parallel/flat_param.h"
#include "engine/parallel/initial_weights.h"

namespace slipway::engine::parallel {
namespace {

// A wrapping sum of (bits + 1) × an odd factor that differs from element to element; the order of the sum does not
// matter.
constexpr int64_t kChecksumChunk = int64_t{1} << 22;
constexpr int64_t kChecksumFactor = static_cast<int64_t>(0x9E3779B97F4A7C15ull);

at::Tensor ChecksumOfWeights(const at::Tensor& weights) {
  const at::ScalarType bits = weights.scalar_type() == at::kFloat ? at::kInt : at::kShort;
  at::Tensor sum = at::zeros({}, weights.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < weights.numel(); begin += kChecksumChunk) {
    const int64_t count = std::min(kChecksumChunk, weights.numel() - begin);
    const at::Tensor values = weights.narrow(0, begin, count).view(bits).to(at::kLong).add_(1);
    const at::Tensor factors = at::arange(begin, begin + count, values.options()).mul_(kChecksumFactor).bitwise_or_(1);
    sum.add_(values.mul_(factors).sum());
  }
  return sum;
}

class BucketStore final : public FlatStore, public GradListener {
 public:
  BucketStore(std::vector<arch::ParamSpec> table, BucketPlan plan, const comm::ParallelGroups& groups,
              const FlatStoreOptions& options)
      : table_(std::move(table)), plan_(std::move(plan)), groups_(groups), options_(options) {
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b) buckets_.push_back(MakeBucket(b));
    for (const PlannedGroup& group : plan_.groups) params_.push_back(MakeParam(group));
    groups_in_bucket_.resize(buckets_.size(), 0);
    for (const PlannedGroup& group : plan_.groups) groups_in_bucket_[group.bucket] += buckets_[group.bucket].trainable;
    open_groups_ = groups_in_bucket_;
    reductions_.resize(buckets_.size());
    for (const PlannedGroup& group : plan_.groups) {
      for (const PlannedShare& share : group.shares) shares_.push_back(MakeShare(group, share));
    }
    for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
      if (!buckets_[b].trainable) continue;
      const ElementRange slice{buckets_[b].shard_begin, buckets_[b].shard_begin + buckets_[b].shard_elements};
      for (const TpSumRange& range : TpSumRanges(plan_, b, slice)) tp_sums_[range.ranks].push_back(range);
    }
  }

  ~BucketStore() override {
    for (const auto& param : params_) param->Detach();
  }

  nn::ParamPtr Handle(const std::string& fuse_group) override {
    const auto found = plan_.group_of_name.find(fuse_group);
    return found == plan_.group_of_name.end() ? nn::ParamPtr() : nn::ParamPtr(params_[found->second]);
  }
  const std::vector<LogicalShare>& shares() const override { return shares_; }
  std::vector<Bucket>& buckets() override { return buckets_; }
  const FlatStoreOptions& options() const override { return options_; }

  std::vector<OwnedRange> owned_ranges() const override {
    std::vector<OwnedRange> owned;
    for (const LogicalShare& share : shares_) {
      const Bucket& bucket = buckets_[share.bucket];
      const int64_t begin = std::max(share.offset, bucket.shard_begin);
      const int64_t end = std::min(share.offset + share.elements, bucket.shard_begin + bucket.shard_elements);
      if (begin >= end) continue;
      owned.push_back({&share, begin - share.offset, end - share.offset, begin - bucket.shard_begin});
    }
    return owned;
  }

  void InitializeWeights(uint64_t seed) override {
    at::NoGradGuard no_grad;
    for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
      Bucket& bucket = buckets_[b];
      const at::Tensor host = at::zeros({plan_.buckets[b].elements}, at::kFloat);
      for (const LogicalShare& share : shares_) {
        if (share.bucket != b) continue;
        DrawInitialWeights(Origin(*share.spec), seed, share.box.start, share.box.extent,
                           host.data_ptr<float>() + share.offset);
      }
      bucket.weights.copy_(host);
      if (bucket.trainable) bucket.master.copy_(host.narrow(0, bucket.shard_begin, bucket.shard_elements));
    }
  }

  void BeginStep() override {
    for (const auto& param : params_) param->BeginStep();
    open_groups_ = groups_in_bucket_;
    next_reduction_ = 0;
    last_micro_batch_ = false;
  }

  void BeginLastMicroBatch() override { last_micro_batch_ = true; }

  void FinishGradients() override {
    at::NoGradGuard no_grad;
    while (next_reduction_ < static_cast<int>(buckets_.size())) BeginReduction();
    for (comm::WorkPtr& reduction : reductions_) {
      if (reduction != nullptr) std::exchange(reduction, nullptr)->Wait();
    }
    SumOverTensorRanks();
    for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
      if (!plan_.buckets[b].tied_across_stages || !buckets_[b].trainable) continue;
      groups_.embedding->AllReduce(buckets_[b].grad_slice(), comm::ReduceOp::kSum)->Wait();
    }
  }

  void PublishWeights() override {
    at::NoGradGuard no_grad;
    if (options_.compute_dtype != at::kFloat) {
      for (Bucket& bucket : buckets_) {
        if (bucket.trainable) bucket.weight_slice().copy_(bucket.master);
      }
    }
    GatherWeights();
  }

  void GatherWeights() override {
    if (!options_.shard_optimizer || groups_.dp_cp->size() == 1) return;
    std::vector<comm::WorkPtr> works;
    for (Bucket& bucket : buckets_) {
      if (bucket.trainable) works.push_back(groups_.dp_cp->AllGather(bucket.weights, bucket.weight_slice()));
    }
    for (comm::WorkPtr& work : works) work->Wait();
  }

  void AdoptWeights() override {
    at::NoGradGuard no_grad;
    for (Bucket& bucket : buckets_) {
      if (bucket.trainable) bucket.master.copy_(bucket.weight_slice());
    }
  }

  uint64_t WeightsChecksum() override {
    at::NoGradGuard no_grad;
    uint64_t checksum = 0;
    for (const Bucket& bucket : buckets_) {
      const auto sum = static_cast<uint64_t>(ChecksumOfWeights(bucket.weights).item<int64_t>());
      checksum = (checksum ^ sum) * 0x100000001B3ull + 1;
    }
    return checksum == 0 ? 1 : checksum;
  }

 private:
  Bucket MakeBucket(int index) const {
    const PlannedBucket& planned = plan_.buckets[index];
    const int shard = groups_.dp_cp->rank();
    const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(options_.device);
    Bucket bucket;
    bucket.weights = at::zeros({planned.elements}, fp32.dtype(options_.compute_dtype));
    bucket.trainable = planned.trainable && !options_.weights_only;
    const bool sharded = options_.shard_optimizer && bucket.trainable;
    bucket.shard_elements = sharded ? plan_.ShardElements(index) : planned.elements;
    bucket.shard_begin = sharded ? shard * bucket.shard_elements : 0;
    bucket.weight_decay = planned.weight_decay;
    bucket.tp_replicated = planned.tp_replicated;
    bucket.counted = CountedRanges(plan_, index, shard);
    if (!bucket.trainable) return bucket;
    bucket.main_grads = at::zeros({planned.elements}, fp32);
    bucket.master =
        options_.compute_dtype == at::kFloat ? bucket.weight_slice() : at::zeros({bucket.shard_elements}, fp32);
    bucket.exp_avg = at::zeros({bucket.shard_elements}, fp32);
    bucket.exp_avg_sq = at::zeros({bucket.shard_elements}, fp32);
    return bucket;
  }

  c10::intrusive_ptr<FlatParam> MakeParam(const PlannedGroup& group) {
    const Bucket& bucket = buckets_[group.bucket];
    const auto view = [&](const at::Tensor& flat) {
      return flat.narrow(0, group.offset, group.Elements()).view(group.shape);
    };
    return c10::make_intrusive<FlatParam>(group.name, group.bucket, view(bucket.weights),
                                          bucket.trainable ? view(bucket.main_grads) : at::Tensor(), this);
  }

  LogicalShare MakeShare(const PlannedGroup& group, const PlannedShare& share) const {
    return {.spec = &table_[share.spec],
            .box = {share.start, share.extent},
            .bucket = group.bucket,
            .offset = share.offset,
            .elements = share.elements,
            .primary = share.primary};
  }

  const arch::ParamSpec& Origin(const arch::ParamSpec& spec) const {
    if (!spec.tied_to.has_value()) return spec;
    return *std::find_if(table_.begin(), table_.end(),
                         [&](const arch::ParamSpec& other) { return other.name == *spec.tied_to; });
  }

  // A bucket whose gradients are complete is reduced while the backward goes on. Buckets are reduced in the order of
  // their numbers, whatever the order in which they become ready: the order is the same on all ranks.
  void UsesEnded(const FlatParam& param) override {
    if (!last_micro_batch_) return;
    --open_groups_[param.bucket()];
    if (groups_.dp_cp->size() == 1) return;
    at::NoGradGuard no_grad;
    while (next_reduction_ < static_cast<int>(buckets_.size()) && open_groups_[next_reduction_] <= 0) BeginReduction();
  }

  void BeginReduction() {
    const int index = next_reduction_++;
    const Bucket& bucket = buckets_[index];
    if (!bucket.trainable) return;
    for (const auto& param : params_) {
      if (param->bucket() == index) param->Seal();
    }
    if (groups_.dp_cp->size() == 1) return;
    reductions_[index] = options_.shard_optimizer ? groups_.dp_cp->ReduceScatter(bucket.grad_slice(), bucket.main_grads,
                                                                                 comm::ReduceOp::kSum)
                                                  : groups_.dp_cp->AllReduce(bucket.main_grads, comm::ReduceOp::kSum);
  }

  // Copies of a parameter on several TP ranks that see only their own heads or tokens. All ranges go in one message.
  void SumOverTensorRanks() {
    for (const auto& [ranks, ranges] : tp_sums_) {
      std::vector<at::Tensor> parts;
      for (const TpSumRange& range : ranges) {
        parts.push_back(buckets_[range.bucket].main_grads.narrow(0, range.range.begin, range.range.size()));
      }
      const at::Tensor sum = SumOfNeighbours(at::cat(parts), ranks);
      int64_t offset = 0;
      for (at::Tensor& part : parts) {
        part.copy_(sum.narrow(0, offset, part.numel()));
        offset += part.numel();
      }
    }
  }

  at::Tensor SumOfNeighbours(const at::Tensor& mine, int ranks) const {
    const comm::CommPtr& tp = groups_.tp;
    if (ranks == tp->size()) {
      tp->AllReduce(mine, comm::ReduceOp::kSum)->Wait();
      return mine;
    }
    const at::Tensor all = at::empty({tp->size(), mine.numel()}, mine.options());
    tp->AllGather(all, mine)->Wait();
    const int64_t first = tp->rank() - tp->rank() % ranks;
    at::Tensor sum = all[first].clone();
    for (int64_t r = 1; r < ranks; ++r) sum.add_(all[first + r]);
    return sum;
  }

  std::vector<arch::ParamSpec> table_;
  BucketPlan plan_;
  comm::ParallelGroups groups_;
  FlatStoreOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<c10::intrusive_ptr<FlatParam>> params_;  // by the plan's groups
  std::vector<LogicalShare> shares_;
  std::map<int, std::vector<TpSumRange>> tp_sums_;  // by the number of ranks in a sum

  std::vector<int> groups_in_bucket_;  // those that are trained
  std::vector<int> open_groups_;       // by bucket: groups whose last use has not ended
  std::vector<comm::WorkPtr> reductions_;
  int next_reduction_ = 0;
  bool last_micro_batch_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FlatStore>> FlatStore::Create(std::vector<arch::ParamSpec> table,
                                                             const std::vector<arch::Piece>& pieces,
                                                             const topology::Mesh& mesh, int rank,
                                                             const comm::ParallelGroups& groups,
                                                             const FlatStoreOptions& options) {
  const topology::Coordinates at = mesh.CoordinatesOf(rank);
  SLIPWAY_ASSIGN_OR_RETURN(BucketPlan plan,
                           PlanBuckets(table, pieces,
                                       {.tp = {.rank = at.tp,
                                               .size = mesh.sizes().tp,
                                               .make_vocab_size_divisible_by = options.make_vocab_size_divisible_by},
                                        .shards = groups.dp_cp->size(),
                                        .bucket_elements = options.bucket_elements,
                                        .sequence_parallel = options.sequence_parallel}));
  return std::make_unique<BucketStore>(std::move(table), std::move(plan), groups, options);
}

}  // namespace slipway::engine::parallel
