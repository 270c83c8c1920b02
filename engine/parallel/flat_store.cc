#include "engine/parallel/flat_store.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/status_macros.h"
#include "engine/parallel/flat_param.h"
#include "engine/parallel/gradient_buffers.h"
#include "engine/parallel/initial_weights.h"
#include "engine/parallel/weight_buffers.h"

namespace slipway::engine::parallel {
namespace {

// A wrapping sum of (bits + 1) × an odd factor that differs from element to element; the order of the sum does not
// matter, so slices of a bucket add up to the bucket.
constexpr int64_t kChecksumChunk = int64_t{1} << 22;
constexpr int64_t kChecksumFactor = static_cast<int64_t>(0x9E3779B97F4A7C15ull);

at::Tensor ChecksumOfWeights(const at::Tensor& weights, int64_t first) {
  const at::ScalarType bits = weights.scalar_type() == at::kFloat ? at::kInt : at::kShort;
  at::Tensor sum = at::zeros({}, weights.options().dtype(at::kLong));
  for (int64_t begin = 0; begin < weights.numel(); begin += kChecksumChunk) {
    const int64_t count = std::min(kChecksumChunk, weights.numel() - begin);
    const at::Tensor values = weights.narrow(0, begin, count).view(bits).to(at::kLong).add_(1);
    const at::Tensor factors =
        at::arange(first + begin, first + begin + count, values.options()).mul_(kChecksumFactor).bitwise_or_(1);
    sum.add_(values.mul_(factors).sum());
  }
  return sum;
}

class BucketStore final : public FlatStore, public ParamHost {
 public:
  BucketStore(std::vector<arch::ParamSpec> table, arch::BucketPlan plan, const comm::ParallelGroups& groups,
              const FlatStoreOptions& options)
      : table_(std::move(table)),
        plan_(std::move(plan)),
        groups_(groups),
        options_(options),
        grad_groups_(GradGroups()),
        sharding_(IsAlone(grad_groups_) ? arch::Sharding::kNoShard : options.sharding) {
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b) buckets_.push_back(MakeBucket(b));
    for (const arch::PlannedGroup& group : plan_.groups) {
      const int index = static_cast<int>(params_.size());
      params_.push_back(c10::make_intrusive<FlatParam>(group.name, index, buckets_[group.bucket].trainable, this));
      for (const arch::PlannedShare& share : group.shares) shares_.push_back(MakeShare(group, share));
    }
    weights_ = std::make_unique<WeightBuffers>(plan_, buckets_, grad_groups_,
                                               WeightBuffers::Options{.sharded = ShardsParameters(sharding_),
                                                                      .gather = ShardsOptimizer(sharding_),
                                                                      .overlap = options_.overlap_param_gather});
    const auto make_gradients = ShardsGradients(sharding_) ? MakeStagedGradients : MakeResidentGradients;
    gradients_ = make_gradients(plan_, buckets_, grad_groups_,
                                {.sharded = ShardsOptimizer(sharding_),
                                 .overlap = options_.overlap_grad_reduce,
                                 .reduce_in_fp32 = options_.grad_reduce_in_fp32});
    for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
      if (!buckets_[b].trainable) continue;
      const arch::ElementRange slice{buckets_[b].shard_begin, buckets_[b].shard_begin + buckets_[b].shard_elements};
      for (const arch::TpSumRange& range : TpSumRanges(plan_, b, slice)) tp_sums_[range.ranks].push_back(range);
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
  std::vector<Bucket>& buckets() override {
    weights_->Settle();
    return buckets_;
  }
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

  StoreBytes Bytes() const override {
    StoreBytes bytes;
    const auto size = [](const at::Tensor& tensor) {
      return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : int64_t{0};
    };
    for (const Bucket& bucket : buckets_) {
      const bool own_master = bucket.master.defined() && bucket.weights.scalar_type() != at::kFloat;
      bytes.weights += size(bucket.weights);
      bytes.gradients += size(bucket.main_grads);
      bytes.optimizer += (own_master ? size(bucket.master) : 0) + size(bucket.exp_avg) + size(bucket.exp_avg_sq);
    }
    bytes.peak_gathered = weights_->peak_gathered_bytes();
    bytes.peak_staging = gradients_->peak_staging_bytes();
    return bytes;
  }

