#include "server/rpc/rpc_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/support/server_interceptor.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace slipway::server::rpc {
namespace {

constexpr int kMaxRequestBytes = 4 << 20;

// Counts every call by method and code.
class CountingInterceptor final : public grpc::experimental::Interceptor {
 public:
  CountingInterceptor(grpc::experimental::ServerRpcInfo* info, core::Telemetry* telemetry)
      : info_(info), telemetry_(telemetry) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::PRE_SEND_STATUS)) {
      const auto code = static_cast<absl::StatusCode>(methods->GetSendStatus().error_code());
      telemetry_->RpcHandled(info_->method(), absl::StatusCodeToString(code));
    }
    methods->Proceed();
  }

 private:
  grpc::experimental::ServerRpcInfo* const info_;
  core::Telemetry* const telemetry_;
};

class CountingFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CountingFactory(core::Telemetry* telemetry) : telemetry_(telemetry) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    return new CountingInterceptor(info, telemetry_);  // gRPC owns it
  }

 private:
  core::Telemetry* const telemetry_;
};

void SetTransport(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // A second daemon on the port must fail, not share it.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
}

}  // namespace

RpcServer::RpcServer(RpcServerOptions options, Coordinator* coordinator, Clock* clock, core::Telemetry* telemetry)
    : options_(std::move(options)),
      coordinator_(coordinator),
      telemetry_(telemetry),
      agents_(options_.agents, coordinator, &logs_, clock),
      jobs_(options_.submit, coordinator, clock),
      nodes_(coordinator),
      checkpoints_(coordinator),
      metrics_(coordinator),
      log_service_(coordinator, &agents_, &logs_),
      admin_(coordinator, options_.version) {}

RpcServer::~RpcServer() { Shutdown(absl::Seconds(1)); }

absl::Status RpcServer::Start(const std::string& listen) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetTransport(builder);
  int port = 0;
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  for (grpc::Service* service : std::initializer_list<grpc::Service*>{&agents_, &jobs_, &nodes_, &checkpoints_,
                                                                      &metrics_, &log_service_, &admin_}) {
    builder.RegisterService(service);
  }
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> interceptors;
  interceptors.push_back(std::make_unique<CountingFactory>(telemetry_));
  builder.experimental().SetInterceptorCreators(std::move(interceptors));
  server_ = builder.BuildAndStart();
  if (server_ == nullptr || port == 0) {
    server_ = nullptr;
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", listen, ": is the address right, and free? (--listen)"));
  }
  const size_t colon = listen.rfind(':');
  address_ = absl::StrCat(listen.substr(0, colon), ":", port);
  SetReady(true);
  return absl::OkStatus();
}

void RpcServer::SetReady(bool ready) {
  if (server_ == nullptr) return;
  server_->GetHealthCheckService()->SetServingStatus("readiness", ready);
}

void RpcServer::Shutdown(absl::Duration deadline) {
  if (server_ == nullptr) return;
  SetReady(false);
  coordinator_->watchers().Notify(Wake::kClose);
  coordinator_->metric_hub().Close("");
  agents_.CloseAll();
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(deadline));
  server_->Wait();
  server_ = nullptr;
}

}  // namespace slipway::server::rpc
