#include "engine/arch/data_parallel_traffic.h"

#include <algorithm>

namespace slipway::engine::arch {
namespace {

constexpr int64_t kFp32 = 4;
constexpr int64_t kNormBytes = 2 * 8;  // Σ squares and zeros, fp64

}  // namespace

DataParallelTraffic::DataParallelTraffic(const std::vector<ParamSpec>& table, const BucketPlan& plan,
                                         const DataParallelOptions& options)
    : table_(table), plan_(plan), options_(options), window_(options.overlap_param_gather) {
  const bool alone = std::all_of(plan_.buckets.begin(), plan_.buckets.end(),
                                 [](const PlannedBucket& bucket) { return bucket.shards == 1; });
  if (alone) options_.sharding = Sharding::kNoShard;
  for (int bucket = 0; bucket < static_cast<int>(plan_.buckets.size()); ++bucket) {
    const int64_t all = Elements(bucket), own = plan_.ShardElements(bucket);
    resident_.weights += (ShardsParameters(options_.sharding) ? own : all) * ComputeBytes(bucket);
    resident_.gradients += (ShardsGradients(options_.sharding) ? own : all) * kFp32;
    const int64_t states = ComputeBytes(bucket) == kFp32 ? 2 : 3;
    resident_.optimizer += (ShardsOptimizer(options_.sharding) ? own : all) * states * kFp32;
  }
}

std::vector<const ParamSpec*> DataParallelTraffic::ParametersOf(const Piece& piece) const {
  std::vector<const ParamSpec*> parameters;
  for (const ParamSpec& spec : table_) {
    if (spec.piece == piece) parameters.push_back(&spec);
  }
  return parameters;
}

int DataParallelTraffic::BucketOf(const ParamSpec& spec) const {
  return plan_.groups[plan_.group_of_name.at(spec.fuse_group.name)].bucket;
}

void DataParallelTraffic::Forward(const std::vector<Piece>& pieces) {
  for (const Piece& piece : pieces) {
    for (const ParamSpec* spec : ParametersOf(piece)) UseWeight(BucketOf(*spec));
  }
}

void DataParallelTraffic::Backward(const std::vector<Piece>& pieces) {
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    const std::vector<const ParamSpec*> parameters = ParametersOf(*piece);
    for (auto spec = parameters.rbegin(); spec != parameters.rend(); ++spec) {
      // An embedding's gradient needs no weight.
      if (piece->kind != Piece::Kind::kEmbedding) UseWeight(BucketOf(**spec));
      WriteGradient(BucketOf(**spec));
    }
  }
}

void DataParallelTraffic::EndStep() {
  if (ShardsGradients(options_.sharding)) {
    Flush();
    under_way_ = 0;
  } else {
    ReduceResident();
  }
  SumReplicas();
  if (options_.world > 1) Count("world", "all_reduce", kNormBytes);
  if (options_.world > 1 && options_.params_norm) Count("world", "all_reduce", kNormBytes / 2);
  if (ShardsParameters(options_.sharding)) {
    window_.Clear();
    gathered_ = 0;
  } else if (ShardsOptimizer(options_.sharding)) {
    for (int bucket = 0; bucket < static_cast<int>(plan_.buckets.size()); ++bucket) {
      if (Shards(bucket) > 1) Count(GroupOf(bucket), "all_gather", plan_.ShardElements(bucket) * ComputeBytes(bucket));
    }
  }
}

void DataParallelTraffic::UseWeight(int bucket) {
  if (!ShardsParameters(options_.sharding)) return;
  const auto actions = window_.Acquire(bucket);
  window_.Release(bucket);
  for (const GatherWindow::Action& action : *actions) {
    const int64_t bytes = Elements(action.bucket) * ComputeBytes(action.bucket);
    if (action.kind == GatherWindow::Action::Kind::kLetGo) {
      gathered_ -= bytes;
      continue;
    }
    gathered_ += bytes;
    resident_.peak_gathered = std::max(resident_.peak_gathered, gathered_);
    Count(GroupOf(action.bucket), "all_gather", plan_.ShardElements(action.bucket) * ComputeBytes(action.bucket));
  }
}

void DataParallelTraffic::WriteGradient(int bucket) {
  if (!ShardsGradients(options_.sharding) || bucket == filling_) return;
  Flush();
  filling_ = bucket;
  resident_.peak_staging = std::max(resident_.peak_staging, Elements(bucket) * kFp32 + under_way_);
}

void DataParallelTraffic::Flush() {
  if (filling_ < 0) return;
  Count(GroupOf(filling_), "reduce_scatter", WireBytes(filling_));
  under_way_ = options_.overlap_grad_reduce ? WireBytes(filling_) : 0;
  filling_ = -1;
}

void DataParallelTraffic::ReduceResident() {
  const char* operation = ShardsOptimizer(options_.sharding) ? "reduce_scatter" : "all_reduce";
  int64_t before = 0;
  for (int bucket = 0; bucket < static_cast<int>(plan_.buckets.size()); ++bucket) {
    if (Shards(bucket) == 1) continue;
    Count(GroupOf(bucket), operation, WireBytes(bucket));
    if (ReducesInFp32(bucket)) continue;
    resident_.peak_staging = std::max(resident_.peak_staging, before + WireBytes(bucket));
    before = WireBytes(bucket);
  }
}

void DataParallelTraffic::SumReplicas() {
  std::map<int, int64_t> elements;  // by the number of ranks in a sum
  for (int bucket = 0; bucket < static_cast<int>(plan_.buckets.size()); ++bucket) {
    const int64_t own = ShardsOptimizer(options_.sharding) ? plan_.ShardElements(bucket) : Elements(bucket);
    const int64_t begin = ShardsOptimizer(options_.sharding) ? options_.shard * own : 0;
    for (const TpSumRange& range : TpSumRanges(plan_, bucket, {begin, begin + own})) {
      elements[range.ranks] += range.range.size();
    }
    if (plan_.buckets[bucket].tied_across_stages && options_.pp > 1) Count("embedding", "all_reduce", own * kFp32);
  }
  for (const auto& [ranks, count] : elements) {
    Count("tp", ranks == options_.tp ? "all_reduce" : "all_gather", count * kFp32);
  }
}

void DataParallelTraffic::Count(const std::string& group, const std::string& operation, int64_t bytes) {
  Volume& volume = volumes_[{group, operation}];
  ++volume.operations;
  volume.bytes += bytes;
}

}  // namespace slipway::engine::arch