  // Draws what this rank holds and no more.
  void InitializeWeights(uint64_t seed) override {
    at::NoGradGuard no_grad;
    weights_->Settle();
    for (Bucket& bucket : buckets_) bucket.weights.zero_();
    for (const LogicalShare& share : shares_) {
      const Bucket& bucket = buckets_[share.bucket];
      const int64_t first = ShardsParameters(sharding_) ? bucket.shard_begin : 0;
      const int64_t begin = std::max(share.offset, first);
      const int64_t end = std::min(share.offset + share.elements, first + bucket.weights.numel());
      if (begin >= end) continue;
      const at::Tensor host = at::empty({end - begin}, at::kFloat);
      DrawInitialWeights(Origin(*share.spec), seed, share.box.start, share.box.extent, begin - share.offset,
                         end - share.offset, host.data_ptr<float>());
      bucket.weights.narrow(0, begin - first, end - begin).copy_(host);
      if (!bucket.trainable || bucket.weights.scalar_type() == at::kFloat) continue;
      // The master weights are what was drawn, not what was rounded.
      const int64_t own_begin = std::max(begin, bucket.shard_begin);
      const int64_t own_end = std::min(end, bucket.shard_begin + bucket.shard_elements);
      if (own_begin >= own_end) continue;
      at::Tensor master = bucket.master.narrow(0, own_begin - bucket.shard_begin, own_end - own_begin);
      master.copy_(host.narrow(0, own_begin - begin, own_end - own_begin));
    }
    if (ShardsParameters(sharding_)) weights_->SlicesChanged();
  }

  void BeginStep() override { gradients_->BeginStep(); }

  void BeginLastBackward(const std::vector<arch::Piece>& pieces) override {
    std::vector<int> groups;
    for (int index = 0; index < static_cast<int>(plan_.groups.size()); ++index) {
      const arch::Piece& piece = table_[plan_.groups[index].shares[0].spec].piece;
      if (std::find(pieces.begin(), pieces.end(), piece) != pieces.end()) groups.push_back(index);
    }
    gradients_->BeginLastBackward(groups);
  }

  void FinishGradients() override {
    at::NoGradGuard no_grad;
    gradients_->Finish();
    SumOverTensorRanks();
    for (int b = 0; b < static_cast<int>(buckets_.size()); ++b) {
      if (!plan_.buckets[b].tied_across_stages || !buckets_[b].trainable) continue;
      groups_.embedding->AllReduce(buckets_[b].grad_slice(), comm::ReduceOp::kSum)->Wait();
    }
  }

  void PublishWeights() override {
    at::NoGradGuard no_grad;
    for (Bucket& bucket : buckets()) {
      if (bucket.trainable && bucket.weights.scalar_type() != at::kFloat) bucket.weight_slice().copy_(bucket.master);
    }
    GatherWeights();
  }

  void GatherWeights() override { weights_->SlicesChanged(); }

  void AdoptWeights() override {
    at::NoGradGuard no_grad;
    for (Bucket& bucket : buckets()) {
      if (bucket.trainable) bucket.master.copy_(bucket.weight_slice());
    }
  }

  uint64_t WeightsChecksum() override {
    at::NoGradGuard no_grad;
    if (buckets_.empty()) return 1;  // a stage without layers
    std::vector<at::Tensor> sums;
    for (const Bucket& bucket : buckets()) {
      sums.push_back(ChecksumOfWeights(bucket.weights, ShardsParameters(sharding_) ? bucket.shard_begin : 0));
    }
    at::Tensor all = at::stack(sums);
    if (ShardsParameters(sharding_)) {
      for (const bool expert : {false, true}) SumOfSlices(expert, all);
    }
    all = all.cpu();
    uint64_t checksum = 0;
    for (int64_t b = 0; b < all.numel(); ++b) {
      checksum = (checksum ^ static_cast<uint64_t>(all[b].item<int64_t>())) * 0x100000001B3ull + 1;
    }
    return checksum == 0 ? 1 : checksum;
  }

  at::Tensor AcquireWeight(int group) override { return weights_->Acquire(group); }
  void ReleaseWeight(int group) override { weights_->Release(group); }
  void RegisterUse(int group) override { gradients_->RegisterUse(group); }
  nn::GradTarget BeginGrad(int group) override { return gradients_->BeginGrad(group); }
  void EndGrad(int group) override { gradients_->EndGrad(group); }

 private:
  // By bucket: the ranks that hold the same parameters.
  std::vector<comm::CommPtr> GradGroups() const {
    std::vector<comm::CommPtr> groups;
    for (const arch::PlannedBucket& bucket : plan_.buckets) {
      groups.push_back(bucket.expert ? groups_.edp : groups_.dp_cp);
    }
    return groups;
  }

