// JobService over real gRPC, with scripted agents. Streams are in stream_test.cc.
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "server/rpc/testing/rpc_fixture.h"
#include "tests/support/status_matchers.h"

namespace slipway::server::rpc {
namespace {

using core::testing::ScriptedAgent;
using testing::AgentClient;
using testing::DetailOf;
using ::testing::HasSubstr;
using testing::MockSpec;
using testing::ReasonOf;

using RpcTest = testing::RpcFixture;

TEST_F(RpcTest, AJobsWholeLife) {
  const std::string id = Submit("tiny", 2);
  EXPECT_EQ(id.substr(0, 4), "job-");
  EXPECT_EQ(Get(id).state_message(), "no agent is connected");
  EXPECT_EQ(Get("tiny").id(), id) << "by name";
  auto agent = Agent("n1", 2);
  v1::Job job = Await(id, v1::JOB_STATE_RUNNING);
  EXPECT_EQ(job.output_dir(), absl::StrCat("/out/default/", id));
  EXPECT_EQ(job.spec().training().seed(), 1234) << "resolved";
  EXPECT_EQ(agent->welcome().lease_seconds(), 300);

  agent->With([&](ScriptedAgent& scripted) { scripted.Commit({id, 1}, 7); });
  EXPECT_TRUE(Pause(id).ok());
  job = Await(id, v1::JOB_STATE_PAUSED);
  EXPECT_EQ(job.state_message(), "paused at step 7");
  v1::ResumeJobRequest shorter;
  shorter.set_job(id);
  shorter.mutable_spec_patch()->mutable_training()->set_train_iters(6);
  v1::ResumeJobResponse response;
  grpc::ClientContext context;
  const grpc::Status refused = server_.jobs->ResumeJob(&context, shorter, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.error_message(), "training.train_iters = 6: is below the step that the job has reached, 7");
  EXPECT_EQ(Get(id).state(), v1::JOB_STATE_PAUSED);
  EXPECT_TRUE(Resume(id, 1).ok());
  job = Await(id, v1::JOB_STATE_RUNNING);
  EXPECT_EQ(job.spec().parallelism().data_parallel_size(), 1);
  EXPECT_EQ(job.attempts(1).resumed_from_step(), 7);
  Complete(*agent, id, 2, 1);
  Await(id, v1::JOB_STATE_SUCCEEDED);
  const grpc::Status late = Pause(id);
  EXPECT_EQ(late.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(late.error_message(), HasSubstr("it is SUCCEEDED"));
  EXPECT_EQ(DetailOf<google::rpc::PreconditionFailure>(late).violations(0).subject(), id);
}

TEST_F(RpcTest, ABadSpecIsRefusedWithEveryFault) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = MockSpec("tiny");
  request.mutable_spec()->mutable_training()->set_seq_length(-1);
  request.mutable_spec()->mutable_optimizer()->clear_lr();
  v1::Job job;
  const grpc::Status status = Create(request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(status), "INVALID_SPEC");
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status).domain(), "slipway.dev");
  std::set<std::string> fields;
  const auto bad = DetailOf<google::rpc::BadRequest>(status);
  for (const auto& violation : bad.field_violations()) fields.insert(violation.field());
  EXPECT_TRUE(fields.contains("spec.training.seq_length")) << bad.ShortDebugString();
  EXPECT_TRUE(fields.contains("spec.optimizer.lr")) << bad.ShortDebugString();
}

