// Commands that follow a job over time: watch, wait, logs, checkpoint.
#include "client/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/exit_code.h"
#include "client/format.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/fake_server.h"

namespace slipway::client {
namespace {

using testing::Answers;
using testing::CliTest;
using testing::FakeBehavior;
using ::testing::HasSubstr;
using testing::kJobFile;
using testing::MakeJob;
using testing::Ran;

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
  job.mutable_attempts(0)->set_epoch(1);
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
  EXPECT_EQ(seen.epoch(), 1);
  EXPECT_EQ(seen.tail_lines(), 5);
  EXPECT_TRUE(seen.follow());
  EXPECT_EQ(Run({"jobs", "logs", "job-1", "--attempt", "x"}).code, kExitUsage);
}

TEST_F(CliTest, LogsForProgramsAreARecordALine) {
  v1::Job job = MakeJob(v1::JOB_STATE_FAILED);
  job.add_attempts()->set_epoch(1);
  Serve({.get_job = Answers(job),
         .stream_logs = [](grpc::ServerContext*, const v1::StreamLogsRequest& request,
                           grpc::ServerWriter<v1::StreamLogsResponse>* writer) {
           for (const char* data : {"a\nb", "c\n\xff", ""}) {
             v1::StreamLogsResponse response;
             response.set_epoch(request.epoch());
             response.set_data(data);
             writer->Write(response);
           }
           return grpc::Status::OK;
         }});
  EXPECT_EQ(Run({"jobs", "logs", "job-1", "-o", "json"}).out,
            "{\"epoch\":1,\"rank\":0,\"line\":\"a\"}\n{\"epoch\":1,\"rank\":0,\"line\":\"bc\"}\n"
            "{\"epoch\":1,\"rank\":0,\"line\":\"\xEF\xBF\xBD\"}\n");
  EXPECT_THAT(Run({"jobs", "logs", "job-1", "-o", "yaml"}).out,
              ::testing::StartsWith("---\nepoch: 1\nrank: 0\nline: a\n---\n"));
  EXPECT_EQ(Run({"jobs", "logs", "job-1", "-o", "name"}).code, kExitUsage);
}

// Three attempts: the second died before it printed, the third had one rank only.
TEST_F(CliTest, LogsOfAllAttemptsGoOnWhereOneHasNone) {
  v1::Job job = MakeJob(v1::JOB_STATE_FAILED);
  for (int epoch = 1; epoch <= 3; ++epoch) job.add_attempts()->set_epoch(epoch);
  Serve({.get_job = Answers(job),
         .stream_logs = [](grpc::ServerContext*, const v1::StreamLogsRequest& request,
                           grpc::ServerWriter<v1::StreamLogsResponse>* writer) {
           if (request.epoch() == 3) return grpc::Status(grpc::StatusCode::NOT_FOUND, "attempt 3 has no rank 1");
           if (request.epoch() == 2) return grpc::Status::OK;
           v1::StreamLogsResponse response;
           response.set_data("one\n");
           writer->Write(response);
           return grpc::Status::OK;
         }});
  Ran ran = Run({"jobs", "logs", "job-1", "--attempt", "all", "--rank", "1"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "one\n");
  EXPECT_EQ(ran.err, "attempt 2 has no log\nattempt 3 has no rank 1\n");
  ran = Run({"jobs", "logs", "job-1", "--attempt", "3", "--rank", "1"});
  EXPECT_EQ(ran.code, kExitNotFound);
  Serve({.get_job = Answers(MakeJob(v1::JOB_STATE_QUEUED))});
  ran = Run({"jobs", "logs", "job-1"});
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.err, HasSubstr("job-1 is QUEUED and has not been started yet"));
}

TEST_F(CliTest, FollowingLogsGoesOnThroughRestarts) {
  std::atomic<int> asked{0};
  Serve({.get_job =
             [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
               const int round = asked++;  // queued, then one attempt, then a second, then the end
               *response->mutable_job() = MakeJob(round < 6 ? v1::JOB_STATE_RUNNING : v1::JOB_STATE_SUCCEEDED);
               for (int epoch = 1; epoch <= std::min(round / 2, 2); ++epoch)
                 response->mutable_job()->add_attempts()->set_epoch(epoch);
               return grpc::Status::OK;
             },
         .stream_logs =
             [](grpc::ServerContext*, const v1::StreamLogsRequest& request,
                grpc::ServerWriter<v1::StreamLogsResponse>* writer) {
               v1::StreamLogsResponse response;
               response.set_data(absl::StrCat("attempt ", request.epoch(), "\n"));
               writer->Write(response);
               return grpc::Status::OK;
             }});
  const Ran ran = Run({"jobs", "logs", "job-1", "-f", "--rank", "0"});
  EXPECT_EQ(ran.code, 0) << ran.err;
  EXPECT_EQ(ran.out, "attempt 1\nattempt 2\n");
}

// `| head -1`: these streams say no more, and must end all the same.
TEST_F(CliTest, StreamsEndWhenTheirReaderLeaves) {
  v1::Job job = MakeJob(v1::JOB_STATE_RUNNING);
  job.add_attempts()->set_epoch(1);
  const auto wait = [](grpc::ServerContext* context) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  };
  Serve({.get_job = Answers(job),
         .watch_jobs =
             [&](grpc::ServerContext* context, const v1::WatchJobsRequest&,
                 grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
               v1::WatchJobsResponse response;
               *response.mutable_snapshot() = job;
               writer->Write(response);
               return wait(context);
             },
         .stream_metrics = [&](grpc::ServerContext* context, const v1::StreamMetricsRequest&,
                               grpc::ServerWriter<v1::StreamMetricsResponse>*) { return wait(context); },
         .stream_logs =
             [&](grpc::ServerContext* context, const v1::StreamLogsRequest&,
                 grpc::ServerWriter<v1::StreamLogsResponse>* writer) {
               v1::StreamLogsResponse response;
               response.set_data("first\n");
               writer->Write(response);
               return wait(context);
             }});
  for (const char* verb : {"watch", "logs"}) {
    for (const char* format : {"table", "json", "yaml"}) {
      std::vector<std::string> arguments = {"jobs", verb, "job-1", "-o", format};
      if (verb == std::string("logs")) arguments.emplace_back("-f");
      reader_takes_lines_ = 1;
      const Ran ran = Run(arguments);
      EXPECT_EQ(ran.code, kExitReaderGone) << verb << format;
      EXPECT_EQ(ran.err, "") << verb << format;
      EXPECT_NE(ran.out, "") << verb << format;
    }
  }
  reader_takes_lines_ = 0;
  EXPECT_EQ(Run({"jobs", "wait", "job-1"}).code, kExitReaderGone);
  EXPECT_EQ(Run({"jobs", "describe", "job-1"}).code, kExitReaderGone);
  reader_gone_shows_ = false;  // a full disk
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"jobs", "describe", "job-1"}, {"jobs", "watch", "job-1"}, {"--help"}}) {
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.code, kExitError);
    EXPECT_THAT(ran.err, HasSubstr("cannot write to standard output"));
  }
}

