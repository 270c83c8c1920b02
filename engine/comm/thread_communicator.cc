#include "engine/comm/thread_communicator.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/comm/group_tracker.h"
#include "engine/comm/self_communicator.h"

namespace slipway::engine::comm {
namespace {

// What one rank gave to a collective.
struct Deposit {
  std::string operation;  // with root or reduction: equal on all ranks
  at::Tensor input;       // a copy
  std::vector<int64_t> splits;
};

struct Exchange {
  std::vector<std::optional<Deposit>> deposits;
  int arrived = 0;
};

// Messages of one rank to another, by their number.
struct Mailbox {
  std::map<uint64_t, at::Tensor> messages;
};

struct SharedGroup {
  std::string name;
  std::vector<int> world_ranks;
  std::map<uint64_t, std::shared_ptr<Exchange>> exchanges;  // those that some rank has yet to join
  std::map<std::pair<int, int>, Mailbox> mailboxes;         // (source, destination)
};

const char* OpName(ReduceOp op) { return op == ReduceOp::kSum ? "sum" : op == ReduceOp::kMax ? "max" : "min"; }

std::string DepositText(const Deposit& deposit) {
  if (!deposit.input.defined()) return deposit.operation;
  return absl::StrCat(deposit.operation, " of ", deposit.input.numel(), " ",
                      c10::toString(deposit.input.scalar_type()));
}

at::Tensor Combine(const std::vector<at::Tensor>& inputs, ReduceOp op) {
  const at::ScalarType type = inputs[0].scalar_type();
  const bool widen = type == at::kBFloat16 || type == at::kHalf;
  at::Tensor sum = widen ? inputs[0].to(at::kFloat) : inputs[0].clone();
  for (size_t r = 1; r < inputs.size(); ++r) {
    if (op == ReduceOp::kSum) {
      sum.add_(inputs[r]);
    } else {
      sum = op == ReduceOp::kMax ? at::maximum(sum, inputs[r].to(sum.scalar_type()))
                                 : at::minimum(sum, inputs[r].to(sum.scalar_type()));
    }
  }
  return sum.to(type);
}

// What the ranks share.
class ThreadWorld {
 public:
  explicit ThreadWorld(absl::Duration timeout) : timeout_(timeout) {}

  void Abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (abort_reason_.empty()) abort_reason_ = reason;
    changed_.notify_all();
  }

  std::shared_ptr<SharedGroup> Join(uint64_t index, const std::string& name, const std::vector<int>& world_ranks) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<SharedGroup>& group = groups_[index];
    if (group == nullptr) group = std::make_shared<SharedGroup>(SharedGroup{name, world_ranks, {}, {}});
    if (group->name != name || group->world_ranks != world_ranks) {
      throw CommError(absl::StrCat("group number ", index, " is ", group->name, " of ranks ",
                                   absl::StrJoin(group->world_ranks, " "), " for one rank and ", name, " of ranks ",
                                   absl::StrJoin(world_ranks, " "), " for another"));
    }
    return group;
  }

  std::shared_ptr<Exchange> Give(SharedGroup& group, const GroupTracker& tracker, uint64_t sequence, Deposit deposit) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<Exchange>& slot = group.exchanges[sequence];
    if (slot == nullptr) {
      slot = std::make_shared<Exchange>();
      slot->deposits.resize(tracker.size());
    }
    std::shared_ptr<Exchange> exchange = slot;
    exchange->deposits[tracker.rank()] = std::move(deposit);
    if (++exchange->arrived == tracker.size()) group.exchanges.erase(sequence);
    changed_.notify_all();
    return exchange;
  }

  void AwaitAll(const Exchange& exchange, const GroupTracker& tracker, const Operation& operation) {
    std::unique_lock lock(mutex_);
    const bool done = WaitFor(lock, tracker, operation, [&] { return exchange.arrived == tracker.size(); });
    if (!done) {
      std::vector<int> missing;
      for (int r = 0; r < tracker.size(); ++r) {
        if (!exchange.deposits[r].has_value()) missing.push_back(tracker.world_ranks()[r]);
      }
      tracker.Fail(operation,
                   absl::StrCat("no word from world ranks ", absl::StrJoin(missing, " "), " within ",
                                absl::FormatDuration(timeout_)),
                   CommError::Cause::kTimeout);
    }
    const std::string expected = DepositText(*exchange.deposits[0]);
    for (int r = 1; r < tracker.size(); ++r) {
      const std::string found = DepositText(*exchange.deposits[r]);
      const bool may_differ = expected.starts_with("all_to_all") && found.starts_with("all_to_all");
      if (found != expected && !may_differ) {
        tracker.Fail(operation, absl::StrCat("rank 0 does ", expected, ", rank ", r, " does ", found));
      }
    }
  }

  void Post(SharedGroup& group, int source, int destination, uint64_t number, at::Tensor message) {
    std::lock_guard lock(mutex_);
    group.mailboxes[{source, destination}].messages.emplace(number, std::move(message));
    changed_.notify_all();
  }

  at::Tensor Fetch(SharedGroup& group, const GroupTracker& tracker, const Operation& operation, int source,
                   uint64_t number) {
    std::unique_lock lock(mutex_);
    Mailbox& box = group.mailboxes[{source, tracker.rank()}];
    if (!WaitFor(lock, tracker, operation, [&] { return box.messages.contains(number); })) {
      tracker.Fail(operation,
                   absl::StrCat("no message from world rank ", tracker.world_ranks()[source], " within ",
                                absl::FormatDuration(timeout_)),
                   CommError::Cause::kTimeout);
    }
    at::Tensor message = std::move(box.messages.at(number));
    box.messages.erase(number);
    return message;
  }

 private:
  // False when the timeout passed. Throws when the world was aborted.
  template <typename Predicate>
  bool WaitFor(std::unique_lock<std::mutex>& lock, const GroupTracker& tracker, const Operation& operation,
               Predicate predicate) {
    const bool woken = changed_.wait_for(lock, absl::ToChronoMilliseconds(timeout_),
                                         [&] { return predicate() || !abort_reason_.empty(); });
    if (!woken) return false;
    if (!predicate()) tracker.Fail(operation, absl::StrCat("aborted: ", abort_reason_));
    return true;
  }

  const absl::Duration timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string abort_reason_;
  std::map<uint64_t, std::shared_ptr<SharedGroup>> groups_;
};

