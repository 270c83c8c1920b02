// Collective and point-to-point communication over one group of ranks.
//
// Implementations: SelfCommunicator (size 1), ThreadCommunicator (ranks are threads of one process; tests),
// BackendCommunicator (Gloo or NCCL through c10d). Code above never asks which one it has, and never asks whether a
// group has size 1: every operation is right, and free, there.
//
// Contract: all ranks of a group issue the same operations in the same order. Tensors are contiguous, on the group's
// device, and stay alive until Wait(). Results do not depend on timing.
// Thread-safety: one thread at a time per communicator.
// Errors: throws CommError naming group, operation and sequence number; engine/train turns it into a Status.
// Destruction frees local resources and runs no collective.
#ifndef SLIPWAY_ENGINE_COMM_COMMUNICATOR_H_
#define SLIPWAY_ENGINE_COMM_COMMUNICATOR_H_

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace slipway::engine::comm {

enum class ReduceOp { kSum, kMax, kMin };

class CommError : public std::runtime_error {
 public:
  enum class Cause { kFailed, kTimeout };
  explicit CommError(const std::string& what, Cause cause = Cause::kFailed) : std::runtime_error(what), cause_(cause) {}
  Cause cause() const { return cause_; }

 private:
  Cause cause_;
};

// Told about each operation as it is issued and as it is done; must be cheap and must not throw. The worker writes it
// to shared memory, so that the agent can say what a dead rank was waiting for; tests count operations and bytes with
// it.
class CommObserver {
 public:
  virtual ~CommObserver() = default;
  virtual void Begin(const std::string& group, const char* operation, uint64_t sequence, int64_t bytes) = 0;
  virtual void End(const std::string& group, const char* operation, uint64_t sequence) = 0;
};

// An operation under way. Wait() makes the result usable: on CPU it blocks, on CUDA it orders the current stream behind
// it.
class Work {
 public:
  virtual ~Work() = default;
  virtual void Wait() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

// A CustomClassHolder so that an autograd node can keep its group alive.
class Communicator : public torch::CustomClassHolder {
 public:
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // "tp", "dp", …

  // In place; the same bits on every rank.
  virtual WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) = 0;
  // output has size() × the elements of input, in rank order.
  virtual WorkPtr AllGather(at::Tensor output, const at::Tensor& input) = 0;
  // input has size() × the elements of output.
  virtual WorkPtr ReduceScatter(at::Tensor output, const at::Tensor& input, ReduceOp op) = 0;
  // Rows (dimension 0) of input go to the ranks by input_splits; output receives by output_splits.
  virtual WorkPtr AllToAll(at::Tensor output, const at::Tensor& input, const std::vector<int64_t>& output_splits,
                           const std::vector<int64_t>& input_splits) = 0;
  virtual WorkPtr Broadcast(at::Tensor tensor, int root) = 0;
  // Ranks are of this group. Sends between one pair arrive in order. A Send never waits for its Recv to be posted
  // before it returns its Work.
  virtual WorkPtr Send(const at::Tensor& tensor, int destination) = 0;
  virtual WorkPtr Recv(at::Tensor tensor, int source) = 0;
  virtual void Barrier() = 0;
};
using CommPtr = c10::intrusive_ptr<Communicator>;

}  // namespace slipway::engine::comm

#endif  // SLIPWAY_ENGINE_COMM_COMMUNICATOR_H_
