#include "server/rpc/log_router.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace slipway::server::rpc {

int64_t LogRouter::Open(const std::string& node_id, Callback callback) {
  absl::MutexLock lock(&mutex_);
  reads_.emplace(++last_id_, Read{node_id, std::move(callback)});
  return last_id_;
}

void LogRouter::Close(int64_t read_id) {
  absl::MutexLock lock(&mutex_);
  reads_.erase(read_id);
}

void LogRouter::Deliver(const v1::LogChunk& chunk) {
  Callback callback;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = reads_.find(chunk.read_id());
    if (it == reads_.end()) return;
    callback = it->second.callback;
    if (chunk.end()) reads_.erase(it);
  }
  callback(chunk);
}

void LogRouter::NodeGone(const std::string& node_id) {
  std::vector<int64_t> ids;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, read] : reads_) {
      if (read.node_id == node_id) ids.push_back(id);
    }
  }
  for (const int64_t id : ids) {
    v1::LogChunk chunk;
    chunk.set_read_id(id);
    chunk.set_end(true);
    chunk.set_error(absl::StrCat("the agent of node ", node_id, " has gone"));
    Deliver(chunk);
  }
}

}  // namespace slipway::server::rpc
