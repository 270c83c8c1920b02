#include "engine/parallel/bucket_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace slipway::engine::parallel {
namespace {

using arch::ParamSpec;

int64_t Product(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{1}, std::multiplies<>());
}

int64_t RoundUp(int64_t value, int64_t grain) { return (value + grain - 1) / grain * grain; }

bool Holds(const std::vector<arch::Piece>& pieces, const ParamSpec& spec) {
  return std::find(pieces.begin(), pieces.end(), spec.piece) != pieces.end();
}

// Builds the groups, without places in buckets.
class GroupCollector {
 public:
  GroupCollector(const std::vector<ParamSpec>& table, const std::vector<arch::Piece>& pieces,
                 const BucketPlanOptions& options)
      : table_(table), pieces_(pieces), options_(options) {}

  absl::StatusOr<BucketPlan> Collect() {
    BucketPlan plan;
    plan.shards = options_.shards;
    for (int index = 0; index < static_cast<int>(table_.size()); ++index) {
      const ParamSpec& spec = table_[index];
      if (!Holds(pieces_, spec)) continue;
      SLIPWAY_ASSIGN_OR_RETURN(const std::optional<int> shared, SharedStorage(plan, spec));
      if (shared.has_value()) {
        plan.group_of_name[spec.fuse_group.name] = *shared;
      } else {
        SLIPWAY_RETURN_IF_ERROR(AddMember(plan, index));
      }
    }
    for (const PlannedGroup& group : plan.groups) SLIPWAY_RETURN_IF_ERROR(CheckComplete(group));
    return plan;
  }

 private:
  absl::Status Fault(const ParamSpec& spec, const std::string& text) const {
    return absl::InvalidArgumentError(absl::StrCat(spec.name, ": ", text));
  }

  // The group whose storage a tied use has, when this rank holds the target.
  absl::StatusOr<std::optional<int>> SharedStorage(const BucketPlan& plan, const ParamSpec& spec) const {
    if (!spec.tied_to.has_value()) return std::nullopt;
    const auto target =
        std::find_if(table_.begin(), table_.end(), [&](const ParamSpec& other) { return other.name == *spec.tied_to; });
    if (target == table_.end()) return Fault(spec, absl::StrCat("is tied to ", *spec.tied_to, ", which is not there"));
    if (target->shape != spec.shape || target->fuse_group.count != 1 || spec.fuse_group.count != 1) {
      return Fault(spec, absl::StrCat("shape [", absl::StrJoin(spec.shape, ", "), "] cannot be tied to ", target->name,
                                      " of shape [", absl::StrJoin(target->shape, ", "), "]"));
    }
    if (!Holds(pieces_, *target)) return std::nullopt;
    const auto group = plan.group_of_name.find(target->fuse_group.name);
    if (group == plan.group_of_name.end()) return Fault(spec, "stands before the tensor that it is tied to");
    return group->second;
  }

  absl::Status AddMember(BucketPlan& plan, int index) const {
    const ParamSpec& spec = table_[index];
    const auto [place, is_new] = plan.group_of_name.emplace(spec.fuse_group.name, static_cast<int>(plan.groups.size()));
    if (is_new) plan.groups.push_back({.name = spec.fuse_group.name});
    PlannedGroup& group = plan.groups[place->second];
    if (static_cast<int>(group.shares.size()) != spec.fuse_group.index) {
      return Fault(spec, absl::StrCat("is member ", spec.fuse_group.index, " of ", group.name, ", after ",
                                      group.shares.size(), " members"));
    }
    PlannedShare share{.spec = index, .offset = is_new ? 0 : Product(group.shape)};
    SLIPWAY_ASSIGN_OR_RETURN(std::vector<int64_t> local, arch::LocalShape(spec, options_.tp));
    for (int dim = 0; dim < static_cast<int>(spec.shape.size()); ++dim) {
      SLIPWAY_ASSIGN_OR_RETURN(const arch::ShardRange range, arch::LocalRange(spec, dim, options_.tp));
      if (range.padding > 0 && (dim > 0 || spec.fuse_group.count > 1)) {
        return Fault(spec, "only the rows of a group with one member can be padded");
      }
      share.start.push_back(range.begin);
      share.extent.push_back(range.count);
    }
    share.elements = Product(share.extent);
    const int replicas = arch::TpReplicas(spec, options_.tp.size);
    share.primary = !spec.tied_to.has_value() && options_.tp.rank % replicas == 0;
    share.tp_grad_sum = arch::TpGradSumRanks(spec, options_.tp.size, options_.sequence_parallel);
    if (is_new) {
      group.shape = std::move(local);
    } else {
      SLIPWAY_RETURN_IF_ERROR(Append(group, spec, local));
    }
    group.shares.push_back(std::move(share));
    return absl::OkStatus();
  }

