#include "worker/agent/reconciler.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slipway::worker::agent {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr absl::Duration kNow = absl::Seconds(1000);

RankObservation Rank(int number, Life life) { return {.rank = number, .life = life}; }
RankObservation Failed(int number, bool secondary, absl::Duration ago) {
  return {.rank = number, .life = Life::kEnded, .fault = true, .secondary = secondary, .ended_at = kNow - ago};
}
AttemptDesire Want(Phase phase) { return {.phase = phase, .termination_grace = absl::Seconds(10)}; }

TEST(ReconcileTest, RankZeroIsStartedFirstAndGivesTheOthersTheirAddress) {
  const AttemptObservation observed{.ranks = {Rank(1, Life::kAbsent), Rank(0, Life::kAbsent)}};
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow),
              ElementsAre(Step{StepKind::kStartRank, 0}, Step{StepKind::kStartRank, 1}));
}

TEST(ReconcileTest, WithoutRankZeroHereTheAddressIsAwaited) {
  AttemptObservation observed{.ranks = {Rank(2, Life::kAbsent), Rank(3, Life::kAbsent)}};
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow), IsEmpty());
  observed.rendezvous_known = true;
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow),
              ElementsAre(Step{StepKind::kStartRank, 2}, Step{StepKind::kStartRank, 3}));
}

TEST(ReconcileTest, AnEndedRankIsNeverStartedAgain) {
  const AttemptObservation observed{.ranks = {Rank(0, Life::kEnded), Rank(1, Life::kAlive)}};
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow), IsEmpty());
}

TEST(ReconcileTest, NothingIsTouchedBeforeTheCoordinatorHasSpoken) {
  const AttemptObservation observed{.ranks = {Rank(0, Life::kAlive), Rank(1, Life::kAbsent)},
                                    .preflight = Life::kAlive};
  EXPECT_THAT(Reconcile(Want(Phase::kUnknown), observed, absl::ZeroDuration()), IsEmpty());
}

TEST(ReconcileTest, APrimaryFaultEndsTheOthersAtOnceInEveryPhase) {
  const AttemptObservation observed{
      .ranks = {Failed(0, /*secondary=*/false, absl::ZeroDuration()), Rank(1, Life::kAlive), Rank(2, Life::kAbsent)}};
  for (const Phase phase : {Phase::kUnknown, Phase::kRun, Phase::kStopped, Phase::kReleased}) {
    EXPECT_THAT(Reconcile(Want(phase), observed, kNow), ElementsAre(Step{StepKind::kKill, 1, KillReason::kPeerFault}));
  }
}

TEST(ReconcileTest, ASecondaryFaultWaitsForTheRealOne) {
  AttemptObservation observed{.ranks = {Failed(0, /*secondary=*/true, absl::Milliseconds(100)), Rank(1, Life::kAlive)}};
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow), IsEmpty());
  observed.ranks[0].ended_at = kNow - absl::Milliseconds(500);
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow),
              ElementsAre(Step{StepKind::kKill, 1, KillReason::kPeerFault}));
}

TEST(ReconcileTest, NoRankIsStartedAfterAFault) {
  const AttemptObservation observed{
      .ranks = {Failed(0, /*secondary=*/true, absl::Milliseconds(1)), Rank(1, Life::kAbsent)},
      .rendezvous_known = true};
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow), IsEmpty());
}

TEST(ReconcileTest, StoppedMeansTermThenKill) {
  AttemptObservation observed{.ranks = {Rank(0, Life::kAlive), Rank(1, Life::kEnded), Rank(2, Life::kAbsent)}};
  EXPECT_THAT(Reconcile(Want(Phase::kStopped), observed, kNow), ElementsAre(Step{StepKind::kTerminate, 0}));
  observed.ranks[0].terminated_at = kNow - absl::Seconds(9);
  EXPECT_THAT(Reconcile(Want(Phase::kStopped), observed, kNow), IsEmpty());
  observed.ranks[0].terminated_at = kNow - absl::Seconds(10);
  EXPECT_THAT(Reconcile(Want(Phase::kStopped), observed, kNow),
              ElementsAre(Step{StepKind::kKill, 0, KillReason::kAsked}));
}

TEST(ReconcileTest, WithoutAGraceStoppedMeansKill) {
  AttemptDesire desire = Want(Phase::kStopped);
  desire.termination_grace = absl::ZeroDuration();
  const AttemptObservation observed{.ranks = {Rank(0, Life::kAlive)}};
  EXPECT_THAT(Reconcile(desire, observed, kNow), ElementsAre(Step{StepKind::kKill, 0, KillReason::kAsked}));
}

