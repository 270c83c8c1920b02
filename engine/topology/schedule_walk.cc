// Walks a pipeline schedule on paper: CheckSchedule and Simulate of pipeline_schedule.h.
#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

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

std::vector<StageTime> EqualTimes(const PipelineSchedule& schedule) {
  return std::vector<StageTime>(static_cast<size_t>(schedule.pp) * schedule.vpp,
                                {.forward = 1.0 / schedule.vpp, .backward = 2.0 / schedule.vpp});
}

class Walk {
 public:
  // `times` by stage in model order.
  Walk(const PipelineSchedule& schedule, int capacity, std::vector<StageTime> times, double message_time)
      : schedule_(schedule),
        capacity_(capacity),
        times_(std::move(times)),
        message_time_(message_time),
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
  double MeanUseful() const {
    double sum = 0;
    for (const RankState& state : ranks_) sum += state.useful;
    return sum / schedule_.pp;
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
    double useful = 0;
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
    const StageTime& stage = times_[static_cast<size_t>(pass.chunk) * schedule_.pp + rank];
    const double time = pass.kind == PassKind::kForward ? stage.forward : stage.backward;
    state.time += time;
    state.useful += time;
    if (const std::optional<Peer> to = Downstream(schedule_, rank, pass)) {
      state.outgoing = {*to, Message{pass.microbatch, to->chunk, state.time + message_time_}};
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
  const std::vector<StageTime> times_;
  const double message_time_;
  std::vector<RankState> ranks_;
  std::map<Channel, std::deque<Message>> channels_;
};

}  // namespace

absl::Status CheckSchedule(const PipelineSchedule& schedule) {
  SLIPWAY_RETURN_IF_ERROR(CheckPasses(schedule));
  return Walk(schedule, schedule.channel_capacity, EqualTimes(schedule), 0).Run();
}

absl::StatusOr<SimulationResult> Simulate(const PipelineSchedule& schedule, const SimulationOptions& options) {
  SLIPWAY_RETURN_IF_ERROR(CheckPasses(schedule));
  const std::vector<StageTime> times = options.stages.empty() ? EqualTimes(schedule) : options.stages;
  if (times.size() != static_cast<size_t>(schedule.pp) * schedule.vpp) {
    return absl::InvalidArgumentError(absl::StrCat("times of ", times.size(), " stages for a schedule of ", schedule.pp,
                                                   " ranks with ", schedule.vpp, " chunks each"));
  }
  Walk walk(schedule, std::numeric_limits<int>::max(), times, options.message_time);
  SLIPWAY_RETURN_IF_ERROR(walk.Run());
  SimulationResult result{.makespan = walk.Makespan(), .useful = walk.MeanUseful()};
  if (result.useful > 0) result.bubble_fraction = (result.makespan - result.useful) / result.useful;
  return result;
}

}  // namespace slipway::engine::topology
