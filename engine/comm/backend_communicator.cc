#include "engine/comm/backend_communicator.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/comm/backend_registry.h"
#include "engine/comm/group_tracker.h"
#include "engine/comm/self_communicator.h"

namespace slipway::engine::comm {
namespace {

using WorkHandle = c10::intrusive_ptr<c10d::Work>;

c10d::ReduceOp ToC10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

// Gloo throws its own types, c10d others; text alone tells a timeout in all of them.
std::string TextOf(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
}

CommError::Cause CauseOf(const std::string& text) {
  const std::string lower = absl::AsciiStrToLower(text);
  const bool timeout = absl::StrContains(lower, "timed out") || absl::StrContains(lower, "timeout");
  return timeout ? CommError::Cause::kTimeout : CommError::Cause::kFailed;
}

class BackendWork final : public Work {
 public:
  BackendWork(WorkHandle work, std::shared_ptr<GroupTracker> group, const Operation& operation,
              std::vector<at::Tensor> tensors)
      : work_(std::move(work)), group_(std::move(group)), operation_(operation), tensors_(std::move(tensors)) {}

  void Wait() override {
    if (work_ == nullptr) return;
    const WorkHandle work = std::move(work_);
    bool completed = false;
    try {
      completed = work->wait();
    } catch (const std::exception& error) {
      const std::string text = TextOf(error);
      group_->Fail(operation_, text, CauseOf(text));
    }
    if (!completed) group_->Fail(operation_, "aborted");
    tensors_.clear();
    group_->End(operation_);
  }

 private:
  WorkHandle work_;
  std::shared_ptr<GroupTracker> group_;
  Operation operation_;
  std::vector<at::Tensor> tensors_;  // alive while the operation runs
};

class BackendCommunicator final : public Communicator {
 public:
  BackendCommunicator(c10::intrusive_ptr<c10d::Backend> backend, std::shared_ptr<GroupTracker> group, at::Device device)
      : backend_(std::move(backend)), group_(std::move(group)), device_(device) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    CheckInPlace(*group_, "all_reduce", tensor);
    if (tensor.numel() == 0) return DoneWork();
    return Issue(group_->BeginCollective("all_reduce", tensor), {tensor}, [&] {
      c10d::AllreduceOptions options;
      options.reduceOp = ToC10d(op);
      std::vector<at::Tensor> tensors = {tensor.detach()};
      return backend_->allreduce(tensors, options);
    });
  }

  WorkPtr AllGather(at::Tensor output, const at::Tensor& input) override {
    CheckAllGather(*group_, output, input);
    if (input.numel() == 0) return DoneWork();
    return Issue(group_->BeginCollective("all_gather", input), {output, input}, [&] {
      at::Tensor out = output.detach().view(-1);
      at::Tensor in = input.detach().view(-1);
      return backend_->_allgather_base(out, in);
    });
  }

  WorkPtr ReduceScatter(at::Tensor output, const at::Tensor& input, ReduceOp op) override {
    CheckReduceScatter(*group_, output, input);
    if (output.numel() == 0) return DoneWork();
    return Issue(group_->BeginCollective("reduce_scatter", input), {output, input}, [&] {
      c10d::ReduceScatterOptions options;
      options.reduceOp = ToC10d(op);
      at::Tensor out = output.detach().view(-1);
      at::Tensor in = input.detach().view(-1);
      return backend_->_reduce_scatter_base(out, in, options);
    });
  }

  WorkPtr AllToAll(at::Tensor output, const at::Tensor& input, const std::vector<int64_t>& output_splits,
                   const std::vector<int64_t>& input_splits) override {
    CheckAllToAll(*group_, output, input, output_splits, input_splits);
    return Issue(group_->BeginCollective("all_to_all", input), {output, input}, [&] {
      at::Tensor out = output.detach();
      at::Tensor in = input.detach();
      std::vector<int64_t> out_splits = output_splits;
      std::vector<int64_t> in_splits = input_splits;
      return backend_->alltoall_base(out, in, out_splits, in_splits);
    });
  }

  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    CheckInPlace(*group_, "broadcast", tensor);
    CheckPeer(*group_, "broadcast", root);
    if (tensor.numel() == 0) return DoneWork();
    return Issue(group_->BeginCollective("broadcast", tensor), {tensor}, [&] {
      c10d::BroadcastOptions options;
      options.rootRank = root;
      std::vector<at::Tensor> tensors = {tensor.detach()};
      return backend_->broadcast(tensors, options);
    });
  }

