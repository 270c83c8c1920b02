// A directory of one test, removed with everything in it at the end.
#ifndef SLIPWAY_TESTS_SUPPORT_TEMP_DIR_H_
#define SLIPWAY_TESTS_SUPPORT_TEMP_DIR_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace slipway::testing {

class TempDir {
 public:
  TempDir() : path_(std::filesystem::temp_directory_path() / "slipway-test-XXXXXX") {
    if (::mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make a directory like " << path_;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string Path(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_TEMP_DIR_H_
