#include "engine/checkpoint/snapshot_ring.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>

namespace slipway::engine::checkpoint {
namespace {

constexpr int64_t kElements = 100'000;  // 400 kB a slice: seven pieces of 64 KiB

std::vector<SnapshotSlice> Slices(int buckets) {
  std::vector<SnapshotSlice> slices;
  for (int b = 0; b < buckets; ++b) {
    for (int kind = 0; kind < 3; ++kind) slices.push_back({b, at::empty({kElements})});
  }
  return slices;
}

// Element i of each slice is a number of its own in each step.
void Overwrite(const std::vector<SnapshotSlice>& slices, int bucket, int step) {
  for (size_t s = 0; s < slices.size(); ++s) {
    if (slices[s].bucket != bucket) continue;
    float* data = static_cast<float*>(slices[s].tensor.mutable_data_ptr());
    for (int64_t i = 0; i < kElements; ++i) data[i] = static_cast<float>((step * 100 + s) * kElements + i);
  }
}

std::string Bytes(const std::vector<SnapshotSlice>& slices) {
  std::string bytes;
  for (const SnapshotSlice& slice : slices) {
    bytes.append(static_cast<const char*>(slice.tensor.const_data_ptr()), slice.tensor.nbytes());
  }
  return bytes;
}

std::string ReadAll(SnapshotRing& ring) {
  std::string bytes;
  while (const auto piece = ring.Next()) bytes.append(*piece);
  return bytes;
}

TEST(SnapshotRing, ReadsTheSlicesWhileNothingChangesThem) {
  const auto slices = Slices(2);
  for (int b = 0; b < 2; ++b) Overwrite(slices, b, 1);
  for (const int64_t buffer : {int64_t{1}, int64_t{1} << 20, int64_t{1} << 30}) {
    SnapshotRing ring(buffer, at::kCPU);
    ring.Begin(slices);
    EXPECT_TRUE(ReadAll(ring) == Bytes(slices));
    EXPECT_FALSE(ring.Next().has_value());
  }
}

TEST(SnapshotRing, AStateThatFitsNeverWaitsForTheWriter) {
  const auto slices = Slices(3);
  for (int b = 0; b < 3; ++b) Overwrite(slices, b, 1);
  const std::string want = Bytes(slices);
  SnapshotRing ring(int64_t{1} << 30, at::kCPU);
  ring.Begin(slices);
  for (const int b : {2, 0, 1}) {  // there is no writer yet
    ring.Protect(b);
    Overwrite(slices, b, 2);
  }
  EXPECT_TRUE(ReadAll(ring) == want) << "the bytes are those of the step at Begin";
}

TEST(SnapshotRing, AFullRingHoldsTheUpdateUntilTheWriterHasRead) {
  const auto slices = Slices(2);
  for (int b = 0; b < 2; ++b) Overwrite(slices, b, 1);
  const std::string want = Bytes(slices);
  SnapshotRing ring(256 << 10, at::kCPU);
  ring.Begin(slices);
  std::atomic<bool> is_protected = false;
  std::thread training([&] {
    ring.Protect(1);
    is_protected = true;
    for (int b = 0; b < 2; ++b) Overwrite(slices, b, 2);
  });
  while (ring.held_pieces() < ring.capacity()) std::this_thread::yield();
  EXPECT_EQ(ring.capacity(), 4);
  EXPECT_FALSE(is_protected) << "most of the state is in no slot and not read";
  EXPECT_TRUE(ReadAll(ring) == want);
  training.join();
  EXPECT_TRUE(is_protected);
}

// Many steps and saves, with every way in which the two threads can meet.
TEST(SnapshotRing, EachSnapshotIsThatOfItsStep) {
  const auto slices = Slices(3);
  for (int b = 0; b < 3; ++b) Overwrite(slices, b, 0);
  for (const int64_t buffer : {128 << 10, 600 << 10, 4 << 20}) {
    SnapshotRing ring(buffer, at::kCPU);
    for (int save = 0; save < 8; ++save) {
      const std::string want = Bytes(slices);
      ring.Begin(slices);
      std::string got;
      std::thread writer([&] { got = ReadAll(ring); });
      for (int step = 1; step <= 2; ++step) {
        for (int b = 0; b < 3; ++b) {
          ring.Protect(b);
          Overwrite(slices, b, 10 * save + step);
        }
      }
      writer.join();
      ASSERT_TRUE(got == want) << "save " << save << " through " << buffer << " bytes";
    }
  }
}

TEST(SnapshotRing, AnAbandonedSnapshotHoldsNobody) {
  const auto slices = Slices(2);
  SnapshotRing ring(128 << 10, at::kCPU);
  ring.Protect(1);  // none was begun
  ring.Begin(slices);
  ASSERT_TRUE(ring.Next().has_value());
  std::thread training([&] { ring.Protect(1); });
  while (ring.held_pieces() < ring.capacity()) std::this_thread::yield();
  ring.Abandon();  // the disk is full, say
  training.join();
  EXPECT_FALSE(ring.Next().has_value());
  ring.Begin(slices);
  EXPECT_TRUE(ReadAll(ring) == Bytes(slices));
}

TEST(SnapshotRing, NothingToSaveIsAnEmptySnapshot) {
  SnapshotRing ring(1, at::kCPU);
  ring.Begin({});
  ring.Protect(0);
  EXPECT_FALSE(ring.Next().has_value());
}

}  // namespace
}  // namespace slipway::engine::checkpoint
