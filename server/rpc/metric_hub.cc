#include "server/rpc/metric_hub.h"

#include <vector>

namespace slipway::server::rpc {

std::optional<MetricListener::Item> MetricListener::Next() {
  absl::MutexLock lock(&mutex_);
  if (queue_.empty()) return std::nullopt;
  Item item{.record = std::move(queue_.front()), .dropped = std::exchange(dropped_, 0)};
  queue_.pop_front();
  return item;
}

bool MetricListener::closed() const {
  absl::MutexLock lock(&mutex_);
  return closed_ && queue_.empty();
}

int64_t MetricListener::Push(const v1::MetricBatch& batch) {
  int64_t lost = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (const v1::MetricRecord& record : batch.records()) {
      if (queue_.size() >= capacity_) {
        queue_.pop_front();
        ++lost;
      }
      queue_.push_back(record);
    }
    dropped_ += lost;
  }
  wake_();
  return lost;
}

void MetricListener::Close() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  wake_();
}

void MetricHub::Subscribe(const std::string& job_id, std::shared_ptr<MetricListener> listener) {
  absl::MutexLock lock(&mutex_);
  listeners_.emplace(job_id, std::move(listener));
}

void MetricHub::Unsubscribe(const std::string& job_id, const MetricListener* listener) {
  absl::MutexLock lock(&mutex_);
  const auto [begin, end] = listeners_.equal_range(job_id);
  for (auto it = begin; it != end; ++it) {
    if (it->second.get() != listener) continue;
    listeners_.erase(it);
    return;
  }
}

int64_t MetricHub::Publish(const v1::MetricBatch& batch) {
  std::vector<std::shared_ptr<MetricListener>> listeners;
  {
    absl::MutexLock lock(&mutex_);
    const auto [begin, end] = listeners_.equal_range(batch.job_id());
    for (auto it = begin; it != end; ++it) listeners.push_back(it->second);
  }
  int64_t lost = 0;
  for (const auto& listener : listeners) lost += listener->Push(batch);
  return lost;
}

void MetricHub::Close(const std::string& job_id) {
  std::vector<std::shared_ptr<MetricListener>> listeners;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, listener] : listeners_) {
      if (job_id.empty() || id == job_id) listeners.push_back(listener);
    }
  }
  for (const auto& listener : listeners) listener->Close();
}

}  // namespace slipway::server::rpc