  // Members lie row after row.
  absl::Status Append(PlannedGroup& group, const ParamSpec& spec, const std::vector<int64_t>& local) const {
    const ParamSpec& first = table_[group.shares[0].spec];
    const bool same_rows =
        local.size() == group.shape.size() && std::equal(local.begin() + 1, local.end(), group.shape.begin() + 1);
    if (!same_rows || first.weight_decay != spec.weight_decay || first.trainable != spec.trainable) {
      return Fault(spec, absl::StrCat("local shape [", absl::StrJoin(local, ", "), "] does not go with ", first.name,
                                      " of the same fuse group ", group.name,
                                      ", or differs in weight decay or in being trained"));
    }
    group.shape[0] += local[0];
    return absl::OkStatus();
  }

  absl::Status CheckComplete(const PlannedGroup& group) const {
    const ParamSpec& first = table_[group.shares[0].spec];
    if (static_cast<int>(group.shares.size()) == first.fuse_group.count) return absl::OkStatus();
    return Fault(first, absl::StrCat("fuse group ", group.name, " has ", group.shares.size(), " of ",
                                     first.fuse_group.count, " members"));
  }

  const std::vector<ParamSpec>& table_;
  const std::vector<arch::Piece>& pieces_;
  const BucketPlanOptions& options_;
};

// Gives every group its place.
class Placer {
 public:
  Placer(const std::vector<ParamSpec>& table, const std::vector<arch::Piece>& pieces, const BucketPlanOptions& options,
         BucketPlan& plan)
      : table_(table), pieces_(pieces), options_(options), plan_(plan) {}

  void Place() {
    for (auto group = plan_.groups.rbegin(); group != plan_.groups.rend(); ++group) PlaceGroup(*group);
    NumberByLastGroup();
    for (PlannedBucket& bucket : plan_.buckets) {
      bucket.elements = RoundUp(std::max<int64_t>(bucket.elements, 1), kGroupAlignment * options_.shards);
    }
  }

 private:
  using Kind = std::tuple<bool, bool, bool>;

  // Another stage has a copy: this is a tied use without its target, or a target whose use is elsewhere.
  bool TiedAcrossStages(const ParamSpec& spec) const {
    if (spec.tied_to.has_value()) return true;
    return std::any_of(table_.begin(), table_.end(),
                       [&](const ParamSpec& other) { return other.tied_to == spec.name && !Holds(pieces_, other); });
  }

  void PlaceGroup(PlannedGroup& group) {
    const ParamSpec& spec = table_[group.shares[0].spec];
    const bool replicated = options_.tp.size > 1 && arch::TpReplicas(spec, options_.tp.size) == options_.tp.size;
    const bool alone = TiedAcrossStages(spec);
    const Kind kind{spec.weight_decay, replicated, spec.trainable};
    const auto open = open_.find(kind);
    if (!alone && open != open_.end()) {
      group.bucket = open->second;
    } else {
      group.bucket = static_cast<int>(plan_.buckets.size());
      plan_.buckets.push_back({.weight_decay = spec.weight_decay,
                               .tp_replicated = replicated,
                               .trainable = spec.trainable,
                               .tied_across_stages = alone});
      last_group_.push_back(0);
      if (!alone) open_[kind] = group.bucket;
    }
    PlannedBucket& bucket = plan_.buckets[group.bucket];
    group.offset = bucket.elements;
    for (PlannedShare& share : group.shares) share.offset += group.offset;
    bucket.elements = RoundUp(group.offset + group.Elements(), kGroupAlignment);
    last_group_[group.bucket] = ++placed_;
    if (!alone && bucket.elements >= options_.bucket_elements) open_.erase(kind);
  }