TEST_F(CliTest, WatchingForProgramsGivesUpdates) {
  const v1::Job job = MakeJob(v1::JOB_STATE_RUNNING);
  FakeBehavior behavior;
  behavior.create_job = [&](const v1::CreateJobRequest&, v1::CreateJobResponse* response) {
    *response->mutable_job() = job;
    return grpc::Status::OK;
  };
  behavior.get_job = Answers(job);
  behavior.watch_jobs = [&](grpc::ServerContext*, const v1::WatchJobsRequest&,
                            grpc::ServerWriter<v1::WatchJobsResponse>* writer) {
    v1::WatchJobsResponse response;
    *response.mutable_snapshot() = job;
    writer->Write(response);
    response.mutable_event()->set_type("Failed");
    *response.mutable_job() = MakeJob(v1::JOB_STATE_FAILED);
    writer->Write(response);
    return grpc::Status::OK;
  };
  Serve(behavior);
  WriteFile("a.yaml", kJobFile);
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"jobs", "watch", "job-1", "-o", "json"}, {"jobs", "submit", "-f", "a.yaml", "--watch", "-o", "json"}}) {
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.code, kExitJobFailed);
    std::vector<Json> updates;
    std::istringstream lines(ran.out);
    for (std::string line; std::getline(lines, line);) updates.push_back(Json::parse(line));
    ASSERT_GE(updates.size(), 2u);
    EXPECT_EQ(updates.front()["job"]["state"], "JOB_STATE_RUNNING");
    EXPECT_EQ(updates.back()["event"]["type"], "Failed");
    EXPECT_EQ(updates.back()["job"]["state"], "JOB_STATE_FAILED");
  }
  EXPECT_EQ(Run({"jobs", "submit", "-f", "a.yaml", "--watch", "-o", "name"}).out, "job-1\n");
  EXPECT_EQ(Run({"jobs", "submit", "-f", "a.yaml", "--watch", "--dry-run"}).code, kExitUsage);
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

}  // namespace
}  // namespace slipway::client
