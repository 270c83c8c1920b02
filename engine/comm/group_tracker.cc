#include "engine/comm/group_tracker.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace slipway::engine::comm {
namespace {

class FinishedWork final : public Work {
 public:
  void Wait() override {}
};

[[noreturn]] void BadArgument(const GroupTracker& group, const char* operation, const std::string& detail) {
  throw CommError(absl::StrCat("group ", group.name(), ": ", operation, ": ", detail));
}

void RequireContiguous(const GroupTracker& group, const char* operation, const char* which, const at::Tensor& tensor) {
  if (!tensor.defined()) BadArgument(group, operation, absl::StrCat(which, " is not a tensor"));
  if (!tensor.is_contiguous()) BadArgument(group, operation, absl::StrCat(which, " is not contiguous"));
}

void RequirePair(const GroupTracker& group, const char* operation, const at::Tensor& output, const at::Tensor& input) {
  RequireContiguous(group, operation, "output", output);
  RequireContiguous(group, operation, "input", input);
  if (output.scalar_type() != input.scalar_type()) {
    BadArgument(group, operation,
                absl::StrCat("output is ", c10::toString(output.scalar_type()), ", input is ",
                             c10::toString(input.scalar_type())));
  }
}

}  // namespace

GroupTracker::GroupTracker(std::string name, int rank, std::vector<int> world_ranks,
                           std::shared_ptr<CommObserver> observer)
    : name_(std::move(name)), rank_(rank), world_ranks_(std::move(world_ranks)), observer_(std::move(observer)) {}

Operation GroupTracker::BeginCollective(const char* name, const at::Tensor& tensor) {
  const Operation operation{name, ++collectives_, tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0};
  if (observer_ != nullptr) observer_->Begin(name_, name, operation.sequence, operation.bytes);
  return operation;
}

Operation GroupTracker::BeginPointToPoint(const char* name, const at::Tensor& tensor) {
  const Operation operation{name, ++messages_, static_cast<int64_t>(tensor.nbytes())};
  if (observer_ != nullptr) observer_->Begin(name_, name, operation.sequence, operation.bytes);
  return operation;
}

void GroupTracker::End(const Operation& operation) const {
  if (observer_ != nullptr) observer_->End(name_, operation.name, operation.sequence);
}

void GroupTracker::Fail(const Operation& operation, const std::string& detail, CommError::Cause cause) const {
  throw CommError(absl::StrCat("group ", name_, " (rank ", rank_, " of ", size(), ", world ranks ",
                               absl::StrJoin(world_ranks_, " "), "): ", operation.name, " #", operation.sequence,
                               " of ", operation.bytes, " bytes: ", detail),
                  cause);
}

void CheckInPlace(const GroupTracker& group, const char* operation, const at::Tensor& tensor) {
  RequireContiguous(group, operation, "tensor", tensor);
}

void CheckAllGather(const GroupTracker& group, const at::Tensor& output, const at::Tensor& input) {
  RequirePair(group, "all_gather", output, input);
  if (output.numel() != input.numel() * group.size()) {
    BadArgument(group, "all_gather",
                absl::StrCat("output has ", output.numel(), " elements, ", group.size(), " ranks of ", input.numel(),
                             " elements give ", input.numel() * group.size()));
  }
}

void CheckReduceScatter(const GroupTracker& group, const at::Tensor& output, const at::Tensor& input) {
  RequirePair(group, "reduce_scatter", output, input);
  if (input.numel() != output.numel() * group.size()) {
    BadArgument(group, "reduce_scatter",
                absl::StrCat("input has ", input.numel(), " elements, ", group.size(), " ranks of ", output.numel(),
                             " elements need ", output.numel() * group.size()));
  }
}

void CheckAllToAll(const GroupTracker& group, const at::Tensor& output, const at::Tensor& input,
                   const std::vector<int64_t>& output_splits, const std::vector<int64_t>& input_splits) {
  RequirePair(group, "all_to_all", output, input);
  if (output.dim() < 1 || input.dim() < 1) BadArgument(group, "all_to_all", "a scalar has no rows to send");
  const auto check = [&](const char* which, const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    const int64_t rows = std::accumulate(splits.begin(), splits.end(), int64_t{0});
    if (static_cast<int>(splits.size()) != group.size() || rows != tensor.size(0)) {
      BadArgument(group, "all_to_all",
                  absl::StrCat(which, " has ", tensor.size(0), " rows; its ", splits.size(), " splits add up to ", rows,
                               " and must be ", group.size()));
    }
  };
  check("output", output, output_splits);
  check("input", input, input_splits);
}

void CheckPeer(const GroupTracker& group, const char* operation, int peer) {
  if (peer < 0 || peer >= group.size()) {
    BadArgument(group, operation, absl::StrCat("rank ", peer, " is not in [0, ", group.size(), ")"));
  }
}

WorkPtr DoneWork() { return std::make_unique<FinishedWork>(); }

}  // namespace slipway::engine::comm