  // Of the checksums of buckets that are experts', or of those that are not.
  void SumOfSlices(bool expert, at::Tensor& sums) const {
    std::vector<int64_t> chosen;
    for (size_t b = 0; b < plan_.buckets.size(); ++b) {
      if (plan_.buckets[b].expert == expert) chosen.push_back(static_cast<int64_t>(b));
    }
    if (chosen.empty()) return;
    const at::Tensor index = at::tensor(at::ArrayRef<int64_t>(chosen), at::kLong).to(sums.device());
    const at::Tensor mine = sums.index_select(0, index);
    const comm::CommPtr& group = grad_groups_[chosen.front()];
    const at::Tensor parts = at::empty({group->size(), mine.numel()}, mine.options());
    group->AllGather(parts, mine)->Wait();
    sums.index_copy_(0, index, parts.sum(0));
  }

  Bucket MakeBucket(int index) const {
    const arch::PlannedBucket& planned = plan_.buckets[index];
    const int shard = grad_groups_[index]->rank();
    const at::ScalarType dtype = planned.sign_update_rate > 0 ? at::kFloat : options_.compute_dtype;
    const int64_t own = plan_.ShardElements(index);
    const at::TensorOptions fp32 = at::TensorOptions().dtype(at::kFloat).device(options_.device);
    Bucket bucket;
    bucket.trainable = planned.trainable && !options_.weights_only;
    bucket.sign_update_rate = planned.sign_update_rate;
    bucket.group_rank = shard;
    // What is not trained has no slices, unless it is cut itself.
    const bool sharded = bucket.trainable ? ShardsOptimizer(sharding_) : ShardsParameters(sharding_);
    bucket.shard_elements = sharded ? own : planned.elements;
    bucket.shard_begin = sharded ? shard * own : 0;
    bucket.decay_elements = std::clamp<int64_t>(planned.decay_elements - bucket.shard_begin, 0, bucket.shard_elements);
    int64_t in_ranges = 0;
    for (const arch::ElementRange& range : CountedRanges(plan_, index, shard)) {
      bucket.counted.push_back({range.begin - bucket.shard_begin, range.end - bucket.shard_begin});
      in_ranges += range.size();
    }
    bucket.counted_gaps = in_ranges - CountedElements(plan_, index, shard);
    bucket.weights = at::zeros({ShardsParameters(sharding_) ? own : planned.elements}, fp32.dtype(dtype));
    if (!bucket.trainable) return bucket;
    bucket.main_grads = at::zeros({ShardsGradients(sharding_) ? own : planned.elements}, fp32);
    bucket.master = dtype == at::kFloat ? bucket.weight_slice() : at::zeros({bucket.shard_elements}, fp32);
    bucket.exp_avg = at::zeros({bucket.shard_elements}, fp32);
    bucket.exp_avg_sq = at::zeros({bucket.shard_elements}, fp32);
    return bucket;
  }

  LogicalShare MakeShare(const arch::PlannedGroup& group, const arch::PlannedShare& share) const {
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

  // Copies of a parameter on several TP ranks that see only their own heads or tokens. All ranges go in one message.
  void SumOverTensorRanks() {
    for (const auto& [ranks, ranges] : tp_sums_) {
      std::vector<at::Tensor> parts;
      for (const arch::TpSumRange& range : ranges) {
        const Bucket& bucket = buckets_[range.bucket];
        parts.push_back(bucket.grad_slice().narrow(0, range.range.begin - bucket.shard_begin, range.range.size()));
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
  arch::BucketPlan plan_;
  comm::ParallelGroups groups_;
  FlatStoreOptions options_;
  std::vector<comm::CommPtr> grad_groups_;  // by bucket
  arch::Sharding sharding_;
  std::vector<Bucket> buckets_;
  std::vector<c10::intrusive_ptr<FlatParam>> params_;  // by the plan's groups
  std::vector<LogicalShare> shares_;
  std::map<int, std::vector<arch::TpSumRange>> tp_sums_;  // by the number of ranks in a sum
  std::unique_ptr<WeightBuffers> weights_;
  std::unique_ptr<GradientBuffers> gradients_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FlatStore>> FlatStore::Create(std::vector<arch::ParamSpec> table,
                                                             const std::vector<arch::Piece>& pieces,
                                                             const topology::Mesh& mesh, int rank,
                                                             const comm::ParallelGroups& groups,
                                                             const FlatStoreOptions& options) {
  const topology::Coordinates at = mesh.CoordinatesOf(rank);
  SLIPWAY_ASSIGN_OR_RETURN(
      arch::BucketPlan plan,
      arch::PlanBuckets(table, pieces,
                        {.tp = arch::PlacementOf(mesh.sizes(), at, options.make_vocab_size_divisible_by),
                         .shards = groups.dp_cp->size(),
                         .expert_shards = groups.edp->size(),
                         .bucket_elements = options.bucket_elements,
                         .sequence_parallel = options.sequence_parallel}));
  return std::make_unique<BucketStore>(std::move(table), std::move(plan), groups, options);
}

}  // namespace slipway::engine::parallel
