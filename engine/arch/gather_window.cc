#include "engine/arch/gather_window.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace slipway::engine::arch {

bool GatherWindow::IsWhole(int bucket) const { return std::find(whole_.begin(), whole_.end(), bucket) != whole_.end(); }

bool GatherWindow::MakeRoom(int besides, std::vector<Action>& actions) {
  if (static_cast<int>(whole_.size()) < kCapacity) return true;
  const auto victim =
      std::find_if(whole_.begin(), whole_.end(), [&](int bucket) { return bucket != besides && held_[bucket] == 0; });
  if (victim == whole_.end()) return false;
  actions.push_back({Action::Kind::kLetGo, *victim});
  whole_.erase(victim);
  return true;
}

absl::StatusOr<std::vector<GatherWindow::Action>> GatherWindow::Acquire(int bucket) {
  std::vector<Action> actions;
  if (bucket != current_) {
    if (current_ >= 0) follower_[{previous_, current_}] = bucket;
    previous_ = std::exchange(current_, bucket);
  } else if (IsWhole(bucket)) {
    ++held_[bucket];
    return actions;
  }
  if (IsWhole(bucket)) {
    whole_.erase(std::find(whole_.begin(), whole_.end(), bucket));
  } else {
    if (!MakeRoom(bucket, actions)) {
      return absl::FailedPreconditionError(absl::StrCat("an operation needs bucket ", bucket, " while it holds ",
                                                        kCapacity, " others: its parameters must share buckets"));
    }
    actions.push_back({Action::Kind::kGather, bucket});
  }
  whole_.push_back(bucket);
  ++held_[bucket];
  if (!ahead_) return actions;
  const auto next = follower_.find({previous_, current_});
  if (next == follower_.end() || IsWhole(next->second) || !MakeRoom(bucket, actions)) return actions;
  actions.push_back({Action::Kind::kGather, next->second});
  whole_.push_back(next->second);
  return actions;
}

std::vector<GatherWindow::Action> GatherWindow::Clear() {
  std::vector<Action> actions;
  for (int bucket : whole_) actions.push_back({Action::Kind::kLetGo, bucket});
  whole_.clear();
  return actions;
}

}  // namespace slipway::engine::arch
