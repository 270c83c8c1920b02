#include "worker/agent/rank_fault.h"

#include <signal.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slipway::worker::agent {
namespace {

using slipway::v1::Cause;
using ::testing::HasSubstr;

RankEnd Signalled(int signal) {
  RankEnd end;
  end.record.emplace();
  end.record->set_signalled(true);
  end.record->set_signal(signal);
  end.report.set_rank(3);
  end.report.set_step(41);
  end.report.set_phase("step");
  end.ended = absl::FromUnixSeconds(1000);
  return end;
}

RankEnd Exited(int code) {
  RankEnd end = Signalled(0);
  end.record->set_signalled(false);
  end.record->set_exited(true);
  end.record->set_exit_code(code);
  return end;
}

TEST(JudgeTest, SignalsFromOutsideAndCrashesAreDifferentClasses) {
  EXPECT_EQ(Judge(Signalled(SIGKILL)).cause.cause_class(), slipway::v1::CAUSE_CLASS_PROCESS_KILLED);
  EXPECT_EQ(Judge(Signalled(SIGTERM)).cause.cause_class(), slipway::v1::CAUSE_CLASS_PROCESS_KILLED);
  for (const int signal : {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL}) {
    const RankVerdict verdict = Judge(Signalled(signal));
    EXPECT_EQ(verdict.outcome, slipway::v1::RANK_OUTCOME_FAULT);
    EXPECT_EQ(verdict.cause.cause_class(), slipway::v1::CAUSE_CLASS_CRASH);
    EXPECT_EQ(verdict.cause.signal(), signal);
    EXPECT_EQ(verdict.cause.rank(), 3);
    EXPECT_EQ(verdict.cause.step(), 41);
    EXPECT_EQ(verdict.cause.phase(), "step");
    EXPECT_EQ(verdict.cause.time().seconds(), 1000);
    EXPECT_FALSE(verdict.cause.secondary());
  }
}

TEST(JudgeTest, AKillByTheKernelForMemoryIsOom) {
  RankEnd end = Signalled(SIGKILL);
  end.out_of_memory = true;
  EXPECT_EQ(Judge(end).cause.cause_class(), slipway::v1::CAUSE_CLASS_OOM);
  end = Signalled(SIGSEGV);
  end.out_of_memory = true;
  EXPECT_EQ(Judge(end).cause.cause_class(), slipway::v1::CAUSE_CLASS_CRASH);
}

TEST(JudgeTest, TheWorkersWordWinsOverItsExitCode) {
  RankEnd end = Exited(1);
  end.record->set_outcome(slipway::v1::RANK_OUTCOME_FAULT);
  end.record->mutable_cause()->set_cause_class(slipway::v1::CAUSE_CLASS_NUMERIC);
  end.record->mutable_cause()->set_message("10 steps in a row were not finite");
  const Cause cause = Judge(end).cause;
  EXPECT_EQ(cause.cause_class(), slipway::v1::CAUSE_CLASS_NUMERIC);
  EXPECT_EQ(cause.message(), "10 steps in a row were not finite");
  EXPECT_EQ(cause.exit_code(), 1);
}

TEST(JudgeTest, CompletedAndStoppedStayWhateverBecameOfTheProcess) {
  RankEnd end = Signalled(SIGKILL);
  end.killed = KillReason::kLingers;
  end.record->set_outcome(slipway::v1::RANK_OUTCOME_COMPLETED);
  EXPECT_EQ(Judge(end).outcome, slipway::v1::RANK_OUTCOME_COMPLETED);
  end.record->clear_outcome();
  end.report.set_outcome(slipway::v1::RANK_OUTCOME_STOPPED);  // its outcome file was lost
  EXPECT_EQ(Judge(end).outcome, slipway::v1::RANK_OUTCOME_STOPPED);
}

TEST(JudgeTest, LeavingWithoutAWordIsACrash) {
  EXPECT_EQ(Judge(Exited(0)).cause.cause_class(), slipway::v1::CAUSE_CLASS_CRASH);
  EXPECT_THAT(Judge(Exited(0)).cause.message(), HasSubstr("before its work was done"));
  EXPECT_EQ(Judge(Exited(17)).cause.exit_code(), 17);
}

TEST(JudgeTest, WhatWeKilledIsSecondary) {
  RankEnd end = Signalled(SIGKILL);
  end.killed = KillReason::kPeerFault;
  const Cause cause = Judge(end).cause;
  EXPECT_EQ(cause.cause_class(), slipway::v1::CAUSE_CLASS_OPERATOR);
  EXPECT_TRUE(cause.secondary());
  // But a fault of its own that it could still name is not.
  end.record->set_outcome(slipway::v1::RANK_OUTCOME_FAULT);
  end.record->mutable_cause()->set_cause_class(slipway::v1::CAUSE_CLASS_DATA);
  EXPECT_FALSE(Judge(end).cause.secondary());
}

TEST(JudgeTest, LostPeersAreSecondary) {
  for (const char* text :
       {"[enforce fail at pair.cc:547] Connection closed by peer [127.0.0.1]:15275", "read: Connection reset by peer",
        "Failed to recv, got 0 bytes. Connection was likely closed", "Application timeout caused pair closure",
        "NCCL error: ncclRemoteError"}) {
    RankEnd end = Exited(1);
    end.record->set_outcome(slipway::v1::RANK_OUTCOME_FAULT);
    end.record->mutable_cause()->set_message(text);
    EXPECT_TRUE(Judge(end).cause.secondary()) << text;
    EXPECT_EQ(Judge(end).cause.cause_class(), slipway::v1::CAUSE_CLASS_NETWORK) << text;
  }
  EXPECT_FALSE(IsPeerLoss("the disk is full"));
}

TEST(JudgeTest, WithoutAnExitRecordTheShimDied) {
  RankEnd end;
  EXPECT_EQ(Judge(end).cause.cause_class(), slipway::v1::CAUSE_CLASS_PROCESS_KILLED);
  EXPECT_THAT(Judge(end).cause.message(), HasSubstr("shim"));
  end.machine_restarted = true;
  EXPECT_EQ(Judge(end).cause.cause_class(), slipway::v1::CAUSE_CLASS_NODE_LOST);
}

TEST(JudgeTest, AWorkerThatCouldNotBeStartedIsOurFault) {
  RankEnd end;
  end.record.emplace();
  end.record->set_spawn_failed(true);
  end.record->set_spawn_error("starting /opt/slipway-worker: Permission denied");
  EXPECT_EQ(Judge(end).cause.cause_class(), slipway::v1::CAUSE_CLASS_INTERNAL);
  EXPECT_THAT(Judge(end).cause.message(), HasSubstr("/opt/slipway-worker"));
}

TEST(JudgeTest, TheLastCollectiveIsNamed) {
  RankEnd end = Signalled(SIGKILL);
  end.ended_monotonic = absl::Seconds(12);
  end.collective = link::CollectiveRecord{
      .group = "dp", .operation = "all_reduce", .sequence = 9, .start_monotonic = absl::Seconds(10)};
  EXPECT_EQ(Judge(end).cause.collective(), "dp all_reduce #9, 2.0 s");
}

}  // namespace
}  // namespace slipway::worker::agent
