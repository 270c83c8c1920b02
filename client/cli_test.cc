// Commands that talk to a server.
#include "client/cli.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/exit_code.h"
#include "client/format.h"
#include "tests/support/cli_fixture.h"
#include "tests/support/fake_server.h"

namespace slipway::client {
namespace {

using testing::Answers;
using testing::CliTest;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kJobFile;
using testing::MakeJob;
using testing::Ran;
using testing::RichStatus;

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
  EXPECT_EQ(ran.err,
            "error: the job has 1 fault\na.yaml:5:64: training.seq_length: 8192: above what the model takes\n");
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

TEST_F(CliTest, DryRunSaysWhenTheJobWouldWait) {
  v1::ListNodesResponse nodes;
  Serve({.create_job = [](const v1::CreateJobRequest&, v1::CreateJobResponse*) { return grpc::Status::OK; },
         .list_nodes =
             [&](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
               *response = nodes;
               return grpc::Status::OK;
             }});
  WriteFile("a.yaml", kJobFile);
  const auto warning = [&](const std::vector<std::string>& sets) {
    std::vector<std::string> arguments = {"jobs", "submit", "-f", "a.yaml", "--dry-run"};
    for (const std::string& set : sets) arguments.insert(arguments.end(), {"--set", set});
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.code, 0) << ran.err;
    const size_t at = ran.err.find("warning: ");
    return at == std::string::npos ? "" : ran.err.substr(at);
  };
  EXPECT_EQ(warning({}),
            "warning: the job has 1 rank (parallelism.device auto) and no node has a CPU slot: it would wait "
            "until such a node joins\n");
  v1::Node* node = nodes.add_nodes();
  node->set_state(v1::NODE_STATE_CONNECTED);
  for (int i = 0; i < 2; ++i) node->add_slots()->set_kind(v1::DEVICE_KIND_CPU);
  EXPECT_EQ(warning({}), "");
  EXPECT_EQ(warning({"parallelism.data_parallel_size=2"}), "");
  EXPECT_THAT(warning({"parallelism.data_parallel_size=4"}),
              HasSubstr("the job has 4 ranks (parallelism.device auto) and all nodes together have 2 CPU slots"));
  EXPECT_THAT(warning({"parallelism.device=cuda"}), HasSubstr("(parallelism.device cuda) and no node has a GPU slot"));
  node->mutable_slots(0)->set_job_id("job-9");
  EXPECT_THAT(warning({"parallelism.data_parallel_size=2"}), HasSubstr("1 of the 2 CPU slots are free now"));
  const Ran json = Run({"jobs", "submit", "-f", "a.yaml", "--dry-run", "-o", "json"});
  const Json found = Json::parse(json.out);
  EXPECT_EQ(found["spec"]["name"], "tiny");
  EXPECT_EQ(found["plan"]["steps"], 100);
  EXPECT_EQ(found["server"]["accepts"], true);
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
  EXPECT_EQ(Json::parse(Run({"version", "-o", "json"}).out)["server"]["version"], "0.0.0-other");
  const Ran alone = Run({"version", "--server", "127.0.0.1:1"});
  EXPECT_EQ(alone.code, 0);
  EXPECT_THAT(alone.out, HasSubstr("\nserver: not reachable\n"));
  EXPECT_THAT(alone.err, HasSubstr("no answer from a slipwayd at 127.0.0.1:1"));
  const Json json = Json::parse(Run({"version", "--server", "127.0.0.1:1", "-o", "json"}).out);
  EXPECT_EQ(json["server"]["reachable"], false);
  EXPECT_EQ(Run({"jobs", "events", "job-1", "-o", "name"}).code, kExitUsage);
}

}  // namespace
}  // namespace slipway::client