// O12
TEST_F(RpcTest, NamesAreRefusedWithTheRuleOrKeptAsTheyAre) {
  const std::vector<std::string> refused = {
      "日本", "a b", "../x", "-rf", "", std::string(300, 'a'), "a\n", std::string("a\0b", 3), "😀", "A_b"};
  for (const std::string& name : refused) {
    v1::CreateJobRequest request;
    *request.mutable_spec() = MockSpec(name);
    v1::Job job;
    EXPECT_EQ(Create(request, &job).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << name;
  }
  EXPECT_EQ(Get(Submit("a.b")).name(), "a.b");
}

TEST_F(RpcTest, PathsOutsideOfTheAllowedRootsAreRefused) {
  server_.Stop();
  server_.server_options.submit.allowed_roots = {"/data", "/home/u"};
  server_.Start();
  v1::CreateJobRequest request;
  *request.mutable_spec() = MockSpec("tiny");
  request.mutable_spec()->mutable_checkpoint()->set_path("/data/../etc");
  v1::Job job;
  grpc::Status status = Create(request, &job);
  EXPECT_THAT(DetailOf<google::rpc::BadRequest>(status).ShortDebugString(),
              HasSubstr("allows: /data, /home/u (slipwayd --allow-root adds one)"));
  request.mutable_spec()->mutable_checkpoint()->set_path("/data/x");
  status = Create(request, &job);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(job.checkpoint_dir(), "/data/x");
}

TEST_F(RpcTest, TwoJobsThatHaveNotEndedDoNotShareACheckpointPath) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = MockSpec("first");
  request.mutable_spec()->mutable_checkpoint()->set_path("/data/x");
  request.set_request_id("first");
  v1::Job first, second;
  ASSERT_TRUE(Create(request, &first).ok());
  ASSERT_TRUE(Create(request, &first).ok()) << "the same request again";
  for (const char* path : {"/data/x", "/data/./y/../x/"}) {
    for (const bool dry : {false, true}) {
      v1::CreateJobRequest again;
      *again.mutable_spec() = MockSpec("second");
      again.mutable_spec()->mutable_checkpoint()->set_path(path);
      again.set_validate_only(dry);
      const grpc::Status status = Create(again, &second);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION) << path;
      EXPECT_EQ(ReasonOf(status), "CHECKPOINT_PATH_IN_USE");
      EXPECT_THAT(status.error_message(), HasSubstr(first.id()));
      EXPECT_THAT(status.error_message(), HasSubstr("a checkpoint.path of its own"));
    }
  }
  EXPECT_TRUE(Cancel(first.id()).ok());
  Await(first.id(), v1::JOB_STATE_CANCELLED);
  request.set_request_id("second");
  EXPECT_TRUE(Create(request, &second).ok()) << "its preflight looks at what the first one left";
}

TEST_F(RpcTest, AHeldJobWaitsForItsRelease) {
  const std::string id = Submit("tiny");
  const auto steer = [&](auto method, auto request, auto response) {
    request.set_job(id);
    grpc::ClientContext context;
    SetDeadline(context);
    return (server_.jobs.get()->*method)(&context, request, &response);
  };
  using Stub = v1::JobService::Stub;
  ASSERT_TRUE(steer(&Stub::HoldJob, v1::HoldJobRequest(), v1::HoldJobResponse()).ok());
  server_.Stop();
  server_.Start();  // it is stored
  auto agent = Agent("n1", 1);
  Await(Submit("other"), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Get(id).state_reason(), "Held");
  ASSERT_TRUE(steer(&Stub::ReleaseJob, v1::ReleaseJobRequest(), v1::ReleaseJobResponse()).ok());
  EXPECT_NE(Get(id).state_reason(), "Held");
}

TEST_F(RpcTest, ValidateOnlyMakesNoJob) {
  v1::CreateJobRequest request;
  *request.mutable_spec() = MockSpec("tiny");
  request.set_validate_only(true);
  v1::Job job;
  EXPECT_TRUE(Create(request, &job).ok());
  EXPECT_EQ(job.id(), "");
  EXPECT_EQ(job.spec().training().seed(), 1234);
  v1::ListJobsResponse list;
  grpc::ClientContext context;
  EXPECT_TRUE(server_.jobs->ListJobs(&context, {}, &list).ok());
  EXPECT_EQ(list.jobs_size(), 0);
}