  WorkPtr Send(const at::Tensor& tensor, int destination) override {
    CheckInPlace(*group_, "send", tensor);
    CheckPeer(*group_, "send", destination);
    return Issue(group_->BeginPointToPoint("send", tensor), {tensor}, [&] {
      std::vector<at::Tensor> tensors = {tensor.detach()};
      return backend_->send(tensors, destination, /*tag=*/0);
    });
  }

  WorkPtr Recv(at::Tensor tensor, int source) override {
    CheckInPlace(*group_, "recv", tensor);
    CheckPeer(*group_, "recv", source);
    return Issue(group_->BeginPointToPoint("recv", tensor), {tensor}, [&] {
      std::vector<at::Tensor> tensors = {tensor.detach()};
      return backend_->recv(tensors, source, /*tag=*/0);
    });
  }

  void Barrier() override {
    Issue(group_->BeginCollective("barrier", at::Tensor()), {}, [&] {
      c10d::BarrierOptions options;
      if (device_.is_cuda()) options.device = device_;
      return backend_->barrier(options);
    })->Wait();
  }

 private:
  template <typename Call>
  WorkPtr Issue(const Operation& operation, std::vector<at::Tensor> tensors, Call call) {
    try {
      return std::make_unique<BackendWork>(call(), group_, operation, std::move(tensors));
    } catch (const std::exception& error) {
      const std::string text = TextOf(error);
      group_->Fail(operation, text, CauseOf(text));
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::shared_ptr<GroupTracker> group_;
  at::Device device_;
};

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

class C10dGroupFactory final : public BackendGroupFactory {
 public:
  C10dGroupFactory(c10::intrusive_ptr<c10d::Store> store, int rank, BackendOptions options, BackendFactory factory,
                   GlooDevice gloo_device)
      : store_(std::move(store)),
        rank_(rank),
        options_(std::move(options)),
        factory_(factory),
        gloo_device_(std::move(gloo_device)) {}

  CommPtr MakeGroup(const std::string& name, const std::vector<int>& world_ranks) override {
    const uint64_t index = made_++;
    const auto found = std::find(world_ranks.begin(), world_ranks.end(), rank_);
    if (found == world_ranks.end()) return nullptr;
    if (world_ranks.size() == 1) return MakeSelfCommunicator(name);
    auto group = std::make_shared<GroupTracker>(name, static_cast<int>(found - world_ranks.begin()), world_ranks,
                                                options_.observer);
    const BackendRequest request{
        .store = c10::make_intrusive<c10d::PrefixStore>(absl::StrCat(index, "-", name), store_),
        .group_rank = group->rank(),
        .group_size = group->size(),
        .name = name,
        .device = options_.device,
        .timeout = absl::ToChronoMilliseconds(options_.timeout)};
    try {
      return c10::make_intrusive<BackendCommunicator>(MakeBackend(request), group, options_.device);
    } catch (const std::exception& error) {
      const std::string text = TextOf(error);
      group->Fail({.name = "make_group"}, text, CauseOf(text));
    }
  }

 private:
  c10::intrusive_ptr<c10d::Backend> MakeBackend(const BackendRequest& request) const {
    c10::intrusive_ptr<c10d::Backend> backend;
    if (factory_ != nullptr) {
      factory_(request, backend);
      return backend;
    }
    auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
    options->devices = {gloo_device_};
    options->threads = options_.gloo_threads;
    return c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, request.group_rank, request.group_size, options);
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  BackendOptions options_;
  BackendFactory factory_;  // null: Gloo
  GlooDevice gloo_device_;  // one for all groups
  uint64_t made_ = 0;
};

absl::StatusOr<GlooDevice> MakeGlooDevice(const BackendOptions& options) {
  try {
    return options.interface.empty() ? c10d::ProcessGroupGloo::createDeviceForHostname(options.address)
                                     : c10d::ProcessGroupGloo::createDeviceForInterface(options.interface);
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("gloo cannot use interface '", options.interface, "', address '",
                                                   options.address, "': ", TextOf(error)));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<BackendGroupFactory>> BackendGroupFactory::Create(const ProcessRendezvous& rendezvous,
                                                                                 const std::string& scope,
                                                                                 const BackendOptions& options) {
  BackendFactory factory = nullptr;
  GlooDevice gloo_device;
  if (options.backend == "gloo") {
    SLIPWAY_ASSIGN_OR_RETURN(gloo_device, MakeGlooDevice(options));
  } else {
    SLIPWAY_ASSIGN_OR_RETURN(factory, FindBackendFactory(options.backend));
  }
  auto store = c10::make_intrusive<c10d::PrefixStore>(scope, rendezvous.store());
  return std::make_unique<C10dGroupFactory>(std::move(store), rendezvous.rank(), options, factory,
                                            std::move(gloo_device));
}

}  // namespace slipway::engine::comm
