// How a job that is being watched looks: one block that is drawn again and again with events scrolling above it, or
// plain lines where nobody sees a terminal. No I/O: the caller feeds updates and writes what comes out. Not
// thread-safe.
#ifndef SLIPWAY_CLIENT_LIVE_VIEW_H_
#define SLIPWAY_CLIENT_LIVE_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/job_watch.h"
#include "slipway/v1/job.pb.h"
#include "slipway/v1/metrics.pb.h"

namespace slipway::client {

class LiveView {
 public:
  struct Options {
    bool terminal = false;  // a block, else plain lines
    bool color = false;
  };
  explicit LiveView(Options options) : options_(options) {}

  void Apply(const WatchUpdate& update);

  const v1::Job& job() const { return job_; }
  bool has_job() const { return !job_.id().empty(); }
  // The highest step of which a record came.
  int64_t last_step() const { return last_step_ ? last_step_->step() : 0; }

  // Lines to print now: all of them in plain mode, those above the block in a terminal.
  std::vector<std::string> TakeLines();
  // The block, each line cut to `width`; empty before the first update and in plain mode.
  std::vector<std::string> Block(int width) const;

 private:
  void SetJob(const v1::Job& job);
  void AddStep(const v1::StepMetrics& step);
  std::string BarLine(int width) const;
  std::optional<absl::Duration> TimeLeft() const;
  std::string Colored(const std::string& text, v1::JobState state) const;

  const Options options_;
  v1::Job job_;
  std::optional<v1::StepMetrics> last_step_;
  std::optional<v1::EvalMetrics> last_eval_;
  double step_seconds_ = 0;  // smoothed
  bool connected_ = true;
  std::vector<std::string> lines_;
};

// Draws blocks on a terminal: moves up over the old block, writes lines above and the new block below.
class BlockPainter {
 public:
  // The text that turns the screen from the last state into this one.
  std::string Paint(const std::vector<std::string>& lines_above, const std::vector<std::string>& block);

 private:
  size_t drawn_ = 0;
};

// "[██████────]": `width` cells between the brackets.
std::string ProgressBar(double share, int width);

}  // namespace slipway::client

#endif  // SLIPWAY_CLIENT_LIVE_VIEW_H_