// O9
TEST_F(RpcTest, ARequestIdMakesOneJob) {
  std::vector<std::thread> clients;
  std::vector<std::string> ids(8);
  for (std::string& id : ids) clients.emplace_back([&] { id = Submit("tiny", 1, "11111111-2222"); });
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(std::set<std::string>(ids.begin(), ids.end()).size(), 1u);
  server_.Stop();
  server_.Start();
  EXPECT_EQ(Submit("tiny", 1, "11111111-2222"), ids[0]) << "also after a restart";
  EXPECT_NE(Submit("tiny", 1, "33333333"), ids[0]) << "names are not unique";
  v1::CreateJobRequest request;
  *request.mutable_spec() = MockSpec("other");
  request.set_request_id("11111111-2222");
  v1::Job job;
  const grpc::Status status = Create(request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(ReasonOf(status), "REQUEST_ID_REUSED");
  request.set_request_id(std::string(37, 'x'));
  EXPECT_EQ(Create(request, &job).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

// O1
TEST_F(RpcTest, CancelAtTheInstantOfDispatchNeverLeavesAJobRunning) {
  auto agent = Agent("n1", 1);
  for (int i = 0; i < 50; ++i) {
    const std::string id = Submit("race");
    if (i % 2 == 0) absl::SleepFor(absl::Microseconds(200 * i));
    EXPECT_TRUE(Cancel(id).ok());
    Await(id, v1::JOB_STATE_CANCELLED);
  }
  const std::string last = Submit("last");
  Await(last, v1::JOB_STATE_RUNNING);
  const ScriptedAgent now = agent->agent();
  EXPECT_TRUE(now.Knows({last, 1}));
}

// O3, O5
TEST_F(RpcTest, ARestartOfTheServerKeepsEveryState) {
  auto agent = Agent("n1", 1);
  const std::string done = Submit("done");
  Await(done, v1::JOB_STATE_RUNNING);
  Complete(*agent, done, 1, 1);
  const v1::Job finished = Await(done, v1::JOB_STATE_SUCCEEDED);
  const std::string running = Submit("running");
  Await(running, v1::JOB_STATE_RUNNING);
  std::vector<std::string> pending;
  for (int i = 0; i < 3; ++i) pending.push_back(Submit("pending"));
  const std::string paused = Submit("paused");
  EXPECT_TRUE(Pause(paused).ok());
  ScriptedAgent survivor = agent->agent();
  server_.Stop();
  agent.reset();

  server_.Start();
  EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(Get(done), finished));
  EXPECT_EQ(Get(running).state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Get(paused).state(), v1::JOB_STATE_PAUSED);
  for (const std::string& id : pending) EXPECT_EQ(Get(id).state(), v1::JOB_STATE_QUEUED);
  AgentClient back(server_.server->address(), survivor, 2);
  Complete(back, running, 1, 1);
  EXPECT_EQ(Await(running, v1::JOB_STATE_SUCCEEDED).attempts_size(), 1) << "attached again, not started again";
  for (const std::string& id : pending) {
    Await(id, v1::JOB_STATE_RUNNING);
    Complete(back, id, 1, 1);
    Await(id, v1::JOB_STATE_SUCCEEDED);
  }
  EXPECT_EQ(Get(paused).state(), v1::JOB_STATE_PAUSED) << "never dispatched";
  EXPECT_TRUE(Resume(paused).ok());
  Await(paused, v1::JOB_STATE_RUNNING);
}

TEST_F(RpcTest, ListPagesAreNewestFirstAndBoundToTheirQuery) {
  std::vector<std::string> ids;
  for (int i = 0; i < 5; ++i) {
    ids.push_back(Submit(i % 2 == 0 ? "even" : "odd"));
    absl::SleepFor(absl::Milliseconds(2));  // ids sort by the millisecond
  }
  std::vector<std::string> seen;
  v1::ListJobsRequest request;
  request.set_page_size(2);
  std::string second_page;
  do {
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(server_.jobs->ListJobs(&context, request, &response).ok());
    for (const v1::Job& job : response.jobs()) seen.push_back(job.id());
    request.set_page_token(response.next_page_token());
    if (second_page.empty()) second_page = response.next_page_token();
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, std::vector<std::string>(ids.rbegin(), ids.rend()));
  request.set_page_token(second_page);
  request.set_name("even");
  v1::ListJobsResponse response;
  grpc::ClientContext context;
  const grpc::Status status = server_.jobs->ListJobs(&context, request, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("a query with other fields"));
}

TEST_F(RpcTest, VerbsCheckEtagsAndNames) {
  const std::string id = Submit("twin");
  Submit("twin");
  EXPECT_EQ(Pause("twin").error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(Pause("nobody")), "JOB_NOT_FOUND");
  EXPECT_EQ(Pause(id, "r999").error_code(), grpc::StatusCode::ABORTED);
  EXPECT_TRUE(Pause(id, Get(id).etag()).ok());
  EXPECT_TRUE(Pause(id).ok()) << "paused already";
  const grpc::Status fixed = [&] {
    v1::ResumeJobRequest request;
    request.set_job(id);
    request.mutable_spec_patch()->mutable_training()->set_seed(7);
    v1::ResumeJobResponse response;
    grpc::ClientContext context;
    return server_.jobs->ResumeJob(&context, request, &response);
  }();
  EXPECT_EQ(fixed.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(DetailOf<google::rpc::BadRequest>(fixed).ShortDebugString(), HasSubstr("spec_patch.training.seed"));
}

TEST_F(RpcTest, AStoreThatCannotBeWrittenRefusesChangesUntilItCanAgain) {
  const std::string id = Submit("before");
  // The coordinator's view of a disk error: the database is closed and cannot be opened.
  const std::filesystem::path store = server_.directory() / "store";
  const std::filesystem::path away = server_.directory() / "away";
  std::filesystem::rename(store, away);
  std::ofstream(store) << "no directory";
  ASSERT_FALSE(const_cast<store::Store&>(server_.coordinator->store()).Reopen().ok());
  v1::CreateJobRequest request;
  *request.mutable_spec() = MockSpec("during");
  request.set_request_id("during");
  v1::Job job;
  grpc::Status status = Create(request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(ReasonOf(status), "STORE_UNAVAILABLE");
  EXPECT_FALSE(server_.coordinator->ready());
  EXPECT_NE(server_.coordinator->unready_reason(), "");
  EXPECT_EQ(Get(id).name(), "before") << "reading goes on";
  status = Create(request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);

  std::filesystem::remove(store);
  std::filesystem::rename(away, store);
  while (!server_.coordinator->ready()) absl::SleepFor(absl::Milliseconds(20));
  status = Create(request, &job);
  EXPECT_TRUE(status.ok()) << status.error_message();
  v1::ListJobsRequest list;
  list.set_name("during");
  v1::ListJobsResponse response;
  grpc::ClientContext context;
  ASSERT_TRUE(server_.jobs->ListJobs(&context, list, &response).ok());
  EXPECT_EQ(response.jobs_size(), 1) << "the retry met the same job";
}

TEST_F(RpcTest, SubmitsAreRefusedBeforeTheDiskIsFull) {
  server_.Stop();
  server_.coordinator_options.min_free_bytes = int64_t{1} << 60;
  server_.Start();
  v1::CreateJobRequest request;
  *request.mutable_spec() = MockSpec("tiny");
  v1::Job job;
  const grpc::Status status = Create(request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(DetailOf<google::rpc::RetryInfo>(status).retry_delay().seconds(), 30);
}

TEST_F(RpcTest, ASecondServerOnThePortFails) {
  RealClock clock;
  core::NoTelemetry telemetry;
  RpcServer other(server_.server_options, server_.coordinator.get(), &clock, &telemetry);
  EXPECT_THAT(other.Start(server_.server->address()),
              slipway::testing::StatusIs(absl::StatusCode::kUnavailable, HasSubstr("cannot listen")));
}

}  // namespace
}  // namespace slipway::server::rpc
