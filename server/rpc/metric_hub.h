// Live metric records to whoever listens. Every listener has a bounded queue of its own: a slow one loses the oldest
// records, is told how many, and never slows anybody else. Thread-safe.
#ifndef SLIPWAY_SERVER_RPC_METRIC_HUB_H_
#define SLIPWAY_SERVER_RPC_METRIC_HUB_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "slipway/v1/agent_service.pb.h"
#include "slipway/v1/metrics.pb.h"

namespace slipway::server::rpc {

class MetricListener {
 public:
  struct Item {
    v1::MetricRecord record;
    int64_t dropped = 0;  // before this one
  };
  explicit MetricListener(size_t capacity, std::function<void()> wake) : capacity_(capacity), wake_(std::move(wake)) {}

  std::optional<Item> Next();
  bool closed() const;

 private:
  friend class MetricHub;
  // Returns how many were lost by it.
  int64_t Push(const v1::MetricBatch& batch);
  void Close();

  const size_t capacity_;
  const std::function<void()> wake_;  // news; must not block
  mutable absl::Mutex mutex_;
  std::deque<v1::MetricRecord> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

class MetricHub {
 public:
  void Subscribe(const std::string& job_id, std::shared_ptr<MetricListener> listener);
  void Unsubscribe(const std::string& job_id, const MetricListener* listener);
  // Returns how many records listeners lost by it.
  int64_t Publish(const v1::MetricBatch& batch);
  // No more records of this job will come (the empty id: of any job).
  void Close(const std::string& job_id);

 private:
  absl::Mutex mutex_;
  std::multimap<std::string, std::shared_ptr<MetricListener>> listeners_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slipway::server::rpc

#endif  // SLIPWAY_SERVER_RPC_METRIC_HUB_H_
