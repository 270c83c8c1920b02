// Which buckets of sharded weights are whole at a time: at most two, besides the rank's share. Decides, from the order
// in which buckets are used alone, what to gather, what to gather ahead and what to let go; so all ranks of a group,
// which use their buckets in one order, gather alike, and a plan can count the gathers beforehand.
//
// What is gathered ahead is the bucket that followed the last time when the same two were used one after another:
// forward, backward, recomputation, chunks and tied weights need no rule of their own. A wrong guess costs a gather.
// Thread-safety: one thread.
#ifndef SLIPWAY_ENGINE_ARCH_GATHER_WINDOW_H_
#define SLIPWAY_ENGINE_ARCH_GATHER_WINDOW_H_

#include <map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace slipway::engine::arch {

class GatherWindow {
 public:
  static constexpr int kCapacity = 2;

  struct Action {
    enum class Kind { kGather, kLetGo };
    Kind kind;
    int bucket;

    friend bool operator==(const Action&, const Action&) = default;
  };

  explicit GatherWindow(bool ahead) : ahead_(ahead) {}

  // What to do, in order, before the bucket is used. FailedPrecondition when an operation holds kCapacity others.
  absl::StatusOr<std::vector<Action>> Acquire(int bucket);
  // The use is over; the bucket stays as long as its room is not needed.
  void Release(int bucket) { --held_[bucket]; }
  // The weights have changed: what to let go.
  std::vector<Action> Clear();

 private:
  bool IsWhole(int bucket) const;
  // False when all that is whole is held.
  bool MakeRoom(int besides, std::vector<Action>& actions);

  bool ahead_;
  int previous_ = -1;
  int current_ = -1;
  std::map<std::pair<int, int>, int> follower_;  // of two buckets used one after another
  std::map<int, int> held_;
  std::vector<int> whole_;  // least recently used first
};

}  // namespace slipway::engine::arch

#endif  // SLIPWAY_ENGINE_ARCH_GATHER_WINDOW_H_
