// The state of one step, read out while the next steps overwrite it, through a bounded ring of host memory.
//
//   SnapshotRing ring(buffer_bytes, device);
//   ring.Begin(slices);                  // training thread, after step S; then a writer thread starts
//   while (auto bytes = ring.Next()) …   // writer thread: the bytes of step S, in the order of the slices
//   ring.Protect(bucket);                // training thread, before step S + 1 overwrites that bucket
//
// Nothing is copied at Begin. The writer copies piece by piece while the next step computes; whatever of a bucket it
// has not got to when the optimizer wants to overwrite it, the training thread copies itself, and it waits only while
// the ring is full. So the bytes are those of step S exactly, and memory is bounded whatever the size of the state. On
// CUDA the ring is pinned memory, and copies run on a stream of their own behind what the training stream had queued at
// Begin. Thread-safety: Begin and Protect from the training thread, Next from one writer thread, Abandon from any.
#ifndef SLIPWAY_ENGINE_CHECKPOINT_SNAPSHOT_RING_H_
#define SLIPWAY_ENGINE_CHECKPOINT_SNAPSHOT_RING_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

namespace slipway::engine::checkpoint {

struct SnapshotSlice {
  int bucket = 0;
  at::Tensor tensor;  // contiguous, on the ring's device
};

class SnapshotRing {
 public:
  // At least two pieces fit, however small `buffer_bytes` is. Memory is taken at the first Begin and kept.
  SnapshotRing(int64_t buffer_bytes, at::Device device);

  // REQUIRES: the slices are in ascending order of their buckets; the snapshot before is read to its end or abandoned,
  // and its writer is gone.
  void Begin(const std::vector<SnapshotSlice>& slices);
  // Returns once nothing of the bucket is needed any more. Buckets may come in any order.
  void Protect(int bucket);
  // The next bytes; valid until the next call. Nothing at the end, and when the snapshot was abandoned.
  std::optional<std::string_view> Next();
  // Nobody wants the rest: Protect does not wait any more.
  void Abandon();

  // Pieces that are copied and not yet written, and how many there is room for. For tests.
  int64_t held_pieces() const;
  int64_t capacity() const { return static_cast<int64_t>(slots_.size()); }

 private:
  struct Piece {
    at::Tensor source;
    int bucket = 0;
    bool copied = false;
  };

  void MakeSlots(int64_t pieces, int64_t largest_bytes);
  // Copies the next piece into its slot, with the lock released meanwhile. REQUIRES: there is one, and a free slot.
  void CopyNext(std::unique_lock<std::mutex>& lock);
  bool CanCopy() const { return claimed_ < pieces_.size() && claimed_ < written_ + slots_.size(); }
  void CopyToHost(const at::Tensor& source, const at::Tensor& slot) const;

  const at::Device device_;
  const int64_t buffer_bytes_;
  const int64_t piece_bytes_;
  std::vector<at::Tensor> slots_;           // uint8, on the host
  std::optional<c10::Stream> copy_stream_;  // not on CPU

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Piece> pieces_;  // in the order of reading; piece i goes through slot i % slots
  size_t claimed_ = 0;         // pieces that somebody copies or has copied
  size_t written_ = 0;         // pieces whose slot is free again
  bool reading_ = false;       // the writer holds piece `written_`
  bool abandoned_ = true;
};

}  // namespace slipway::engine::checkpoint

#endif  // SLIPWAY_ENGINE_CHECKPOINT_SNAPSHOT_RING_H_
