// Commands that talk to a server.
#include "client/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/exit_code.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/fake_server.h"

namespace slipway::client {
namespace {

using testing::CliTest;
using ::testing::ElementsAre;
using testing::FakeBehavior;
using ::testing::HasSubstr;
using testing::kJobFile;
using testing::Ran;
using testing::RichStatus;
using ::testing::StartsWith;
using testing::Unary;

v1::Job MakeJob(v1::JobState state, int64_t step = 0) {
  v1::Job job;
  job.set_id("job-1");
  job.set_name("tiny");
  job.set_state(state);
  job.mutable_progress()->set_train_iters(3);
  job.mutable_progress()->set_step(step);
  return job;
}

Unary<v1::GetJobRequest, v1::GetJobResponse> Answers(v1::Job job) {
  return [job](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = job;
    return grpc::Status::OK;
  };
}

TEST_F(CliTest, WrongUsageExitsWith2AndTheNearestCommand) {
  EXPECT_EQ(Run({"--help"}).code, 0);
  EXPECT_THAT(Run({"--help"}).out, HasSubstr("Exit codes:"));
  EXPECT_EQ(Run({}).code, kExitUsage);
  const Ran ran = Run({"jobs", "lst"});
  EXPECT_EQ(ran.code, kExitUsage);
  EXPECT_EQ(ran.err, "error: there is no command `lst`; did you mean `list`?\n");
  EXPECT_EQ(Run({"jobs", "list", "-o", "xml"}).code, kExitUsage);
  EXPECT_EQ(Run({"jobs", "describe"}).code, kExitUsage);
}

TEST_F(CliTest, NoServerExitsWith6) {
  const Ran ran = Run({"jobs", "list", "--server", "127.0.0.1:1", "--request-timeout", "0.3"});
  EXPECT_EQ(ran.code, kExitUnavailable);
  EXPECT_EQ(ran.out, "");
  EXPECT_THAT(ran.err, HasSubstr("no answer from a slipwayd at 127.0.0.1:1"));
}

TEST_F(CliTest, SubmitsWithOverridesAndAbsolutePaths) {
  v1::CreateJobRequest seen;
  Serve({.create_job = [&](const v1::CreateJobRequest& request, v1::CreateJobResponse* response) {
    seen = request;
    *response->mutable_job() = MakeJob(v1::JOB_STATE_QUEUED);
    return grpc::Status::OK;
  }});
  WriteFile("jobs/a.yaml", absl::StrCat(kJobFile, "checkpoint: {path: out}\n"));
  const Ran ran = Run({"jobs", "submit", "-f", "jobs/a.yaml", "--set", "training.seed=7", "--set",
                       "dataset.cache_path=cache", "--set", "optimizer.lr=null", "--set", "optimizer.lr=2e-3"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "job-1\n");
  EXPECT_EQ(seen.spec().training().seed(), 7);
  EXPECT_EQ(seen.spec().optimizer().lr(), 2e-3);
  EXPECT_EQ(seen.spec().checkpoint().path(), directory_ + "/jobs/out");  // beside the job file
  EXPECT_EQ(seen.spec().dataset().cache_path(), directory_ + "/cache");  // where the user stands
  EXPECT_EQ(seen.request_id().size(), 36u);
  EXPECT_FALSE(seen.validate_only());
  EXPECT_EQ(Run({"jobs", "submit", "-f", "jobs/a.yaml", "--request-id", "mine", "-o", "name"}).out, "job-1\n");
  EXPECT_EQ(seen.request_id(), "mine");
}

TEST_F(CliTest, AFaultyJobIsNotSent) {
  int calls = 0;
  Serve({.create_job = [&](const v1::CreateJobRequest&, v1::CreateJobResponse*) {
    ++calls;
    return grpc::Status::OK;
  }});
  WriteFile("a.yaml", "name: A_b\ntraining: {sed: 1}\n");
  for (const char* flag : {"--watch", "--dry-run"}) {
    const Ran ran = Run({"jobs", "submit", "-f", "a.yaml", flag});
    EXPECT_EQ(ran.code, kExitUsage);
    EXPECT_THAT(ran.err, HasSubstr("a.yaml:1:7: name = A_b: must have 1 to 63"));
    EXPECT_THAT(ran.err, HasSubstr("a.yaml:2:12: training.sed: unknown key; did you mean `seed`?"));
    EXPECT_EQ(ran.out, "");
  }
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(Run({"jobs", "submit", "-f", "none.yaml"}).code, kExitNotFound);
}

TEST_F(CliTest, DryRunPrintsThePlanAndAsksTheServer) {
  bool validate_only = false;
  Serve({.create_job = [&](const v1::CreateJobRequest& request, v1::CreateJobResponse*) {
    validate_only = request.validate_only();
    return grpc::Status::OK;
  }});
  WriteFile("a.yaml", kJobFile);
  Ran ran = Run({"jobs", "submit", "-f", "a.yaml", "--dry-run"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_TRUE(validate_only);
  EXPECT_THAT(ran.out, HasSubstr("parameters "));
  EXPECT_THAT(ran.out, HasSubstr("100 (400 samples)"));
  EXPECT_THAT(ran.err, HasSubstr("the server accepts the job"));
  server_.reset();
  ran = Run({"jobs", "submit", "-f", "a.yaml", "--dry-run", "--server", "127.0.0.1:1"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("not checked by a server"));
}

TEST_F(CliTest, TheServersDetailsAreReadable) {
  google::rpc::BadRequest bad;
  auto* violation = bad.add_field_violations();
  violation->set_field("spec.training.seq_length");
  violation->set_description("8192: above what the model takes");
  google::rpc::ErrorInfo info;
  info.set_reason("INVALID_SPEC");
  Serve({.create_job =
             [&](const v1::CreateJobRequest&, v1::CreateJobResponse*) {
               return RichStatus(grpc::StatusCode::INVALID_ARGUMENT, "the job has 1 fault", info, bad);
             },
         .pause_job =
             [&](const v1::PauseJobRequest&, v1::PauseJobResponse*) {
               return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "the job has ended");
             }});
  WriteFile("a.yaml", kJobFile);
  const Ran ran = Run({"jobs", "submit", "-f", "a.yaml"});
  EXPECT_EQ(ran.code, kExitUsage);
  EXPECT_THAT(ran.err, StartsWith("error: a.yaml, as the server sees it, has 1 fault:\na.yaml:"));
  EXPECT_THAT(ran.err, HasSubstr("training.seq_length: 8192: above what the model takes\n"));
  EXPECT_EQ(Run({"jobs", "submit", "-f", "a.yaml", "--dry-run"}).err, ran.err);
  EXPECT_EQ(Run({"jobs", "pause", "job-1"}).code, kExitConflict);
}

TEST_F(CliTest, RetriesUnavailableWithTheSameRequestId) {
  std::vector<std::string> ids;
  Serve({.cancel_job = [&](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    ids.push_back(request.request_id());
    if (ids.size() < 3) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "restarting");
    *response->mutable_job() = MakeJob(v1::JOB_STATE_CANCELLING);
    return grpc::Status::OK;
  }});
  const Ran ran = Run({"jobs", "cancel", "job-1"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "job-1 CANCELLING\n");
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[0], ids[1]);
  EXPECT_EQ(ids[0], ids[2]);
}

TEST_F(CliTest, ListsPagesInEveryFormat) {
  Serve({.list_jobs = [&](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    *response->add_jobs() = MakeJob(request.page_token().empty() ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_FAILED, 2);
    if (request.page_token().empty()) response->set_next_page_token("2");
    return grpc::Status::OK;
  }});
  const Ran ran = Run({"jobs", "list"});
  EXPECT_THAT(ran.out, HasSubstr("ID     NAME  STATE    STEP"));
  EXPECT_THAT(ran.out, HasSubstr("job-1  tiny  RUNNING  2/3"));
  EXPECT_THAT(ran.out, HasSubstr("job-1  tiny  FAILED   2/3"));
  EXPECT_EQ(Run({"jobs", "list", "-o", "name"}).out, "job-1\njob-1\n");
  EXPECT_EQ(nlohmann::json::parse(Run({"jobs", "list", "-o", "json"}).out)["jobs"].size(), 2u);
  EXPECT_THAT(Run({"jobs", "list", "-o", "yaml"}).out, HasSubstr("    state: JOB_STATE_RUNNING\n"));
  const Ran limited = Run({"jobs", "list", "--limit", "1", "-o", "name"});
  EXPECT_EQ(limited.out, "job-1\n");
  EXPECT_THAT(limited.err, HasSubstr("more with --limit"));
  EXPECT_EQ(Run({"jobs", "list", "--state", "bad"}).code, kExitUsage);
}

TEST_F(CliTest, ResumeSendsPatchAndResets) {
  v1::ResumeJobRequest seen;
  Serve({.resume_job = [&](const v1::ResumeJobRequest& request, v1::ResumeJobResponse* response) {
    seen = request;
    *response->mutable_job() = MakeJob(v1::JOB_STATE_QUEUED);
    return grpc::Status::OK;
  }});
  EXPECT_EQ(Run({"jobs", "resume", "job-1", "--set", "parallelism.data_parallel_size=1", "--set",
                 "scheduler.lr_decay_iters=null"})
                .code,
            0);
  EXPECT_EQ(seen.spec_patch().parallelism().data_parallel_size(), 1);
  EXPECT_THAT(seen.clear_paths(), ElementsAre("scheduler.lr_decay_iters"));
  EXPECT_EQ(Run({"jobs", "resume", "job-1", "--set", "x=1"}).code, kExitUsage);
}

TEST_F(CliTest, NotFoundExitsWith3) {
  Serve({.get_job = [](const v1::GetJobRequest&, v1::GetJobResponse*) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no job nope");
  }});
  for (const char* verb : {"describe", "watch", "wait", "logs"})
    EXPECT_EQ(Run({"jobs", verb, "nope"}).code, kExitNotFound) << verb;
}

TEST_F(CliTest, WatchSurvivesARestartOfTheServer) {
  std::atomic<int> connections{0};
  std::atomic<int64_t> resumed_after{-1}, resumed_from{-1};
  FakeBehavior behavior;
  behavior.get_job = Answers(MakeJob(v1::JOB_STATE_RUNNING));
  behavior.watch_jobs = [&](grpc::ServerContext*, const v1::WatchJobsRequest& request,
                            grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
    v1::WatchJobsResponse response;
    if (connections++ == 0) {
      *response.mutable_snapshot() = MakeJob(v1::JOB_STATE_RUNNING);
      writer->Write(response);
      response.mutable_bookmark()->set_revision(17);
      writer->Write(response);
      return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
    }
    resumed_after = request.after_revision();
    response.mutable_event()->set_revision(18);
    response.mutable_event()->set_type("Succeeded");
    *response.mutable_job() = MakeJob(v1::JOB_STATE_SUCCEEDED, 3);
    writer->Write(response);
    return grpc::Status::OK;
  };
  std::atomic<int> metric_streams{0};
  behavior.stream_metrics = [&](grpc::ServerContext*, const v1::StreamMetricsRequest& request,
                                grpc::ServerWriter<v1::StreamMetricsResponse>* writer) {
    const bool first = metric_streams++ == 0;
    if (!first) resumed_from = request.from_step();
    for (int64_t step = first ? 1 : 3; step <= (first ? 2 : 3); ++step) {
      v1::StreamMetricsResponse response;
      response.mutable_record()->mutable_step()->set_step(step);
      response.mutable_record()->mutable_step()->set_loss(2.5);
      writer->Write(response);
    }
    return first ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down") : grpc::Status::OK;
  };
  Serve(behavior);
  const Ran ran = Run({"jobs", "watch", "job-1"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(resumed_after, 17);
  EXPECT_GE(resumed_from, 3);
  EXPECT_THAT(ran.out, HasSubstr("job-1 RUNNING\n"));
  EXPECT_THAT(ran.out, HasSubstr("step 1/3  loss 2.5"));
  EXPECT_THAT(ran.out, HasSubstr("connection lost, trying again"));
  EXPECT_THAT(ran.out, HasSubstr("connected again"));
  EXPECT_THAT(ran.out, HasSubstr("Succeeded"));
  EXPECT_THAT(ran.out, HasSubstr("step 3/3"));
  EXPECT_THAT(ran.err, HasSubstr("job-1 SUCCEEDED"));
}

// The process behind the address is another one: the connection itself is gone.
TEST_F(CliTest, WatchFindsANewServerAtTheSameAddress) {
  FakeBehavior first;
  first.get_job = Answers(MakeJob(v1::JOB_STATE_RUNNING));
  std::atomic<bool> watching{false};
  first.watch_jobs = [&](grpc::ServerContext* context, const v1::WatchJobsRequest&,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
    v1::WatchJobsResponse response;
    *response.mutable_snapshot() = MakeJob(v1::JOB_STATE_RUNNING);
    writer->Write(response);
    watching = true;
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  Serve(first);
  const int port = server_->port();
  absl::Time restarted, seen;
  std::thread restart([&] {
    while (!watching) absl::SleepFor(absl::Milliseconds(5));
    server_.reset();
    absl::SleepFor(absl::Seconds(2));
    FakeBehavior second;
    second.watch_jobs = [&](grpc::ServerContext*, const v1::WatchJobsRequest&,
                            grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
      seen = absl::Now();
      v1::WatchJobsResponse response;
      *response.mutable_snapshot() = MakeJob(v1::JOB_STATE_CANCELLED);
      writer->Write(response);
      return grpc::Status::OK;
    };
    restarted = absl::Now();
    Serve(second, port);
  });
  EXPECT_EQ(Run({"jobs", "watch", "job-1", "--server", absl::StrCat("127.0.0.1:", port)}).code, kExitJobCancelled);
  restart.join();
  EXPECT_LT(seen - restarted, absl::Seconds(15));
  RecordProperty("reconnect_ms", static_cast<int>(absl::ToInt64Milliseconds(seen - restarted)));
}

TEST_F(CliTest, WatchTakesANewSnapshotWhenEventsAreGone) {
  std::atomic<int> connections{0};
  FakeBehavior behavior;
  behavior.get_job = Answers(MakeJob(v1::JOB_STATE_RUNNING));
  behavior.watch_jobs = [&](grpc::ServerContext*, const v1::WatchJobsRequest& request,
                            grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
    v1::WatchJobsResponse response;
    const int connection = connections++;
    if (request.after_revision() > 0) return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "compacted");
    *response.mutable_snapshot() = MakeJob(connection == 0 ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_FAILED);
    writer->Write(response);
    response.mutable_bookmark()->set_revision(5);
    writer->Write(response);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going down");
  };
  Serve(behavior);
  EXPECT_EQ(Run({"jobs", "watch", "job-1"}).code, kExitJobFailed);
}

TEST_F(CliTest, CtrlCDetaches) {
  FakeBehavior behavior;
  behavior.get_job = Answers(MakeJob(v1::JOB_STATE_RUNNING));
  behavior.watch_jobs = [&](grpc::ServerContext* context, const v1::WatchJobsRequest&,
                            grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
    v1::WatchJobsResponse response;
    *response.mutable_snapshot() = MakeJob(v1::JOB_STATE_RUNNING);
    writer->Write(response);
    interrupted_ = true;
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  Serve(behavior);
  const Ran ran = Run({"jobs", "watch", "job-1"});
  EXPECT_EQ(ran.code, kExitInterrupted);
  EXPECT_THAT(ran.err, HasSubstr("detached; the job goes on. Watch it again with: slipway jobs watch job-1"));
}

TEST_F(CliTest, WaitEndsAtAStateOrTellsThatItCannotCome) {
  std::vector<v1::JobState> states = {v1::JOB_STATE_RUNNING, v1::JOB_STATE_PAUSED};
  FakeBehavior behavior;
  behavior.get_job = Answers(MakeJob(v1::JOB_STATE_RUNNING));
  behavior.watch_jobs = [&](grpc::ServerContext* context, const v1::WatchJobsRequest&,
                            grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
    for (const v1::JobState state : states) {
      v1::WatchJobsResponse response;
      *response.mutable_snapshot() = MakeJob(state);
      writer->Write(response);
    }
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  Serve(behavior);
  Ran ran = Run({"jobs", "wait", "job-1", "--for=paused"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "job-1 PAUSED\n");
  EXPECT_EQ(Run({"jobs", "wait", "job-1", "--timeout", "0.2"}).code, kExitUnavailable);
  EXPECT_EQ(Run({"jobs", "wait", "job-1", "--for", "sleeping"}).code, kExitUsage);
  states = {v1::JOB_STATE_FAILED};
  EXPECT_EQ(Run({"jobs", "wait", "job-1", "--for=RUNNING"}).code, kExitJobFailed);
  EXPECT_EQ(Run({"jobs", "wait", "job-1"}).code, kExitJobFailed);
  states = {v1::JOB_STATE_CANCELLED};
  EXPECT_EQ(Run({"jobs", "wait", "job-1"}).code, kExitJobCancelled);
  states = {v1::JOB_STATE_SUCCEEDED};
  EXPECT_EQ(Run({"jobs", "wait", "job-1", "--for=PAUSED"}).code, kExitConflict);
}

TEST_F(CliTest, LogsAreTheBytesAsPrinted) {
  v1::StreamLogsRequest seen;
  v1::Job job = MakeJob(v1::JOB_STATE_FAILED);
  job.add_attempts()->set_world_size(2);
  Serve({.get_job = Answers(job),
         .stream_logs = [&](grpc::ServerContext*, const v1::StreamLogsRequest& request,
                            grpc::ServerWriter<v1::StreamLogsResponse>* writer) {
           seen = request;
           for (const auto& [rank, data] :
                std::vector<std::pair<int, std::string>>{{0, "a\nb"}, {1, "c\n"}, {0, "\xff"}}) {
             if (request.has_rank() && request.rank() != rank) continue;
             v1::StreamLogsResponse response;
             response.set_rank(rank);
             response.set_data(data);
             writer->Write(response);
           }
           return grpc::Status::OK;
         }});
  Ran ran = Run({"jobs", "logs", "job-1"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.out, "[rank 0] a\n[rank 0] b\n[rank 1] c\n[rank 0] \xff");
  ran = Run({"jobs", "logs", "job-1", "--rank", "0", "-f", "--tail", "5", "--attempt", "all"});
  EXPECT_EQ(ran.out, "a\nb\xff");
  EXPECT_EQ(ran.code, kExitJobFailed);  // -f answers with the job's end
  EXPECT_EQ(seen.epoch(), -1);
  EXPECT_EQ(seen.tail_lines(), 5);
  EXPECT_TRUE(seen.follow());
  EXPECT_EQ(Run({"jobs", "logs", "job-1", "--attempt", "x"}).code, kExitUsage);
}

TEST_F(CliTest, CheckpointWaitsForItsOwnRequest) {
  v1::Job job = MakeJob(v1::JOB_STATE_RUNNING);
  v1::Checkpoint* checkpoint = job.add_checkpoints();
  checkpoint->set_path("/c/step-7");
  checkpoint->set_request_number(4);
  Serve({.get_job = Answers(job),
         .checkpoint_job = [&](const v1::CheckpointJobRequest&, v1::CheckpointJobResponse* response) {
           *response->mutable_job() = job;
           response->set_request_number(4);
           return grpc::Status::OK;
         }});
  EXPECT_EQ(Run({"jobs", "checkpoint", "job-1", "--wait"}).out, "/c/step-7\n");
  EXPECT_EQ(Run({"jobs", "checkpoint", "job-1"}).out, "checkpoint request 4\n");
}

TEST_F(CliTest, ShowsMetricsEventsNodesAndCheckpoints) {
  Serve({.list_events =
             [](const v1::ListJobEventsRequest&, v1::ListJobEventsResponse* response) {
               response->add_events()->set_type("Submitted");
               return grpc::Status::OK;
             },
         .list_nodes =
             [](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
               v1::Node* node = response->add_nodes();
               node->set_id("n1");
               node->set_hostname("host\x1b[2J");
               node->set_state(v1::NODE_STATE_CONNECTED);
               node->add_slots()->set_threads(1);
               return grpc::Status::OK;
             },
         .list_checkpoints =
             [](const v1::ListCheckpointsRequest&, v1::ListCheckpointsResponse* response) {
               response->add_checkpoints()->set_path("/c/step-7");
               return grpc::Status::OK;
             },
         .query_metrics =
             [](const v1::QueryMetricsRequest& request, v1::QueryMetricsResponse* response) {
               response->add_records()->mutable_step()->set_step(request.from_step());
               return grpc::Status::OK;
             },
         .server_info =
             [](const v1::GetServerInfoRequest&, v1::GetServerInfoResponse* response) {
               response->set_version("0.0.0-other");
               return grpc::Status::OK;
             }});
  EXPECT_THAT(Run({"jobs", "events", "job-1"}).out, HasSubstr("Submitted"));
  EXPECT_THAT(Run({"nodes", "list"}).out, HasSubstr("host\\x1b[2J"));
  EXPECT_EQ(Run({"checkpoints", "list", "job-1", "-o", "name"}).out, "/c/step-7\n");
  EXPECT_THAT(Run({"jobs", "metrics", "job-1", "--from-step", "5"}).out, HasSubstr("\n5     0 "));
  const Ran version = Run({"version"});
  EXPECT_THAT(version.out, HasSubstr("server 0.0.0-other"));
  EXPECT_THAT(version.err, HasSubstr("different versions"));
}

}  // namespace
}  // namespace slipway::client
