// Runs commands of the CLI in this process, against a fake server and in a directory of its own, for tests.
#ifndef SLIPWAY_TESTS_SUPPORT_CLI_FIXTURE_H_
#define SLIPWAY_TESTS_SUPPORT_CLI_FIXTURE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/cli.h"
#include "common/posix_file_system.h"
#include "tests/support/fake_server.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::testing {

inline constexpr char kJobFile[] =
    "name: tiny\nmodel: {preset: tiny_llama}\ndataset: {kind: mock}\noptimizer: {lr: 1e-3}\n"
    "training: {train_iters: 100, global_batch_size: 4, seq_length: 32}\n";

inline v1::Job MakeJob(v1::JobState state, int64_t step = 0) {
  v1::Job job;
  job.set_id("job-1");
  job.set_name("tiny");
  job.set_state(state);
  job.mutable_progress()->set_train_iters(3);
  job.mutable_progress()->set_step(step);
  return job;
}

inline Unary<v1::GetJobRequest, v1::GetJobResponse> Answers(v1::Job job) {
  return [job](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    *response->mutable_job() = job;
    return grpc::Status::OK;
  };
}

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
};

// Takes so many lines of output and then no more.
class LeavingReader final : public std::stringbuf {
 public:
  explicit LeavingReader(int lines) : lines_left_(lines) {}
  bool gone() const { return lines_left_ <= 0; }

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    if (gone()) return 0;
    lines_left_ = lines_left_ - static_cast<int>(std::count(text, text + size, '\n'));
    return std::stringbuf::xsputn(text, size);
  }

 private:
  std::atomic<int> lines_left_;
};

class CliTest : public ::testing::Test {
 protected:
  std::string WriteFile(const std::string& name, const std::string& text) {
    const std::string path = absl::StrCat(directory_, "/", name);
    EXPECT_OK(files_.MakeDirectories(DirName(path)));
    EXPECT_OK(files_.WriteFileAtomically(path, text));
    return path;
  }
  void Serve(FakeBehavior behavior, int port = 0) { server_ = std::make_unique<FakeServer>(std::move(behavior), port); }

  Ran Run(std::vector<std::string> arguments) {
    LeavingReader reader(reader_takes_lines_);
    std::ostream out(&reader);
    std::ostringstream err;
    client::Environment env;
    env.out = &out;
    env.err = &err;
    env.working_directory = directory_;
    env.binary_directory = directory_;
    env.variables["HOME"] = directory_;
    if (server_ != nullptr) env.variables["SLIPWAY_SERVER"] = server_->address();
    env.interrupted = [this] { return interrupted_.load(); };
    env.reader_gone = [&] { return reader_gone_shows_ && reader.gone(); };
    env.exec = [this](const std::vector<std::string>& argv) -> absl::StatusOr<int> {
      executed_ = argv;
      return 0;
    };
    const int code = client::RunCli(arguments, env);
    return {code, reader.str(), err.str()};
  }

  PosixFileSystem files_;
  TempDir temp_;
  const std::string directory_ = temp_.path();
  std::unique_ptr<FakeServer> server_;
  std::atomic<bool> interrupted_{false};
  int reader_takes_lines_ = std::numeric_limits<int>::max();
  bool reader_gone_shows_ = true;  // as with a pipe; a full disk only fails writes
  std::vector<std::string> executed_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_CLI_FIXTURE_H_
