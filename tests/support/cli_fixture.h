// Runs commands of the CLI in this process, against a fake server and in a directory of its own, for tests.
#ifndef SLIPWAY_TESTS_SUPPORT_CLI_FIXTURE_H_
#define SLIPWAY_TESTS_SUPPORT_CLI_FIXTURE_H_

#include <gtest/gtest.h>

#include <atomic>
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

struct Ran {
  int code = 0;
  std::string out;
  std::string err;
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
    std::ostringstream out, err;
    client::Environment env;
    env.out = &out;
    env.err = &err;
    env.working_directory = directory_;
    env.binary_directory = directory_;
    env.variables["HOME"] = directory_;
    if (server_ != nullptr) env.variables["SLIPWAY_SERVER"] = server_->address();
    env.interrupted = [this] { return interrupted_.load(); };
    env.exec = [this](const std::vector<std::string>& argv) -> absl::StatusOr<int> {
      executed_ = argv;
      return 0;
    };
    const int code = client::RunCli(arguments, env);
    return {code, out.str(), err.str()};
  }

  PosixFileSystem files_;
  TempDir temp_;
  const std::string directory_ = temp_.path();
  std::unique_ptr<FakeServer> server_;
  std::atomic<bool> interrupted_{false};
  std::vector<std::string> executed_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_CLI_FIXTURE_H_
