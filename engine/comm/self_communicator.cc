#include "engine/comm/self_communicator.h"

#include <ATen/core/grad_mode.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/comm/group_tracker.h"

namespace slipway::engine::comm {
namespace {

class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(const std::string& name) : group_(name, 0, {0}, nullptr) {}

  int rank() const override { return 0; }
  int size() const override { return 1; }
  const std::string& name() const override { return group_.name(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp) override {
    CheckInPlace(group_, "all_reduce", tensor);
    return DoneWork();
  }
  WorkPtr AllGather(at::Tensor output, const at::Tensor& input) override {
    CheckAllGather(group_, output, input);
    return Copy(output, input);
  }
  WorkPtr ReduceScatter(at::Tensor output, const at::Tensor& input, ReduceOp) override {
    CheckReduceScatter(group_, output, input);
    return Copy(output, input);
  }
  WorkPtr AllToAll(at::Tensor output, const at::Tensor& input, const std::vector<int64_t>& output_splits,
                   const std::vector<int64_t>& input_splits) override {
    CheckAllToAll(group_, output, input, output_splits, input_splits);
    return Copy(output, input);
  }
  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    CheckInPlace(group_, "broadcast", tensor);
    CheckPeer(group_, "broadcast", root);
    return DoneWork();
  }
  WorkPtr Send(const at::Tensor&, int destination) override { NoPeer("send", destination); }
  WorkPtr Recv(at::Tensor, int source) override { NoPeer("recv", source); }
  void Barrier() override {}

 private:
  WorkPtr Copy(at::Tensor& output, const at::Tensor& input) {
    if (output.data_ptr() != input.data_ptr()) {
      at::NoGradGuard no_grad;
      output.view(-1).copy_(input.view(-1));
    }
    return DoneWork();
  }
  [[noreturn]] void NoPeer(const char* operation, int peer) const {
    throw CommError(absl::StrCat("group ", name(), " has one rank: no ", operation, " with rank ", peer));
  }

  GroupTracker group_;
};

}  // namespace

CommPtr MakeSelfCommunicator(const std::string& name) { return c10::make_intrusive<SelfCommunicator>(name); }

}  // namespace slipway::engine::comm
