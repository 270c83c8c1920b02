// How fast the coordinator is with a full queue: submits from 8 clients, one list of everything, a restart.
//
//   coordinator_bench [JOBS]        1000 when not given; slipwayd is taken from the directory of this binary
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/subprocess.h"
#include "slipway/v1/job_service.grpc.pb.h"

namespace slipway {
namespace {

constexpr int kClients = 8;

v1::TrainingSpec Spec() {
  v1::TrainingSpec spec;
  spec.set_name("bench");
  spec.mutable_model()->set_preset("qwen3_0_6b");
  spec.mutable_dataset()->set_kind("mock");
  spec.mutable_training()->set_train_iters(10);
  spec.mutable_training()->set_global_batch_size(1);
  spec.mutable_training()->set_seq_length(16);
  spec.mutable_optimizer()->set_lr(1e-3);
  return spec;
}

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "coordinator_bench: %s\n", what.c_str());
  std::exit(1);
}

class Server {
 public:
  explicit Server(std::filesystem::path directory) : directory_(std::move(directory)) {}
  ~Server() { Kill(); }

  // Returns once a list is answered, with the time from the start of the process on.
  absl::Duration Start() {
    std::filesystem::remove(directory_ / "slipwayd.json");
    const absl::Time begin = absl::Now();
    SpawnOptions spawn;
    spawn.argv = {std::filesystem::read_symlink("/proc/self/exe").parent_path() / "slipwayd",
                  "--data-dir",
                  directory_.string(),
                  "--listen",
                  "127.0.0.1:0",
                  "--http",
                  "127.0.0.1:0",
                  "--log-level",
                  "off"};
    spawn.parent_death_signal = SIGKILL;
    absl::StatusOr<Subprocess> child = Subprocess::Spawn(spawn);
    if (!child.ok()) Fail(child.status().ToString());
    child_ = *std::move(child);
    while (!std::filesystem::exists(directory_ / "slipwayd.json")) absl::SleepFor(absl::Milliseconds(1));
    std::ifstream file(directory_ / "slipwayd.json");
    address_ = nlohmann::json::parse(file)["grpc_address"];
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    const grpc::Status status = Stub()->ListJobs(&context, {}, &response);
    if (!status.ok()) Fail(status.error_message());
    return absl::Now() - begin;
  }
  void Kill() {
    if (!child_.has_value()) return;
    child_->Signal(SIGKILL).IgnoreError();
    child_->Wait().IgnoreError();
    child_.reset();
  }
  std::unique_ptr<v1::JobService::Stub> Stub() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);  // a connection of its own
    arguments.SetMaxReceiveMessageSize(256 << 20);
    return v1::JobService::NewStub(grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }

 private:
  const std::filesystem::path directory_;
  std::optional<Subprocess> child_;
  std::string address_;
};

std::vector<absl::Duration> Submit(const Server& server, int jobs) {
  std::atomic<int> next = 0;
  std::vector<std::vector<absl::Duration>> times(kClients);
  std::vector<std::thread> clients;
  for (std::vector<absl::Duration>& mine : times) {
    clients.emplace_back([&] {
      const auto stub = server.Stub();
      v1::CreateJobRequest request;
      *request.mutable_spec() = Spec();
      while (true) {
        const int number = next++;
        if (number >= jobs) return;
        request.set_request_id(absl::StrCat("bench-", number));
        grpc::ClientContext context;
        v1::CreateJobResponse response;
        const absl::Time begin = absl::Now();
        const grpc::Status status = stub->CreateJob(&context, request, &response);
        if (!status.ok()) Fail(status.error_message());
        mine.push_back(absl::Now() - begin);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  std::vector<absl::Duration> all;
  for (const auto& mine : times) all.insert(all.end(), mine.begin(), mine.end());
  std::sort(all.begin(), all.end());
  return all;
}

int ListAll(const Server& server) {
  const auto stub = server.Stub();
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  int count = 0;
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    const grpc::Status status = stub->ListJobs(&context, request, &response);
    if (!status.ok()) Fail(status.error_message());
    count += response.jobs_size();
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  return count;
}

int Main(int jobs) {
  const std::filesystem::path directory =
      std::filesystem::temp_directory_path() / absl::StrCat("coordinator_bench.", ::getpid());
  Server server(directory);
  server.Start();
  absl::Time begin = absl::Now();
  const std::vector<absl::Duration> submits = Submit(server, jobs);
  const absl::Duration submit = absl::Now() - begin;
  std::printf("submit   %d jobs from %d clients: %.2f s, %.0f jobs/s, p50 %.1f ms, p99 %.1f ms\n", jobs, kClients,
              absl::ToDoubleSeconds(submit), jobs / absl::ToDoubleSeconds(submit),
              absl::ToDoubleMilliseconds(submits[submits.size() / 2]),
              absl::ToDoubleMilliseconds(submits[submits.size() * 99 / 100]));
  begin = absl::Now();
  const int listed = ListAll(server);
  std::printf("list     %d jobs: %.0f ms\n", listed, absl::ToDoubleMilliseconds(absl::Now() - begin));
  server.Kill();
  std::printf("restart  after kill -9, to the first answer: %.0f ms\n", absl::ToDoubleMilliseconds(server.Start()));
  server.Kill();
  std::filesystem::remove_all(directory);
  return listed == jobs ? 0 : 1;
}

}  // namespace
}  // namespace slipway

int main(int argc, char** argv) {
  const int jobs = argc > 1 ? std::atoi(argv[1]) : 1000;
  if (jobs < 1) {
    std::fprintf(stderr, "usage: coordinator_bench [JOBS]\n");
    return 2;
  }
  return slipway::Main(jobs);
}
