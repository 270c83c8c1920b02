#include "engine/comm/control_channel.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace slipway::engine::comm {
namespace {

constexpr int64_t kFields = 7;

void Encode(const ControlRecord& record, int64_t* out) {
  const std::array<int64_t, kFields> fields = {record.step,
                                               static_cast<int64_t>(record.spec_hash),
                                               static_cast<int64_t>(record.parameter_checksum),
                                               record.parameter_group,
                                               record.stop ? 1 : 0,
                                               record.checkpoint_requests,
                                               record.failed ? 1 : 0};
  std::copy(fields.begin(), fields.end(), out);
}

ControlRecord Decode(const int64_t* in) {
  return {.step = in[0],
          .spec_hash = static_cast<uint64_t>(in[1]),
          .parameter_checksum = static_cast<uint64_t>(in[2]),
          .parameter_group = static_cast<int32_t>(in[3]),
          .stop = in[4] != 0,
          .checkpoint_requests = in[5],
          .failed = in[6] != 0};
}

std::string Hex(uint64_t value) { return absl::StrCat("0x", absl::Hex(value, absl::kZeroPad16)); }

absl::Status CheckAgreement(const std::vector<ControlRecord>& records) {
  std::map<int32_t, int> first_of_group;
  for (int rank = 0; rank < static_cast<int>(records.size()); ++rank) {
    const ControlRecord& record = records[rank];
    if (record.step != records[0].step) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank 0 is at step ", records[0].step, ", rank ", rank, " at step ", record.step));
    }
    if (record.spec_hash != records[0].spec_hash) {
      return absl::FailedPreconditionError(absl::StrCat("step ", record.step, ": rank 0 has specification ",
                                                        Hex(records[0].spec_hash), ", rank ", rank, " has ",
                                                        Hex(record.spec_hash)));
    }
    if (record.parameter_checksum == 0) continue;
    const auto [first, is_new] = first_of_group.emplace(record.parameter_group, rank);
    const uint64_t expected = records[first->second].parameter_checksum;
    if (record.parameter_checksum != expected) {
      return absl::FailedPreconditionError(absl::StrCat(
          "step ", record.step, ": replicas of parameters ", record.parameter_group, " differ: rank ", first->second,
          " has checksum ", Hex(expected), ", rank ", rank, " has ", Hex(record.parameter_checksum)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ControlDecision> Decide(const std::vector<ControlRecord>& records) {
  if (absl::Status status = CheckAgreement(records); !status.ok()) return status;
  ControlDecision decision{.step = records[0].step};
  for (int rank = static_cast<int>(records.size()) - 1; rank >= 0; --rank) {
    decision.stop |= records[rank].stop;
    decision.checkpoint_requests = std::max(decision.checkpoint_requests, records[rank].checkpoint_requests);
    if (records[rank].failed) decision.failed_rank = rank;
  }
  return decision;
}

class ThreadedControlChannel final : public ControlChannel {
 public:
  explicit ThreadedControlChannel(CommPtr world) : world_(std::move(world)), thread_([this] { Run(); }) {}

  ~ThreadedControlChannel() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void Post(const ControlRecord& record) override {
    {
      std::lock_guard lock(mutex_);
      posted_.push_back(record);
      ++outstanding_;
    }
    changed_.notify_all();
  }

  absl::StatusOr<ControlDecision> Take() override {
    std::unique_lock lock(mutex_);
    if (outstanding_ == 0) return absl::FailedPreconditionError("control channel: Take without a Post");
    changed_.wait(lock, [this] { return !decided_.empty(); });
    absl::StatusOr<ControlDecision> decision = std::move(decided_.front());
    decided_.pop_front();
    --outstanding_;
    return decision;
  }

 private:
  void Run() {
    for (;;) {
      ControlRecord record;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return closing_ || !posted_.empty(); });
        if (posted_.empty()) return;
        record = posted_.front();
        posted_.pop_front();
      }
      absl::StatusOr<ControlDecision> decision = Exchange(record);
      {
        std::lock_guard lock(mutex_);
        decided_.push_back(std::move(decision));
      }
      changed_.notify_all();
    }
  }

  absl::StatusOr<ControlDecision> Exchange(const ControlRecord& record) {
    try {
      at::Tensor mine = at::empty({kFields}, at::kLong);
      at::Tensor all = at::empty({world_->size() * kFields}, at::kLong);
      Encode(record, mine.data_ptr<int64_t>());
      world_->AllGather(all, mine)->Wait();
      std::vector<ControlRecord> records;
      for (int rank = 0; rank < world_->size(); ++rank) {
        records.push_back(Decode(all.data_ptr<int64_t>() + rank * kFields));
      }
      return Decide(records);
    } catch (const CommError& error) {
      const std::string message = absl::StrCat("control channel, step ", record.step, ": ", error.what());
      return error.cause() == CommError::Cause::kTimeout ? absl::DeadlineExceededError(message)
                                                         : absl::UnavailableError(message);
    } catch (const std::exception& error) {
      return absl::InternalError(absl::StrCat("control channel, step ", record.step, ": ", error.what()));
    }
  }

  CommPtr world_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  int outstanding_ = 0;  // posted and not yet taken
  std::deque<ControlRecord> posted_;
  std::deque<absl::StatusOr<ControlDecision>> decided_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<ControlChannel> MakeControlChannel(CommPtr world) {
  return std::make_unique<ThreadedControlChannel>(std::move(world));
}

}  // namespace slipway::engine::comm
