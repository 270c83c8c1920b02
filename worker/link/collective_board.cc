#include "worker/link/collective_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/file_system.h"
#include "common/unique_fd.h"

namespace slipway::worker::link {
namespace {

constexpr uint64_t kMagic = 0x3142'434c'5750'4c53;  // "SLPWLCB1"
constexpr size_t kTextWords = 4;
constexpr int kReadAttempts = 1000;

using Text = std::array<uint64_t, kTextWords>;

Text PackText(std::string_view text) {
  Text packed = {};
  // One byte less than there is room for: the last is always 0.
  std::memcpy(packed.data(), text.data(), std::min(text.size(), sizeof(packed) - 1));
  return packed;
}

std::string UnpackText(const Text& packed) {
  std::array<char, sizeof(Text)> bytes;
  std::memcpy(bytes.data(), packed.data(), sizeof(packed));
  return std::string(bytes.data(), ::strnlen(bytes.data(), bytes.size()));
}

int64_t MonotonicNanos() {
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

struct CollectiveBoard::Record {
  Text group = {};
  Text operation = {};
  Text phase = {};
  int64_t sequence = 0;
  uint64_t done = 0;
  int64_t start_unix_nanos = 0;
  int64_t start_monotonic_nanos = 0;
  int64_t step = 0;
};

struct CollectiveBoard::Layout {
  static constexpr size_t kRecordWords = sizeof(Record) / sizeof(uint64_t);
  using Words = std::array<std::atomic<uint64_t>, kRecordWords>;
  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> generation;
  std::array<Words, 2> records;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free, "the board is shared between processes");

absl::StatusOr<std::unique_ptr<CollectiveBoard>> CollectiveBoard::Create(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoToStatus(errno, absl::StrCat("opening ", path));
  if (const int error = ::posix_fallocate(fd.get(), 0, sizeof(Layout)); error != 0) {
    return ErrnoToStatus(error, absl::StrCat("reserving ", sizeof(Layout), " bytes of ", path));
  }
  void* memory = ::mmap(nullptr, sizeof(Layout), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return ErrnoToStatus(errno, absl::StrCat("mapping ", path));
  auto* layout = new (memory) Layout;  // all zero: the file is new
  layout->magic.store(kMagic, std::memory_order_release);
  return std::unique_ptr<CollectiveBoard>(new CollectiveBoard(layout));
}

CollectiveBoard::CollectiveBoard(Layout* layout) : layout_(layout), current_(std::make_unique<Record>()) {}

CollectiveBoard::~CollectiveBoard() { ::munmap(layout_, sizeof(Layout)); }

void CollectiveBoard::SetPhase(std::string_view phase) {
  current_->phase = PackText(phase);
  Publish();
}

void CollectiveBoard::SetStep(int64_t step) {
  current_->step = step;
  Publish();
}

void CollectiveBoard::Begin(std::string_view group, std::string_view operation, int64_t sequence) {
  current_->group = PackText(group);
  current_->operation = PackText(operation);
  current_->sequence = sequence;
  current_->done = 0;
  current_->start_unix_nanos = absl::GetCurrentTimeNanos();
  current_->start_monotonic_nanos = MonotonicNanos();
  Publish();
}

void CollectiveBoard::End() {
  current_->done = 1;
  Publish();
}

// Release stores of the words and acquire loads in the reader take the place of fences, which thread sanitizers do not
// know: a reader that sees a word of the next-but-one record also sees that the generation has moved on.
void CollectiveBoard::Publish() {
  const uint64_t next = layout_->generation.load(std::memory_order_relaxed) + 1;
  std::array<uint64_t, Layout::kRecordWords> words;
  std::memcpy(words.data(), current_.get(), sizeof(Record));
  Layout::Words& target = layout_->records[next % 2];
  for (size_t i = 0; i < words.size(); ++i) target[i].store(words[i], std::memory_order_release);
  layout_->generation.store(next, std::memory_order_release);
}

absl::StatusOr<CollectiveRecord> CollectiveBoard::Read(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoToStatus(errno, absl::StrCat("opening ", path));
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoToStatus(errno, absl::StrCat("reading the size of ", path));
  if (info.st_size != static_cast<off_t>(sizeof(Layout))) {
    return absl::DataLossError(
        absl::StrCat(path, " has ", info.st_size, " bytes; a collective board has ", sizeof(Layout)));
  }
  void* memory = ::mmap(nullptr, sizeof(Layout), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return ErrnoToStatus(errno, absl::StrCat("mapping ", path));
  const auto unmap = [](const Layout* p) { ::munmap(const_cast<Layout*>(p), sizeof(Layout)); };
  const std::unique_ptr<const Layout, decltype(unmap)> layout(static_cast<const Layout*>(memory), unmap);
  if (layout->magic.load(std::memory_order_acquire) != kMagic) {
    return absl::DataLossError(absl::StrCat(path, " is not a collective board"));
  }
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const uint64_t generation = layout->generation.load(std::memory_order_acquire);
    std::array<uint64_t, Layout::kRecordWords> words;
    const Layout::Words& source = layout->records[generation % 2];
    for (size_t i = 0; i < words.size(); ++i) words[i] = source[i].load(std::memory_order_acquire);
    if (layout->generation.load(std::memory_order_acquire) != generation) continue;
    Record record;
    std::memcpy(static_cast<void*>(&record), words.data(), sizeof(record));
    return CollectiveRecord{.group = UnpackText(record.group),
                            .operation = UnpackText(record.operation),
                            .sequence = record.sequence,
                            .done = record.done != 0,
                            .start_time = absl::FromUnixNanos(record.start_unix_nanos),
                            .start_monotonic = absl::Nanoseconds(record.start_monotonic_nanos),
                            .phase = UnpackText(record.phase),
                            .step = record.step};
  }
  return absl::UnavailableError(absl::StrCat(path, " changes faster than it can be read"));
}

std::string CollectiveText(const CollectiveRecord& record, absl::Duration end) {
  if (record.sequence == 0) return "";
  const std::string name = absl::StrCat(record.group, " ", record.operation, " #", record.sequence);
  if (record.done) return absl::StrCat(name, ", done");
  return absl::StrFormat("%s, %.1f s", name, absl::ToDoubleSeconds(end - record.start_monotonic));
}

}  // namespace slipway::worker::link
