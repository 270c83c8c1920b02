#include "worker/agent/reconciler.h"

#include <algorithm>

namespace slipway::worker::agent {
namespace {

// A collective without one of its members never ends, so the first fault ends all ranks of the attempt.
bool FaultEndsAttempt(const AttemptObservation& observed, absl::Duration now) {
  return std::any_of(observed.ranks.begin(), observed.ranks.end(), [&](const RankObservation& rank) {
    return rank.life == Life::kEnded && rank.fault && (!rank.secondary || now - rank.ended_at >= kSettleTime);
  });
}

bool AnyFault(const AttemptObservation& observed) {
  return std::any_of(observed.ranks.begin(), observed.ranks.end(),
                     [](const RankObservation& rank) { return rank.life == Life::kEnded && rank.fault; });
}

void KillAll(const AttemptObservation& observed, KillReason reason, std::vector<Step>& steps) {
  for (const RankObservation& rank : observed.ranks) {
    if (rank.life == Life::kAlive) steps.push_back({StepKind::kKill, rank.rank, reason});
  }
}

void StopAll(const AttemptDesire& desire, const AttemptObservation& observed, absl::Duration now,
             std::vector<Step>& steps) {
  for (const RankObservation& rank : observed.ranks) {
    if (rank.life != Life::kAlive) continue;
    if (!rank.terminated_at.has_value() && desire.termination_grace > absl::ZeroDuration()) {
      steps.push_back({StepKind::kTerminate, rank.rank});
    } else if (!rank.terminated_at.has_value() || now - *rank.terminated_at >= desire.termination_grace) {
      steps.push_back({StepKind::kKill, rank.rank, KillReason::kAsked});
    }
  }
}

// Rank 0 first: the others need the address of its socket.
void StartMissing(const AttemptObservation& observed, std::vector<Step>& steps) {
  bool address_known = observed.rendezvous_known;
  for (const RankObservation& rank : observed.ranks) {
    if (rank.rank != 0) continue;
    if (rank.life == Life::kAbsent) steps.push_back({StepKind::kStartRank, 0});
    address_known = true;
  }
  if (!address_known) return;
  for (const RankObservation& rank : observed.ranks) {
    if (rank.rank != 0 && rank.life == Life::kAbsent) steps.push_back({StepKind::kStartRank, rank.rank});
  }
}

void EndLingerers(const AttemptObservation& observed, absl::Duration now, std::vector<Step>& steps) {
  for (const RankObservation& rank : observed.ranks) {
    if (rank.life == Life::kAlive && rank.said_outcome_at.has_value() && now - *rank.said_outcome_at >= kExitTimeout) {
      steps.push_back({StepKind::kKill, rank.rank, KillReason::kLingers});
    }
  }
}

void ReconcilePreflight(const AttemptDesire& desire, const AttemptObservation& observed, absl::Duration now,
                        std::vector<Step>& steps) {
  const bool wanted = desire.phase == Phase::kPreflight || desire.phase == Phase::kUnknown;
  if (observed.preflight == Life::kAlive) {
    if (!wanted || desire.lease_expired) {
      steps.push_back({StepKind::kKillPreflight, -1, KillReason::kAsked});
    } else if (now - observed.preflight_started_at >= desire.preflight_timeout) {
      steps.push_back({StepKind::kKillPreflight, -1, KillReason::kTimeout});
    }
  } else if (desire.phase == Phase::kPreflight && observed.preflight == Life::kAbsent && !observed.preflight_result &&
             desire.may_start && !desire.lease_expired) {
    steps.push_back({StepKind::kStartPreflight});
  }
}

bool NothingLives(const AttemptObservation& observed) {
  return observed.preflight != Life::kAlive &&
         std::none_of(observed.ranks.begin(), observed.ranks.end(),
                      [](const RankObservation& r) { return r.life == Life::kAlive; });
}

}  // namespace

std::vector<Step> Reconcile(const AttemptDesire& desire, const AttemptObservation& observed, absl::Duration now) {
  std::vector<Step> steps;
  ReconcilePreflight(desire, observed, now, steps);
  if (desire.phase == Phase::kReleased && NothingLives(observed)) return {{StepKind::kRelease}};
  if (desire.lease_expired) {
    KillAll(observed, KillReason::kLease, steps);
  } else if (FaultEndsAttempt(observed, now)) {
    KillAll(observed, KillReason::kPeerFault, steps);
  } else if (desire.phase == Phase::kReleased) {
    KillAll(observed, KillReason::kAsked, steps);
  } else if (desire.phase == Phase::kStopped || desire.phase == Phase::kPreflight) {
    StopAll(desire, observed, now, steps);
  } else {
    if (desire.phase == Phase::kRun && desire.may_start && !AnyFault(observed)) StartMissing(observed, steps);
    EndLingerers(observed, now, steps);
  }
  return steps;
}

}  // namespace slipway::worker::agent
