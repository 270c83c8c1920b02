#include "engine/topology/pipeline_schedule.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace slipway::engine::topology {
namespace {

absl::Status CheckCounts(int pp, int vpp, int num_microbatches) {
  if (pp >= 1 && vpp >= 1 && num_microbatches >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("a pipeline of ", pp, " ranks, ", vpp, " chunks a rank and ",
                                                 num_microbatches, " micro-batches: all must be at least 1"));
}

// (micro-batch, chunk) in the order in which a rank runs its forwards.
std::vector<Pass> ForwardOrder(int vpp, int num_microbatches, int group) {
  std::vector<Pass> order;
  for (int first = 0; first < num_microbatches; first += group) {
    const int last = std::min(first + group, num_microbatches);
    for (int chunk = 0; chunk < vpp; ++chunk) {
      for (int m = first; m < last; ++m) order.push_back({PassKind::kForward, m, chunk});
    }
  }
  return order;
}

// `warmup` forwards, then forward and backward in turn, then the rest of the backwards, which visit the chunks from the
// last to the first.
std::vector<Pass> Interlace(const std::vector<Pass>& forwards, int vpp, int warmup) {
  const int total = static_cast<int>(forwards.size());
  std::vector<Pass> passes(forwards.begin(), forwards.begin() + warmup);
  for (int i = 0; i < total; ++i) {
    if (warmup + i < total) passes.push_back(forwards[warmup + i]);
    passes.push_back({PassKind::kBackward, forwards[i].microbatch, vpp - 1 - forwards[i].chunk});
  }
  return passes;
}

int Warmup(int pp, int vpp, int num_microbatches, int group, int rank) {
  const int64_t total = int64_t{num_microbatches} * vpp;
  const int64_t wanted = vpp == 1 ? pp - rank - 1 : 2 * int64_t{pp - rank - 1} + int64_t{vpp - 1} * group;
  return static_cast<int>(std::min(wanted, total));
}

}  // namespace

std::string PassText(const Pass& pass) {
  return absl::StrCat(pass.kind == PassKind::kForward ? "F" : "B", pass.microbatch, ".", pass.chunk);
}

absl::StatusOr<PipelineSchedule> OneForwardOneBackward(int pp, int num_microbatches) {
  if (absl::Status status = CheckCounts(pp, 1, num_microbatches); !status.ok()) return status;
  PipelineSchedule schedule{.pp = pp, .num_microbatches = num_microbatches};
  const std::vector<Pass> forwards = ForwardOrder(1, num_microbatches, num_microbatches);
  for (int rank = 0; rank < pp; ++rank) {
    schedule.ranks.push_back(Interlace(forwards, 1, Warmup(pp, 1, num_microbatches, 0, rank)));
  }
  return schedule;
}

absl::StatusOr<PipelineSchedule> InterleavedOneForwardOneBackward(int pp, int vpp, int num_microbatches, int group) {
  if (absl::Status status = CheckCounts(pp, vpp, num_microbatches); !status.ok()) return status;
  if (pp < 2 || vpp < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the interleaved schedule needs at least 2 pipeline ranks and 2 chunks a rank, not ", pp, " and ", vpp));
  }
  if (group == 0) group = pp;
  if (group < pp || group > num_microbatches) {
    return absl::InvalidArgumentError(absl::StrCat("a micro-batch group of ", group, " must lie between the ", pp,
                                                   " pipeline ranks and the ", num_microbatches, " micro-batches"));
  }
  if (const int rest = num_microbatches % group; rest != 0 && rest < pp) {
    return absl::InvalidArgumentError(absl::StrCat("micro-batch groups of ", group, " leave a last group of ", rest,
                                                   " of ", num_microbatches, " micro-batches, fewer than the ", pp,
                                                   " pipeline ranks"));
  }
  PipelineSchedule schedule{
      .pp = pp, .vpp = vpp, .num_microbatches = num_microbatches, .channel_capacity = group - pp + 1, .ranks = {}};
  const std::vector<Pass> forwards = ForwardOrder(vpp, num_microbatches, group);
  for (int rank = 0; rank < pp; ++rank) {
    schedule.ranks.push_back(Interlace(forwards, vpp, Warmup(pp, vpp, num_microbatches, group, rank)));
  }
  return schedule;
}

absl::StatusOr<PipelineSchedule> ForwardOnly(int pp, int vpp, int num_microbatches) {
  if (absl::Status status = CheckCounts(pp, vpp, num_microbatches); !status.ok()) return status;
  PipelineSchedule schedule{.pp = pp, .vpp = vpp, .num_microbatches = num_microbatches};
  schedule.ranks.assign(pp, ForwardOrder(vpp, num_microbatches, pp));
  return schedule;
}

namespace {

// The peer one stage before (-1) or after (+1) in model order.
std::optional<Peer> StageNeighbour(const PipelineSchedule& schedule, int pp_rank, int chunk, int direction) {
  const int stage = chunk * schedule.pp + pp_rank + direction;
  if (stage < 0 || stage >= schedule.pp * schedule.vpp) return std::nullopt;
  return Peer{stage % schedule.pp, stage / schedule.pp};
}

}  // namespace

std::optional<Peer> Upstream(const PipelineSchedule& schedule, int pp_rank, const Pass& pass) {
  return StageNeighbour(schedule, pp_rank, pass.chunk, pass.kind == PassKind::kForward ? -1 : 1);
}

std::optional<Peer> Downstream(const PipelineSchedule& schedule, int pp_rank, const Pass& pass) {
  return StageNeighbour(schedule, pp_rank, pass.chunk, pass.kind == PassKind::kForward ? 1 : -1);
}

int PeakInFlight(const PipelineSchedule& schedule, int pp_rank) {
  int now = 0;
  int peak = 0;
  for (const Pass& pass : schedule.ranks[pp_rank]) {
    now += pass.kind == PassKind::kForward ? 1 : -1;
    peak = std::max(peak, now);
  }
  return peak;
}

int InFlightBound(const PipelineSchedule& schedule, int pp_rank, int group) {
  const int64_t total = int64_t{schedule.num_microbatches} * schedule.vpp;
  const int warmup =
      Warmup(schedule.pp, schedule.vpp, schedule.num_microbatches, group == 0 ? schedule.pp : group, pp_rank);
  return static_cast<int>(std::min<int64_t>(warmup + 1, total));
}

}  // namespace slipway::engine::topology