TEST(ReconcileTest, ReleaseKillsAndThenForgets) {
  AttemptObservation observed{.ranks = {Rank(0, Life::kAlive), Rank(1, Life::kEnded)}, .preflight = Life::kAlive};
  EXPECT_THAT(Reconcile(Want(Phase::kReleased), observed, kNow),
              UnorderedElementsAre(Step{StepKind::kKill, 0, KillReason::kAsked},
                                   Step{StepKind::kKillPreflight, -1, KillReason::kAsked}));
  observed.preflight = Life::kEnded;
  observed.ranks[0].life = Life::kEnded;
  EXPECT_THAT(Reconcile(Want(Phase::kReleased), observed, kNow), ElementsAre(Step{StepKind::kRelease}));
}

TEST(ReconcileTest, AnExpiredLeaseKillsWhateverIsWanted) {
  AttemptDesire desire = Want(Phase::kRun);
  desire.lease_expired = true;
  const AttemptObservation observed{.ranks = {Rank(0, Life::kAlive), Rank(1, Life::kAbsent)}, .rendezvous_known = true};
  EXPECT_THAT(Reconcile(desire, observed, kNow), ElementsAre(Step{StepKind::kKill, 0, KillReason::kLease}));
}

TEST(ReconcileTest, AnAgentThatEndsStartsNothing) {
  AttemptDesire desire = Want(Phase::kRun);
  desire.may_start = false;
  EXPECT_THAT(Reconcile(desire, {.ranks = {Rank(0, Life::kAbsent)}}, kNow), IsEmpty());
  desire.phase = Phase::kPreflight;
  EXPECT_THAT(Reconcile(desire, {}, kNow), IsEmpty());
}

TEST(ReconcileTest, AWorkerThatStaysAfterItsLastWordIsEnded) {
  AttemptObservation observed{.ranks = {Rank(0, Life::kAlive)}};
  observed.ranks[0].said_outcome_at = kNow - kExitTimeout + absl::Seconds(1);
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow), IsEmpty());
  observed.ranks[0].said_outcome_at = kNow - kExitTimeout;
  EXPECT_THAT(Reconcile(Want(Phase::kRun), observed, kNow),
              ElementsAre(Step{StepKind::kKill, 0, KillReason::kLingers}));
}

TEST(ReconcileTest, PreflightRunsOnceAndHasADeadline) {
  AttemptObservation observed;
  EXPECT_THAT(Reconcile(Want(Phase::kPreflight), observed, kNow), ElementsAre(Step{StepKind::kStartPreflight}));
  observed.preflight = Life::kAlive;
  observed.preflight_started_at = kNow - absl::Minutes(9);
  EXPECT_THAT(Reconcile(Want(Phase::kPreflight), observed, kNow), IsEmpty());
  observed.preflight_started_at = kNow - absl::Minutes(10);
  EXPECT_THAT(Reconcile(Want(Phase::kPreflight), observed, kNow),
              ElementsAre(Step{StepKind::kKillPreflight, -1, KillReason::kTimeout}));
  observed.preflight = Life::kEnded;
  EXPECT_THAT(Reconcile(Want(Phase::kPreflight), observed, kNow), IsEmpty());
  // Refused before it could run.
  EXPECT_THAT(Reconcile(Want(Phase::kPreflight), {.preflight_result = true}, kNow), IsEmpty());
}

// Whatever is observed, carrying out the steps ends: nothing lives when nothing is wanted.
TEST(ReconcileTest, EveryStateComesToRestWithoutProcesses) {
  for (int bits = 0; bits < 81; ++bits) {
    AttemptObservation observed;
    int rest = bits;
    for (int rank = 0; rank < 4; ++rank, rest /= 3) observed.ranks.push_back(Rank(rank, static_cast<Life>(rest % 3)));
    absl::Duration now = kNow;
    bool released = false;
    for (int turn = 0; turn < 10 && !released; ++turn, now += absl::Seconds(5)) {
      for (const Step& step : Reconcile(Want(Phase::kReleased), observed, now)) {
        ASSERT_NE(step.kind, StepKind::kStartRank);
        if (step.kind == StepKind::kKill) observed.ranks[static_cast<size_t>(step.rank)].life = Life::kEnded;
        released = released || step.kind == StepKind::kRelease;
      }
    }
    EXPECT_TRUE(released) << bits;
  }
}

}  // namespace
}  // namespace slipway::worker::agent
