// What the tests of engine/format share: files, bytes and damage.
#ifndef SLIPWAY_TESTS_SUPPORT_FORMAT_FILES_H_
#define SLIPWAY_TESTS_SUPPORT_FORMAT_FILES_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/posix_file_system.h"
#include "tests/support/source_dir.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace slipway::engine::format {

inline std::string GoldenPath(const std::string& name) {
  return std::string(SLIPWAY_SOURCE_DIR) + "/tests/golden/data/" + name;
}

inline std::string ReadWhole(const std::string& path) {
  PosixFileSystem files;
  absl::StatusOr<std::string> text = files.ReadFile(path);
  EXPECT_OK(text);
  return text.ok() ? *text : "";
}

// Without a sync, and into a new file (some file systems flush one that is truncated): tests write many thousand files.
inline void WriteWhole(const std::string& path, std::string_view contents) {
  PosixFileSystem files;
  files.RemoveFile(path).IgnoreError();
  absl::StatusOr<std::unique_ptr<WritableFile>> file = files.OpenForWrite(path, WriteMode::kCreateNew);
  ASSERT_OK(file);
  ASSERT_OK((*file)->Append(contents));
}

template <typename T>
absl::Span<const std::byte> BytesOf(const std::vector<T>& values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T));
}
inline absl::Span<std::byte> BytesOf(std::string& text) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size());
}

// Calls `check` with every truncation and with every byte changed in several ways.
inline void ForEachDamage(const std::string& good, const std::function<void(const std::string&)>& check) {
  for (size_t length = 0; length < good.size(); ++length) check(good.substr(0, length));
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int change : {0x01, 0x10, 0x80, 0xFF}) {
      std::string damaged = good;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      check(damaged);
    }
  }
}

}  // namespace slipway::engine::format

#endif  // SLIPWAY_TESTS_SUPPORT_FORMAT_FILES_H_