// Runs `finish` once, at the first Wait.
class DeferredWork final : public Work {
 public:
  explicit DeferredWork(std::function<void()> finish) : finish_(std::move(finish)) {}
  void Wait() override {
    if (finish_ == nullptr) return;
    const std::function<void()> finish = std::exchange(finish_, nullptr);
    at::NoGradGuard no_grad;
    finish();
  }

 private:
  std::function<void()> finish_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<ThreadWorld> world, std::shared_ptr<SharedGroup> shared,
                     std::shared_ptr<GroupTracker> group)
      : world_(std::move(world)),
        shared_(std::move(shared)),
        group_(std::move(group)),
        sent_(group_->size(), 0),
        received_(group_->size(), 0) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  const std::string& name() const override { return group_->name(); }

  WorkPtr AllReduce(at::Tensor tensor, ReduceOp op) override {
    CheckInPlace(*group_, "all_reduce", tensor);
    return Collective("all_reduce", absl::StrCat("all_reduce ", OpName(op)), tensor, {},
                      [tensor, op](const Exchange& exchange, int) mutable {
                        tensor.copy_(Combine(Inputs(exchange), op).view_as(tensor));
                      });
  }

  WorkPtr AllGather(at::Tensor output, const at::Tensor& input) override {
    CheckAllGather(*group_, output, input);
    return Collective("all_gather", "all_gather", input, {}, [output](const Exchange& exchange, int) mutable {
      const int64_t part = exchange.deposits[0]->input.numel();
      for (size_t r = 0; r < exchange.deposits.size(); ++r) {
        output.view(-1).narrow(0, static_cast<int64_t>(r) * part, part).copy_(exchange.deposits[r]->input.view(-1));
      }
    });
  }

  WorkPtr ReduceScatter(at::Tensor output, const at::Tensor& input, ReduceOp op) override {
    CheckReduceScatter(*group_, output, input);
    return Collective("reduce_scatter", absl::StrCat("reduce_scatter ", OpName(op)), input, {},
                      [output, op](const Exchange& exchange, int self) mutable {
                        std::vector<at::Tensor> parts;
                        for (const at::Tensor& whole : Inputs(exchange)) {
                          parts.push_back(whole.view(-1).narrow(0, self * output.numel(), output.numel()));
                        }
                        output.copy_(Combine(parts, op).view_as(output));
                      });
  }

  WorkPtr AllToAll(at::Tensor output, const at::Tensor& input, const std::vector<int64_t>& output_splits,
                   const std::vector<int64_t>& input_splits) override {
    CheckAllToAll(*group_, output, input, output_splits, input_splits);
    const std::shared_ptr<GroupTracker> group = group_;
    return Collective("all_to_all", "all_to_all", input, input_splits,
                      [output, output_splits, group](const Exchange& exchange, int self) mutable {
                        int64_t row = 0;
                        for (int r = 0; r < group->size(); ++r) {
                          CopyRows(*group, output, row, output_splits[r], *exchange.deposits[r], r, self);
                          row += output_splits[r];
                        }
                      });
  }

  WorkPtr Broadcast(at::Tensor tensor, int root) override {
    CheckInPlace(*group_, "broadcast", tensor);
    CheckPeer(*group_, "broadcast", root);
    return Collective("broadcast", absl::StrCat("broadcast from ", root), tensor, {},
                      [tensor, root](const Exchange& exchange, int) mutable {
                        tensor.copy_(exchange.deposits[root]->input.view_as(tensor));
                      });
  }

  WorkPtr Send(const at::Tensor& tensor, int destination) override {
    CheckInPlace(*group_, "send", tensor);
    CheckPeer(*group_, "send", destination);
    const Operation operation = group_->BeginPointToPoint("send", tensor);
    at::NoGradGuard no_grad;
    world_->Post(*shared_, rank(), destination, sent_[destination]++, tensor.detach().clone());
    return std::make_unique<DeferredWork>([group = group_, operation] { group->End(operation); });
  }

  WorkPtr Recv(at::Tensor tensor, int source) override {
    CheckInPlace(*group_, "recv", tensor);
    CheckPeer(*group_, "recv", source);
    const Operation operation = group_->BeginPointToPoint("recv", tensor);
    const uint64_t number = received_[source]++;
    return std::make_unique<DeferredWork>([world = world_, shared = shared_, group = group_, operation, tensor, source,
                                           number]() mutable {
      const at::Tensor message = world->Fetch(*shared, *group, operation, source, number);
      if (message.numel() != tensor.numel() || message.scalar_type() != tensor.scalar_type()) {
        group->Fail(operation,
                    absl::StrCat("rank ", source, " sent ", message.numel(), " ", c10::toString(message.scalar_type()),
                                 ", expected ", tensor.numel(), " ", c10::toString(tensor.scalar_type())));
      }
      tensor.copy_(message.view_as(tensor));
      group->End(operation);
    });
  }

  void Barrier() override {
    Collective("barrier", "barrier", at::Tensor(), {}, [](const Exchange&, int) {})->Wait();
  }

 private:
  using Finish = std::function<void(const Exchange& exchange, int self)>;

  static std::vector<at::Tensor> Inputs(const Exchange& exchange) {
    std::vector<at::Tensor> inputs;
    for (const std::optional<Deposit>& deposit : exchange.deposits) inputs.push_back(deposit->input);
    return inputs;
  }

  static void CopyRows(const GroupTracker& group, at::Tensor& output, int64_t row, int64_t rows, const Deposit& from,
                       int source, int self) {
    if (from.splits[self] != rows) {
      throw CommError(absl::StrCat("group ", group.name(), ": all_to_all: rank ", source, " sends ", from.splits[self],
                                   " rows to rank ", self, ", which expects ", rows));
    }
    int64_t begin = 0;
    for (int r = 0; r < self; ++r) begin += from.splits[r];
    output.narrow(0, row, rows).copy_(from.input.narrow(0, begin, rows));
  }

  WorkPtr Collective(const char* name, std::string description, const at::Tensor& input, std::vector<int64_t> splits,
                     Finish finish) {
    const Operation operation = group_->BeginCollective(name, input);
    at::NoGradGuard no_grad;
    Deposit deposit{std::move(description), input.defined() ? input.detach().clone() : at::Tensor(), std::move(splits)};
    std::shared_ptr<Exchange> exchange = world_->Give(*shared_, *group_, operation.sequence, std::move(deposit));
    return std::make_unique<DeferredWork>(
        [world = world_, group = group_, operation, exchange = std::move(exchange), finish = std::move(finish)] {
          world->AwaitAll(*exchange, *group, operation);
          finish(*exchange, group->rank());
          group->End(operation);
        });
  }

  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<SharedGroup> shared_;
  std::shared_ptr<GroupTracker> group_;
  std::vector<uint64_t> sent_;
  std::vector<uint64_t> received_;
};

