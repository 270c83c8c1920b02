#include "engine/checkpoint/snapshot_ring.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace slipway::engine::checkpoint {
namespace {

constexpr int64_t kMinPieceBytes = int64_t{64} << 10;
constexpr int64_t kMaxPieceBytes = int64_t{16} << 20;
constexpr int64_t kPiecesOfASmallRing = 4;

}  // namespace

SnapshotRing::SnapshotRing(int64_t buffer_bytes, at::Device device)
    : device_(device),
      buffer_bytes_(buffer_bytes),
      piece_bytes_(std::clamp(buffer_bytes / kPiecesOfASmallRing, kMinPieceBytes, kMaxPieceBytes)) {}

void SnapshotRing::Begin(const std::vector<SnapshotSlice>& slices) {
  std::vector<Piece> pieces;
  int64_t largest = 0;
  for (const SnapshotSlice& slice : slices) {
    TORCH_CHECK(slice.tensor.is_contiguous(), "a slice of a snapshot is not contiguous");
    TORCH_CHECK(pieces.empty() || slice.bucket >= pieces.back().bucket, "slices are not in the order of their buckets");
    const int64_t step = piece_bytes_ / slice.tensor.element_size();
    for (int64_t begin = 0; begin < slice.tensor.numel(); begin += step) {
      const int64_t count = std::min(step, slice.tensor.numel() - begin);
      pieces.push_back({slice.tensor.view(-1).narrow(0, begin, count), slice.bucket});
      largest = std::max(largest, count * slice.tensor.element_size());
    }
  }
  MakeSlots(static_cast<int64_t>(pieces.size()), largest);
  if (!device_.is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    if (!copy_stream_.has_value()) copy_stream_ = guard.getStreamFromGlobalPool(device_);
    // Copies see what the training stream has queued so far, and nothing later: Protect sees to that.
    c10::Event state(device_.type());
    state.record(guard.getStream(device_));
    state.block(*copy_stream_);
  }
  std::lock_guard lock(mutex_);
  pieces_ = std::move(pieces);
  claimed_ = written_ = 0;
  reading_ = abandoned_ = false;
}

void SnapshotRing::MakeSlots(int64_t pieces, int64_t largest_bytes) {
  const int64_t wanted = std::min(pieces, std::max<int64_t>(2, buffer_bytes_ / piece_bytes_));
  if (!slots_.empty() && slots_[0].numel() < largest_bytes) slots_.clear();
  const at::TensorOptions host = at::TensorOptions().dtype(at::kByte).pinned_memory(!device_.is_cpu());
  while (capacity() < wanted) slots_.push_back(at::empty({largest_bytes}, host));
}

void SnapshotRing::Protect(int bucket) {
  std::unique_lock lock(mutex_);
  const auto behind = std::upper_bound(pieces_.begin(), pieces_.end(), bucket,
                                       [](int wanted, const Piece& piece) { return wanted < piece.bucket; });
  const auto end = static_cast<size_t>(behind - pieces_.begin());
  const auto is_safe = [&] {
    for (size_t i = written_; i < end; ++i) {
      if (!pieces_[i].copied) return false;
    }
    return true;
  };
  while (!abandoned_ && !is_safe()) {
    if (claimed_ < end && CanCopy()) {
      CopyNext(lock);
    } else {
      changed_.wait(lock);
    }
  }
}

std::optional<std::string_view> SnapshotRing::Next() {
  std::unique_lock lock(mutex_);
  if (reading_) {
    reading_ = false;
    ++written_;
    changed_.notify_all();
  }
  while (true) {
    if (abandoned_ || written_ == pieces_.size()) return std::nullopt;
    const Piece& piece = pieces_[written_];
    if (piece.copied) {
      reading_ = true;
      const at::Tensor& slot = slots_[written_ % slots_.size()];
      return std::string_view(static_cast<const char*>(slot.const_data_ptr()), piece.source.nbytes());
    }
    if (claimed_ == written_) {
      CopyNext(lock);
    } else {
      changed_.wait(lock);  // the training thread is copying it
    }
  }
}

void SnapshotRing::Abandon() {
  std::lock_guard lock(mutex_);
  abandoned_ = true;
  changed_.notify_all();
}

int64_t SnapshotRing::held_pieces() const {
  std::lock_guard lock(mutex_);
  return static_cast<int64_t>(claimed_ - written_);
}

void SnapshotRing::CopyNext(std::unique_lock<std::mutex>& lock) {
  const size_t index = claimed_++;
  const at::Tensor source = pieces_[index].source;
  const at::Tensor slot = slots_[index % slots_.size()];
  lock.unlock();
  CopyToHost(source, slot);
  lock.lock();
  pieces_[index].copied = true;
  changed_.notify_all();
}

void SnapshotRing::CopyToHost(const at::Tensor& source, const at::Tensor& slot) const {
  if (device_.is_cpu()) {
    std::memcpy(slot.mutable_data_ptr(), source.const_data_ptr(), source.nbytes());
    return;
  }
  const at::NoGradGuard no_grad;
  const c10::StreamGuard guard(*copy_stream_);
  const auto bytes = static_cast<int64_t>(source.nbytes());
  slot.narrow(0, 0, bytes).copy_(source.view(at::kByte), /*non_blocking=*/true);
  copy_stream_->synchronize();
}

}  // namespace slipway::engine::checkpoint
