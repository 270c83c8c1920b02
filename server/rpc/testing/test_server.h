// A coordinator with its gRPC server on a free port and a data directory of its own, which can be stopped and started
// again. One thread uses it.
#ifndef SLIPWAY_SERVER_RPC_TESTING_TEST_SERVER_H_
#define SLIPWAY_SERVER_RPC_TESTING_TEST_SERVER_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "common/clock.h"
#include "server/rpc/coordinator.h"
#include "server/rpc/rpc_server.h"
#include "server/store/metric_store.h"
#include "server/store/store.h"
#include "slipway/v1/cluster_service.grpc.pb.h"
#include "slipway/v1/job_service.grpc.pb.h"

namespace slipway::server::rpc::testing {

class TestServer {
 public:
  explicit TestServer(const std::string& name) : directory_(std::filesystem::path(::testing::TempDir()) / name) {
    std::filesystem::remove_all(directory_);
    coordinator_options.data_dir = directory_.string();
    coordinator_options.tick = absl::Milliseconds(20);
    server_options.version = "test";
    server_options.submit.output_root = "/out";
    server_options.agents.silence = absl::Minutes(1);
  }
  ~TestServer() {
    Stop();
    std::filesystem::remove_all(directory_);
  }

  void Start() {
    std::filesystem::create_directories(directory_);
    auto store = store::Store::Open(directory_ / "store");
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    auto metrics = store::MetricStore::Open(directory_ / "metrics", {});
    ASSERT_TRUE(metrics.ok()) << metrics.status();
    metrics_ = *std::move(metrics);
    coordinator =
        std::make_unique<Coordinator>(coordinator_options, store_.get(), metrics_.get(), &clock_, &telemetry_);
    server = std::make_unique<RpcServer>(server_options, coordinator.get(), &clock_, &telemetry_);
    const absl::Status loaded = coordinator->Start(server->sink());
    ASSERT_TRUE(loaded.ok()) << loaded;
    const absl::Status bound = server->Start("127.0.0.1:0");
    ASSERT_TRUE(bound.ok()) << bound;
    channel = grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
    jobs = v1::JobService::NewStub(channel);
  }
  void Stop() {
    if (server != nullptr) server->Shutdown(absl::Seconds(2));
    if (coordinator != nullptr) coordinator->Stop();
    server = nullptr;
    coordinator = nullptr;
    metrics_ = nullptr;
    store_ = nullptr;
  }
  const std::filesystem::path& directory() const { return directory_; }

  CoordinatorOptions coordinator_options;
  RpcServerOptions server_options;
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<RpcServer> server;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::JobService::Stub> jobs;

 private:
  const std::filesystem::path directory_;
  RealClock clock_;
  core::NoTelemetry telemetry_;
  std::unique_ptr<store::Store> store_;
  std::unique_ptr<store::MetricStore> metrics_;
};

// A valid spec of `data` ranks.
inline v1::TrainingSpec MockSpec(const std::string& name, int data = 1) {
  v1::TrainingSpec spec;
  spec.set_name(name);
  v1::ModelSpec& model = *spec.mutable_model();
  model.set_architecture("llama");
  model.set_num_layers(2);
  model.set_hidden_size(64);
  model.set_num_attention_heads(4);
  model.set_num_query_groups(2);
  model.set_ffn_hidden_size(128);
  model.set_vocab_size(256);
  model.set_max_position_embeddings(128);
  spec.mutable_dataset()->set_kind("mock");
  spec.mutable_training()->set_train_iters(100);
  spec.mutable_training()->set_global_batch_size(4);
  spec.mutable_training()->set_seq_length(16);
  spec.mutable_optimizer()->set_lr(1e-3);
  spec.mutable_precision()->set_name("fp32");
  spec.mutable_parallelism()->set_data_parallel_size(data);
  spec.mutable_parallelism()->set_device("cpu");
  return spec;
}

}  // namespace slipway::server::rpc::testing

#endif  // SLIPWAY_SERVER_RPC_TESTING_TEST_SERVER_H_
