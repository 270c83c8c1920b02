// Answers the coordinator's reads of logs, in a thread of its own: a slow disk or a slow reader holds nobody else up.
// Thread-safe.
#ifndef SLIPWAY_WORKER_AGENT_LOG_SERVICE_H_
#define SLIPWAY_WORKER_AGENT_LOG_SERVICE_H_

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "slipway/v1/agent_service.pb.h"
#include "worker/agent/log_reader.h"

namespace slipway::worker::agent {

class LogService {
 public:
  // False while the way to the coordinator is full: the chunk is offered again later.
  using Send = std::function<bool(const slipway::v1::LogChunk&)>;
  // Whether this rank (or, when it is negative, any rank) of the attempt may still print. Called from the thread.
  using MayGrow = std::function<bool(const std::string& job_id, int64_t epoch, int rank)>;

  // `state_dir` holds the index that finds the logs of jobs which this node no longer has to do with.
  LogService(std::string state_dir, Send send, MayGrow may_grow);
  ~LogService();
  LogService(const LogService&) = delete;
  LogService& operator=(const LogService&) = delete;

  // Where a job's logs are, for later reads.
  void Remember(const std::string& job_id, const std::string& output_dir);
  void Start(const slipway::v1::LogRead& read);
  void Cancel(int64_t read_id);
  // The connection is gone, and with it everybody who asked.
  void CancelAll();

 private:
  struct Source {
    int64_t epoch = 0;
    int rank = 0;
    LogReader reader;
    std::string unsent = {};
    bool ended = false;
  };
  struct ActiveRead {
    slipway::v1::LogRead request;
    std::string logs_dir;  // <output dir>/logs
    std::vector<Source> sources;
    std::string error;  // ends the read
    bool may_grow = true;
    bool opened = false;
    bool done = false;
  };

  void Run();
  // True when something was sent.
  bool Serve(ActiveRead& read);
  bool ServeSource(ActiveRead& read, Source& source);
  bool SendEnd(ActiveRead& read);
  void Open(ActiveRead& read);
  void AddSources(ActiveRead& read);
  std::string IndexPath(const std::string& job_id) const;

  const std::string state_dir_;
  const Send send_;
  const MayGrow may_grow_;
  absl::Mutex mutex_;
  std::vector<slipway::v1::LogRead> started_ ABSL_GUARDED_BY(mutex_);
  std::vector<int64_t> cancelled_ ABSL_GUARDED_BY(mutex_);
  bool cancel_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<ActiveRead> reads_;  // the thread's
  std::thread thread_;
};

}  // namespace slipway::worker::agent

#endif  // SLIPWAY_WORKER_AGENT_LOG_SERVICE_H_
