// The identity of one group as one of its ranks sees it: counts the operations, tells the observer and words the
// errors. Collectives and point-to-point operations are counted apart, so that a collective has the same number on
// every rank. Thread-safety: as the communicator that owns it; const methods from any thread.
#ifndef SLIPWAY_ENGINE_COMM_GROUP_TRACKER_H_
#define SLIPWAY_ENGINE_COMM_GROUP_TRACKER_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/communicator.h"

namespace slipway::engine::comm {

struct Operation {
  const char* name = "";
  uint64_t sequence = 0;  // from 1
  int64_t bytes = 0;
};

class GroupTracker {
 public:
  GroupTracker(std::string name, int rank, std::vector<int> world_ranks, std::shared_ptr<CommObserver> observer);

  const std::string& name() const { return name_; }
  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::vector<int>& world_ranks() const { return world_ranks_; }

  Operation BeginCollective(const char* name, const at::Tensor& tensor);
  Operation BeginPointToPoint(const char* name, const at::Tensor& tensor);
  void End(const Operation& operation) const;
  // "group dp (rank 1 of 2, world ranks 0 2): all_reduce #17 of 4096 bytes: <detail>".
  [[noreturn]] void Fail(const Operation& operation, const std::string& detail,
                         CommError::Cause cause = CommError::Cause::kFailed) const;

 private:
  std::string name_;
  int rank_;
  std::vector<int> world_ranks_;
  std::shared_ptr<CommObserver> observer_;
  uint64_t collectives_ = 0;
  uint64_t messages_ = 0;
};

// Argument checks that every implementation shares; they throw CommError naming the group and what is wrong.
void CheckInPlace(const GroupTracker& group, const char* operation, const at::Tensor& tensor);
void CheckAllGather(const GroupTracker& group, const at::Tensor& output, const at::Tensor& input);
void CheckReduceScatter(const GroupTracker& group, const at::Tensor& output, const at::Tensor& input);
void CheckAllToAll(const GroupTracker& group, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits);
void CheckPeer(const GroupTracker& group, const char* operation, int peer);

// An operation that is already done.
WorkPtr DoneWork();

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_GROUP_TRACKER_H_
