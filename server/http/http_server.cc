#include "server/http/http_server.h"

#include <httplib.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace slipway::server::http {
namespace {

constexpr char kTextFormat[] = "text/plain; version=0.0.4; charset=utf-8";
constexpr size_t kMaxRequestBytes = 64 << 10;

}  // namespace

HttpServer::HttpServer(HttpServerOptions options) : options_(std::move(options)) {}

HttpServer::~HttpServer() { Stop(); }

absl::Status HttpServer::Start() {
  const size_t colon = options_.listen.rfind(':');
  int port = 0;
  if (colon == std::string::npos || !absl::SimpleAtoi(options_.listen.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("--http ", options_.listen, ": must be host:port"));
  }
  const std::string host = options_.listen.substr(0, colon);
  server_ = std::make_unique<httplib::Server>();
  server_->new_task_queue = [] { return new httplib::ThreadPool(4); };  // httplib owns it
  server_->set_payload_max_length(kMaxRequestBytes);
  // httplib shares a port with other processes by default; a second daemon must fail instead.
  server_->set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  server_->Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
    response.set_content(prometheus::TextSerializer().Serialize(options_.metrics()), kTextFormat);
  });
  server_->Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", "text/plain");
  });
  server_->Get("/readyz", [this](const httplib::Request&, httplib::Response& response) {
    const std::string reason = options_.unready_reason();
    response.status = reason.empty() ? 200 : 503;
    response.set_content(reason.empty() ? "ok\n" : absl::StrCat(reason, "\n"), "text/plain");
  });
  const int bound = port == 0 ? server_->bind_to_any_port(host) : (server_->bind_to_port(host, port) ? port : -1);
  if (bound <= 0) {
    server_ = nullptr;
    return absl::UnavailableError(
        absl::StrCat("cannot listen on ", options_.listen, ": is the address right, and free? (--http)"));
  }
  address_ = absl::StrCat(host, ":", bound);
  thread_ = std::thread([this] {
    server_->listen_after_bind();
    done_ = true;
  });
  return absl::OkStatus();
}

void HttpServer::Stop() {
  if (server_ == nullptr) return;
  // A stop before the thread listens would be lost.
  while (!server_->is_running() && !done_) absl::SleepFor(absl::Milliseconds(1));
  server_->stop();
  if (thread_.joinable()) thread_.join();
  server_ = nullptr;
}

}  // namespace slipway::server::http