  void NumberByLastGroup() {
    std::vector<int> order(plan_.buckets.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](int a, int b) { return last_group_[a] < last_group_[b]; });
    std::vector<PlannedBucket> sorted;
    std::vector<int> number(order.size());
    for (int old : order) {
      number[old] = static_cast<int>(sorted.size());
      sorted.push_back(plan_.buckets[old]);
    }
    plan_.buckets = std::move(sorted);
    for (PlannedGroup& group : plan_.groups) group.bucket = number[group.bucket];
  }

  const std::vector<ParamSpec>& table_;
  const std::vector<arch::Piece>& pieces_;
  const BucketPlanOptions& options_;
  BucketPlan& plan_;
  std::map<Kind, int> open_;
  std::vector<int> last_group_;  // by bucket: when its last group was placed
  int placed_ = 0;
};

// Calls `visit` for the shares of a bucket in ascending order of their place.
void ForEachShare(const BucketPlan& plan, int bucket, const std::function<void(const PlannedShare&)>& visit) {
  std::vector<const PlannedShare*> shares;
  for (const PlannedGroup& group : plan.groups) {
    if (group.bucket != bucket) continue;
    for (const PlannedShare& share : group.shares) shares.push_back(&share);
  }
  std::sort(shares.begin(), shares.end(),
            [](const PlannedShare* a, const PlannedShare* b) { return a->offset < b->offset; });
  for (const PlannedShare* share : shares) visit(*share);
}

// Whether the gap between neighbours is nothing but alignment.
bool Touch(const ElementRange& left, const ElementRange& right) {
  return right.begin - left.end < kGroupAlignment && RoundUp(left.end, kGroupAlignment) >= right.begin;
}

}  // namespace

int64_t PlannedGroup::Elements() const { return Product(shape); }

absl::StatusOr<BucketPlan> PlanBuckets(const std::vector<ParamSpec>& table, const std::vector<arch::Piece>& pieces,
                                       const BucketPlanOptions& options) {
  if (options.shards < 1 || options.bucket_elements < 1) {
    return absl::InvalidArgumentError(absl::StrCat("buckets of ", options.bucket_elements, " elements over ",
                                                   options.shards, " ranks: both must be at least 1"));
  }
  SLIPWAY_ASSIGN_OR_RETURN(BucketPlan plan, GroupCollector(table, pieces, options).Collect());
  Placer(table, pieces, options, plan).Place();
  return plan;
}

std::vector<ElementRange> CountedRanges(const BucketPlan& plan, int bucket, int shard) {
  const int64_t size = plan.ShardElements(bucket);
  const ElementRange window{shard * size, (shard + 1) * size};
  std::vector<ElementRange> counted;
  bool adjacent = false;
  ForEachShare(plan, bucket, [&](const PlannedShare& share) {
    const bool join = std::exchange(adjacent, share.primary);
    if (!share.primary) return;
    const ElementRange part{std::max(window.begin, share.offset), std::min(window.end, share.offset + share.elements)};
    if (part.size() <= 0) return;
    if (join && !counted.empty() && Touch(counted.back(), part)) {
      counted.back().end = part.end;
    } else {
      counted.push_back(part);
    }
  });
  return counted;
}

std::vector<TpSumRange> TpSumRanges(const BucketPlan& plan, int bucket, const ElementRange& window) {
  std::vector<TpSumRange> sums;
  int previous = 1;
  ForEachShare(plan, bucket, [&](const PlannedShare& share) {
    const bool join = std::exchange(previous, share.tp_grad_sum) == share.tp_grad_sum;
    if (share.tp_grad_sum == 1) return;
    const ElementRange part{std::max(window.begin, share.offset), std::min(window.end, share.offset + share.elements)};
    if (part.size() <= 0) return;
    if (join && !sums.empty() && Touch(sums.back().range, part)) {
      sums.back().range.end = part.end;
    } else {
      sums.push_back({bucket, part, share.tp_grad_sum});
    }
  });
  return sums;
}

}  // namespace slipway::engine::parallel
