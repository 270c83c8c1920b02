// Walks a pipeline schedule on paper: CheckSchedule and Simulate of pipeline_schedule.h.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "engine/topology/pipeline_schedule.h"

namespace slipway::engine::topology {
namespace {

absl::Status Broken(int rank, const Pass& pass, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("pipeline rank ", rank, ", pass ", PassText(pass), ": ", what));
}

// Every (micro-batch, chunk) forward once, then backward once, or nowhere backward.
absl::Status CheckPasses(const PipelineSchedule& schedule) {
  if (schedule.pp < 1 || schedule.vpp < 1 || schedule.num_microbatches < 1 ||
      static_cast<int>(schedule.ranks.size()) != schedule.pp) {
    return absl::InvalidArgumentError(absl::StrCat("a schedule of ", schedule.ranks.size(), " ranks for a pipeline of ",
                                                   schedule.pp, " with ", schedule.vpp, " chunks and ",
                                                   schedule.num_microbatches, " micro-batches"));
  }
  const size_t total = static_cast<size_t>(schedule.num_microbatches) * schedule.vpp;
  size_t backwards = 0;
  for (int rank = 0; rank < schedule.pp; ++rank) {
    std::vector<int> seen(total, 0);  // 1 after the forward, 2 after the backward
    size_t forwards = 0;
    for (const Pass& pass : schedule.ranks[rank]) {
      if (pass.microbatch < 0 || pass.microbatch >= schedule.num_microbatches || pass.chunk < 0 ||
          pass.chunk >= schedule.vpp) {
        return Broken(rank, pass, "out of range");
      }
      int& state = seen[static_cast<size_t>(pass.chunk) * schedule.num_microbatches + pass.microbatch];
      const int before = pass.kind == PassKind::kForward ? 0 : 1;
      if (state != before) return Broken(rank, pass, state > before ? "runs twice" : "runs before its forward");
      ++state;
      ++(pass.kind == PassKind::kForward ? forwards : backwards);
    }
    if (forwards != total) {
      return absl::InvalidArgumentError(
          absl::StrCat("pipeline rank ", rank, " runs ", forwards, " of ", total, " forward passes"));
    }
  }
  if (backwards != 0 && backwards != total * schedule.pp) {
    return absl::InvalidArgumentError(
        absl::StrCat("the schedule runs ", backwards, " of ", total * schedule.pp, " backward passes"));
  }
  return absl::OkStatus();
}

class Walk {
 public:
  Walk(const PipelineSchedule& schedule, int capacity, double forward_time, double backward_time)
      : schedule_(schedule),
        capacity_(capacity),
        forward_time_(forward_time),
        backward_time_(backward_time),
        ranks_(schedule.pp) {}

  absl::Status Run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (int rank = 0; rank < schedule_.pp; ++rank) {
        while (true) {
          SLIPWAY_ASSIGN_OR_RETURN(const bool moved, Advance(rank));
          if (!moved) break;
          progress = true;
        }
      }
    }
    for (int rank = 0; rank < schedule_.pp; ++rank) {
      if (!Finished(rank)) return Deadlock();
    }
    return absl::OkStatus();
  }

  double Makespan() const {
    double last = 0;
    for (const RankState& state : ranks_) last = std::max(last, state.time);
    return last;
  }

 private:
  struct Message {
    int microbatch;
    int chunk;  // of the receiver
    double ready;
  };
  struct RankState {
    size_t next = 0;
    double time = 0;
    std::optional<std::pair<Peer, Message>> outgoing;  // computed, waiting for room in its channel
    PassKind outgoing_kind = PassKind::kForward;
  };
  using Channel = std::tuple<int, int, PassKind>;  // from, to

  bool Finished(int rank) const {
    return ranks_[rank].next == schedule_.ranks[rank].size() && !ranks_[rank].outgoing.has_value();
  }

  // One send or one pass of a rank; false when it must wait or has finished.
  absl::StatusOr<bool> Advance(int rank) {
    RankState& state = ranks_[rank];
    if (state.outgoing.has_value()) {
      auto& channel = channels_[{rank, state.outgoing->first.pp_rank, state.outgoing_kind}];
      if (static_cast<int64_t>(channel.size()) >= capacity_) return false;
      channel.push_back(state.outgoing->second);
      state.outgoing.reset();
      return true;
    }
    if (state.next == schedule_.ranks[rank].size()) return false;
    const Pass& pass = schedule_.ranks[rank][state.next];
    if (const std::optional<Peer> from = Upstream(schedule_, rank, pass)) {
      auto& channel = channels_[{from->pp_rank, rank, pass.kind}];
      if (channel.empty()) return false;
      const Message& message = channel.front();
      if (message.microbatch != pass.microbatch || message.chunk != pass.chunk) {
        return Broken(rank, pass,
                      absl::StrCat("the next message of rank ", from->pp_rank, " is for ",
                                   PassText({pass.kind, message.microbatch, message.chunk})));
      }
      state.time = std::max(state.time, message.ready);
      channel.pop_front();
    }
    state.time += (pass.kind == PassKind::kForward ? forward_time_ : backward_time_) / schedule_.vpp;
    if (const std::optional<Peer> to = Downstream(schedule_, rank, pass)) {
      state.outgoing = {*to, Message{pass.microbatch, to->chunk, state.time}};
      state.outgoing_kind = pass.kind;
    }
    ++state.next;
    return true;
  }

  absl::Status Deadlock() const {
    std::string text = "the schedule deadlocks:";
    for (int rank = 0; rank < schedule_.pp; ++rank) {
      const RankState& state = ranks_[rank];
      if (state.outgoing.has_value()) {
        absl::StrAppend(&text, " rank ", rank, " waits to send to rank ", state.outgoing->first.pp_rank, " after ",
                        PassText(schedule_.ranks[rank][state.next - 1]), ";");
      } else if (!Finished(rank)) {
        absl::StrAppend(&text, " rank ", rank, " waits to receive for ", PassText(schedule_.ranks[rank][state.next]),
                        ";");
      }
    }
    text.pop_back();
    return absl::InvalidArgumentError(text);
  }

  const PipelineSchedule& schedule_;
  const int64_t capacity_;
  const double forward_time_;
  const double backward_time_;
  std::vector<RankState> ranks_;
  std::map<Channel, std::deque<Message>> channels_;
};

}  // namespace

absl::Status CheckSchedule(const PipelineSchedule& schedule, int channel_capacity) {
  SLIPWAY_RETURN_IF_ERROR(CheckPasses(schedule));
  return Walk(schedule, channel_capacity, 1, 1).Run();
}

absl::StatusOr<SimulationResult> Simulate(const PipelineSchedule& schedule, const SimulationOptions& options) {
  SLIPWAY_RETURN_IF_ERROR(CheckPasses(schedule));
  Walk walk(schedule, std::numeric_limits<int>::max(), options.forward_time, options.backward_time);
  SLIPWAY_RETURN_IF_ERROR(walk.Run());
  double busy = 0;  // of one rank; all have the same passes
  for (const Pass& pass : schedule.ranks[0]) {
    busy += (pass.kind == PassKind::kForward ? options.forward_time : options.backward_time) / schedule.vpp;
  }
  return SimulationResult{.makespan = walk.Makespan(), .bubble_fraction = (walk.Makespan() - busy) / busy};
}

}  // namespace slipway::engine::topology