class ThreadGroupFactory final : public GroupFactory {
 public:
  ThreadGroupFactory(std::shared_ptr<ThreadWorld> world, int rank, std::shared_ptr<CommObserver> observer)
      : world_(std::move(world)), rank_(rank), observer_(std::move(observer)) {}

  CommPtr MakeGroup(const std::string& name, const std::vector<int>& world_ranks) override {
    const uint64_t index = made_++;
    const auto found = std::find(world_ranks.begin(), world_ranks.end(), rank_);
    if (found == world_ranks.end()) return nullptr;
    if (world_ranks.size() == 1) return MakeSelfCommunicator(name);
    const int rank = static_cast<int>(found - world_ranks.begin());
    auto group = std::make_shared<GroupTracker>(name, rank, world_ranks, observer_);
    return c10::make_intrusive<ThreadCommunicator>(world_, world_->Join(index, name, world_ranks), std::move(group));
  }

 private:
  std::shared_ptr<ThreadWorld> world_;
  int rank_;
  std::shared_ptr<CommObserver> observer_;
  uint64_t made_ = 0;
};

}  // namespace

void RunRanks(int world, const std::function<void(int rank, GroupFactory& factory)>& body,
              const ThreadWorldOptions& options) {
  const std::shared_ptr<ThreadWorld> shared = std::make_shared<ThreadWorld>(options.timeout);
  std::mutex mutex;
  std::exception_ptr first;
  const auto fail = [&](int rank, const std::string& reason) {
    std::lock_guard lock(mutex);
    if (first == nullptr) first = std::current_exception();
    shared->Abort(absl::StrCat("rank ", rank, ": ", reason));
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        ThreadGroupFactory factory(shared, rank, options.observer ? options.observer(rank) : nullptr);
        body(rank, factory);
      } catch (const std::exception& error) {
        fail(rank, error.what());
      } catch (...) {
        fail(rank, "an exception that is no std::exception");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (first != nullptr) std::rethrow_exception(first);
}

}  // namespace slipway::engine::comm
