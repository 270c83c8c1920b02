#include "common/checksum.h"

#include <xxhash.h>

#include <algorithm>
#include <cctype>
#include <vector>

#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace slipway {
namespace {

constexpr std::string_view kPrefix = "xxh3-128:";
constexpr size_t kDigits = 32;
constexpr int64_t kPieceBytes = 1 << 20;

std::string Format(XXH128_hash_t hash) { return absl::StrFormat("%s%016x%016x", kPrefix, hash.high64, hash.low64); }

}  // namespace

Checksum::Checksum() : state_(XXH3_createState()) { XXH3_128bits_reset(state_.get()); }
void Checksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }
void Checksum::Update(std::string_view data) { XXH3_128bits_update(state_.get(), data.data(), data.size()); }
std::string Checksum::Digest() const { return Format(XXH3_128bits_digest(state_.get())); }

std::string ChecksumOf(std::string_view data) { return Format(XXH3_128bits(data.data(), data.size())); }

absl::StatusOr<std::string> FileChecksum(FileSystem& file_system, const std::string& path) {
  SLIPWAY_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> file, file_system.OpenForRead(path));
  Checksum checksum;
  std::vector<std::byte> piece(static_cast<size_t>(std::min(kPieceBytes, file->size())));
  for (int64_t offset = 0; offset < file->size();) {
    const size_t count = static_cast<size_t>(std::min(kPieceBytes, file->size() - offset));
    SLIPWAY_RETURN_IF_ERROR(file->Read(offset, absl::MakeSpan(piece.data(), count)));
    checksum.Update({reinterpret_cast<const char*>(piece.data()), count});
    offset += static_cast<int64_t>(count);
  }
  return checksum.Digest();
}

bool IsChecksum(std::string_view text) {
  if (text.substr(0, kPrefix.size()) != kPrefix || text.size() != kPrefix.size() + kDigits) return false;
  text.remove_prefix(kPrefix.size());
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace slipway
