#include "engine/arch/bucket_plan.h"

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

namespace slipway::engine::arch {
namespace {

int64_t Product(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{1}, std::multiplies<>());
}

int64_t RoundUp(int64_t value, int64_t grain) { return (value + grain - 1) / grain * grain; }

bool Holds(const std::vector<Piece>& pieces, const ParamSpec& spec) {
  return std::find(pieces.begin(), pieces.end(), spec.piece) != pieces.end();
}

// Builds the groups, without places in buckets.
class GroupCollector {
 public:
  GroupCollector(const std::vector<ParamSpec>& table, const std::vector<Piece>& pieces,
                 const BucketPlanOptions& options)
      : table_(table), pieces_(pieces), options_(options) {}

  absl::StatusOr<BucketPlan> Collect() {
    BucketPlan plan;
    for (int index = 0; index < static_cast<int>(table_.size()); ++index) {
      const ParamSpec& spec = table_[index];
      if (!Holds(pieces_, spec)) continue;
      SLIPWAY_ASSIGN_OR_RETURN(const bool holds_expert, HoldsExpert(spec, options_.tp));
      if (!holds_expert) continue;
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

  // The members that this rank holds: of the experts only its own.
  int Members(const ParamSpec& spec) const {
    return spec.expert.has_value() ? spec.fuse_group.count / options_.tp.ep_size : spec.fuse_group.count;
  }
  int FirstMember(const ParamSpec& spec) const {
    return spec.expert.has_value() ? options_.tp.ep_rank * Members(spec) : 0;
  }

  absl::Status AddMember(BucketPlan& plan, int index) const {
    const ParamSpec& spec = table_[index];
    const auto [place, is_new] = plan.group_of_name.emplace(spec.fuse_group.name, static_cast<int>(plan.groups.size()));
    if (is_new) plan.groups.push_back({.name = spec.fuse_group.name});
    PlannedGroup& group = plan.groups[place->second];
    if (FirstMember(spec) + static_cast<int>(group.shares.size()) != spec.fuse_group.index) {
      return Fault(spec, absl::StrCat("is member ", spec.fuse_group.index, " of ", group.name, ", after ",
                                      group.shares.size(), " members"));
    }
    PlannedShare share{.spec = index, .offset = is_new ? 0 : Product(group.shape)};
    SLIPWAY_ASSIGN_OR_RETURN(std::vector<int64_t> local, LocalShape(spec, options_.tp));
    for (int dim = 0; dim < static_cast<int>(spec.shape.size()); ++dim) {
      SLIPWAY_ASSIGN_OR_RETURN(const ShardRange range, LocalRange(spec, dim, options_.tp));
      if (range.padding > 0 && (dim > 0 || spec.fuse_group.count > 1)) {
        return Fault(spec, "only the rows of a group with one member can be padded");
      }
      share.start.push_back(range.begin);
      share.extent.push_back(range.count);
    }
    share.elements = Product(share.extent);
    const int replicas = TpReplicas(spec, options_.tp.size);
    share.primary = !spec.tied_to.has_value() && options_.tp.rank % replicas == 0;
    share.tp_grad_sum = TpGradSumRanks(spec, options_.tp.size, options_.sequence_parallel);
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
    if (static_cast<int>(group.shares.size()) == Members(first)) return absl::OkStatus();
    return Fault(first, absl::StrCat("fuse group ", group.name, " has ", group.shares.size(), " of ", Members(first),
                                     " members"));
  }

  const std::vector<ParamSpec>& table_;
  const std::vector<Piece>& pieces_;
  const BucketPlanOptions& options_;
};

// Gives every group its place.
class Placer {
 public:
  Placer(const std::vector<ParamSpec>& table, const std::vector<Piece>& pieces, const BucketPlanOptions& options,
         BucketPlan& plan)
      : table_(table), pieces_(pieces), options_(options), plan_(plan) {}

  void Place() {
    for (const PlannedGroup& group : plan_.groups) {
      if (!TiedAcrossStages(FirstOf(group))) elements_of_piece_[KeyOf(group)] += Padded(group);
    }
    for (int group = static_cast<int>(plan_.groups.size()) - 1; group >= 0; --group) Deal(group);
    NumberByLastGroup();
    for (int bucket = 0; bucket < static_cast<int>(plan_.buckets.size()); ++bucket) LayOut(bucket);
  }

 private:
  using Kind = std::tuple<bool, bool, double>;          // trainable, an expert's, rate of the sign update
  using PieceKey = std::tuple<Kind, Piece::Kind, int>;  // of one kind of groups in one piece

  // Being filled.
  struct Open {
    int bucket;
    int64_t elements = 0;
    PieceKey last;
  };

  const ParamSpec& FirstOf(const PlannedGroup& group) const { return table_[group.shares[0].spec]; }
  PieceKey KeyOf(const PlannedGroup& group) const {
    const ParamSpec& spec = FirstOf(group);
    return {KindOf(spec), spec.piece.kind, spec.piece.layer};
  }
  static Kind KindOf(const ParamSpec& spec) { return {spec.trainable, spec.expert.has_value(), spec.sign_update_rate}; }
  static int64_t Padded(const PlannedGroup& group) { return RoundUp(group.Elements(), kGroupAlignment); }

  // Another stage has a copy: this is a tied use without its target, or a target whose use is elsewhere.
  bool TiedAcrossStages(const ParamSpec& spec) const {
    if (spec.tied_to.has_value()) return true;
    return std::any_of(table_.begin(), table_.end(),
                       [&](const ParamSpec& other) { return other.tied_to == spec.name && !Holds(pieces_, other); });
  }

  // Decides which bucket a group belongs to.
  void Deal(int index) {
    PlannedGroup& group = plan_.groups[index];
    const ParamSpec& spec = FirstOf(group);
    if (TiedAcrossStages(spec)) {
      group.bucket = NewBucket(spec, /*tied=*/true);
    } else {
      const PieceKey key = KeyOf(group);
      auto open = open_.find(KindOf(spec));
      const bool full =
          open != open_.end() && open->second.last != key &&
          (open->second.elements >= options_.bucket_elements || elements_of_piece_[key] >= options_.bucket_elements);
      if (open == open_.end() || full) {
        open = open_.insert_or_assign(KindOf(spec), Open{.bucket = NewBucket(spec, /*tied=*/false)}).first;
      }
      open->second.last = key;
      open->second.elements += Padded(group);
      group.bucket = open->second.bucket;
    }
    members_[group.bucket].push_back(index);
  }

  int NewBucket(const ParamSpec& spec, bool tied) {
    plan_.buckets.push_back({.shards = spec.expert.has_value() ? options_.expert_shards : options_.shards,
                             .trainable = spec.trainable,
                             .expert = spec.expert.has_value(),
                             .sign_update_rate = spec.sign_update_rate,
                             .tied_across_stages = tied});
    members_.emplace_back();
    return static_cast<int>(plan_.buckets.size()) - 1;
  }

  void NumberByLastGroup() {
    std::vector<int> order(plan_.buckets.size());
    std::iota(order.begin(), order.end(), 0);
    // Groups were dealt in descending order: a bucket's last member has the lowest number.
    std::sort(order.begin(), order.end(), [&](int a, int b) { return members_[a].back() > members_[b].back(); });
    std::vector<PlannedBucket> buckets;
    std::vector<std::vector<int>> members;
    for (int old : order) {
      for (int group : members_[old]) plan_.groups[group].bucket = static_cast<int>(buckets.size());
      buckets.push_back(plan_.buckets[old]);
      members.push_back(std::move(members_[old]));
    }
    plan_.buckets = std::move(buckets);
    members_ = std::move(members);
  }

  // Groups with weight decay come first, so that a bucket has two runs at most for the optimizer.
  void LayOut(int index) {
    PlannedBucket& bucket = plan_.buckets[index];
    for (const bool decay : {true, false}) {
      for (int member : members_[index]) {
        PlannedGroup& group = plan_.groups[member];
        if (FirstOf(group).weight_decay != decay) continue;
        group.offset = bucket.elements;
        for (PlannedShare& share : group.shares) share.offset += group.offset;
        bucket.elements += Padded(group);
      }
      if (decay) bucket.decay_elements = bucket.elements;
    }
    bucket.elements = RoundUp(std::max<int64_t>(bucket.elements, 1), kGroupAlignment * bucket.shards);
  }

  const std::vector<ParamSpec>& table_;
  const std::vector<Piece>& pieces_;
  const BucketPlanOptions& options_;
  BucketPlan& plan_;
  std::map<Kind, Open> open_;
  std::map<PieceKey, int64_t> elements_of_piece_;
  std::vector<std::vector<int>> members_;  // by bucket: its groups, in the order in which they were dealt
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

absl::StatusOr<BucketPlan> PlanBuckets(const std::vector<ParamSpec>& table, const std::vector<Piece>& pieces,
                                       const BucketPlanOptions& options) {
  if (options.shards < 1 || options.expert_shards < 1 || options.bucket_elements < 1) {
    return absl::InvalidArgumentError(absl::StrCat("buckets of ", options.bucket_elements, " elements over ",
                                                   options.shards, " ranks, of experts over ", options.expert_shards,
                                                   ": all must be at least 1"));
  }
  SLIPWAY_ASSIGN_OR_RETURN(BucketPlan plan, GroupCollector(table, pieces, options).Collect());
  Placer(table, pieces, options, plan).Place();
  return plan;
}

std::vector<ElementRange> CountedRanges(const BucketPlan& plan, int bucket, int shard) {
  const int64_t size = plan.ShardElements(bucket);
  const ElementRange window{shard * size, (shard + 1) * size};
  std::vector<ElementRange> counted;
  if (plan.buckets[bucket].sign_update_rate > 0) return counted;
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

int64_t CountedElements(const BucketPlan& plan, int bucket, int shard) {
  if (plan.buckets[bucket].sign_update_rate > 0) return 0;
  const int64_t size = plan.ShardElements(bucket);
  const ElementRange window{shard * size, (shard + 1) * size};
  int64_t counted = 0;
  ForEachShare(plan, bucket, [&](const PlannedShare& share) {
    const ElementRange part{std::max(window.begin, share.offset), std::min(window.end, share.offset + share.elements)};
    if (share.primary && part.size() > 0) counted += part.size();
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

}  // namespace slipway::engine::arch
