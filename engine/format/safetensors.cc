#include "engine/format/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <tuple>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "common/text.h"
#include "engine/format/little_endian.h"
#include "engine/format/reshard.h"
#include "engine/format/safetensors_header.h"

namespace slipway::engine::format {
namespace {

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit

absl::Status Refuse(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(StrCat(path, ": ", why));
}

// The tensors must fill the file from the end of the header to the end of the file, without holes and overlaps.
absl::Status CheckLayout(const std::string& path, std::vector<const StoredTensor*> tensors, int64_t data_bytes) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor* a, const StoredTensor* b) {
    return std::tie(a->offset, a->bytes) < std::tie(b->offset, b->bytes);
  });
  int64_t filled = 0;
  for (const StoredTensor* tensor : tensors) {
    if (tensor->offset != filled) {
      return Refuse(path,
                    absl::StrCat("tensor \"", tensor->name, "\" begins at byte ", tensor->offset, " of the data, ",
                                 tensor->offset < filled ? "inside the tensor before it, which ends at "
                                                         : "leaving a hole after the one before it, which ends at ",
                                 filled));
    }
    filled += tensor->bytes;
    if (filled > data_bytes) {
      return Refuse(path,
                    absl::StrCat("tensor \"", tensor->name, "\" ends at byte ", filled,
                                 " of the data, but the file has only ", data_bytes, "; it is cut off or damaged"));
    }
  }
  if (filled != data_bytes) {
    return Refuse(path, absl::StrCat("the tensors have ", filled, " bytes together, but the file has ", data_bytes));
  }
  return absl::OkStatus();
}

// The reference implementation's order (by its enum of types, widest first), so that files come out the same.
int FileOrder(DType dtype) {
  constexpr std::array kOrder = {DType::kInt64,   DType::kFloat64, DType::kFloat32, DType::kInt32, DType::kBFloat16,
                                 DType::kFloat16, DType::kInt16,   DType::kInt8,    DType::kUint8, DType::kBool};
  return static_cast<int>(std::find(kOrder.begin(), kOrder.end(), dtype) - kOrder.begin());
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(FileSystem& file_system, const std::string& path) {
  SafetensorsFile result;
  SLIPWAY_ASSIGN_OR_RETURN(result.file_, file_system.OpenForRead(path));
  const int64_t size = result.file_->size();
  if (size < kLengthBytes)
    return Refuse(path, absl::StrCat("it has ", size, " bytes; a safetensors file has at least 8"));
  std::array<std::byte, kLengthBytes> length_bytes;
  SLIPWAY_RETURN_IF_ERROR(result.file_->Read(0, absl::MakeSpan(length_bytes)));
  const uint64_t length = LoadLittleEndian<uint64_t>(length_bytes.data());
  if (length > static_cast<uint64_t>(std::min(kMaxHeaderBytes, size - kLengthBytes))) {
    return Refuse(path, absl::StrCat("its header claims ", length, " bytes, but the file has ", size,
                                     " and a header at most ", kMaxHeaderBytes));
  }
  std::string text(length, '\0');
  SLIPWAY_RETURN_IF_ERROR(
      result.file_->Read(kLengthBytes, absl::MakeSpan(reinterpret_cast<std::byte*>(text.data()), text.size())));
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(text);
  if (!header.ok()) return Annotate(header.status(), path);

  result.metadata_ = std::move(header->metadata);
  result.tensors_ = std::move(header->tensors);
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(length);
  std::vector<const StoredTensor*> pointers;
  for (const StoredTensor& tensor : result.tensors_) pointers.push_back(&tensor);
  SLIPWAY_RETURN_IF_ERROR(CheckLayout(path, std::move(pointers), size - data_start));
  for (StoredTensor& tensor : result.tensors_) tensor.offset += data_start;
  std::sort(result.tensors_.begin(), result.tensors_.end(),
            [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
  return result;
}

const StoredTensor* SafetensorsFile::Find(std::string_view name) const {
  const auto found = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                      [](const StoredTensor& tensor, std::string_view n) { return tensor.name < n; });
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

absl::Status SafetensorsFile::Read(const StoredTensor& tensor, int64_t byte_offset, absl::Span<std::byte> out) const {
  const int64_t count = static_cast<int64_t>(out.size());
  if (byte_offset < 0 || byte_offset > tensor.bytes || count > tensor.bytes - byte_offset) {
    return absl::OutOfRangeError(absl::StrCat(path(), ": tensor \"", tensor.name, "\" has ", tensor.bytes, " bytes; ",
                                              count, " at ", byte_offset, " are not inside"));
  }
  return file_->Read(tensor.offset + byte_offset, out);
}

absl::StatusOr<SafetensorsWriter> SafetensorsWriter::Create(FileSystem& file_system, const std::string& path,
                                                            std::vector<TensorInfo> tensors,
                                                            const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::make_pair(FileOrder(a.dtype), std::string_view(a.name)) <
           std::make_pair(FileOrder(b.dtype), std::string_view(b.name));
  });
  SafetensorsHeader header{.tensors = {}, .metadata = metadata};
  std::set<std::string> names = {"__metadata__"};
  int64_t offset = 0;
  for (TensorInfo& tensor : tensors) {
    if (!names.insert(tensor.name).second) {
      return Refuse(path, absl::StrCat("two tensors cannot both be named \"", tensor.name, "\""));
    }
    if (!IsUtf8(tensor.name)) return Refuse(path, "a tensor's name is not UTF-8");
    const absl::StatusOr<int64_t> elements = ElementCount(tensor.shape);
    if (!elements.ok()) return Annotate(elements.status(), absl::StrCat(path, ": tensor \"", tensor.name, "\""));
    const int64_t bytes = *elements * DTypeSize(tensor.dtype);
    header.tensors.push_back(StoredTensor{{std::move(tensor)}, offset, bytes});
    offset += bytes;
  }
  std::string text = SafetensorsHeaderText(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string start(kLengthBytes, '\0');
  StoreLittleEndian<uint64_t>(text.size(), start.data());

  SafetensorsWriter writer;
  writer.path_ = path;
  SLIPWAY_ASSIGN_OR_RETURN(writer.file_, file_system.OpenForWrite(path, WriteMode::kTruncate));
  const int64_t data_start = kLengthBytes + static_cast<int64_t>(text.size());
  writer.layout_ = std::move(header.tensors);
  for (StoredTensor& tensor : writer.layout_) tensor.offset += data_start;
  writer.file_size_ = data_start + offset;
  SLIPWAY_RETURN_IF_ERROR(writer.Append(start + text));
  return writer;
}

absl::Status SafetensorsWriter::Append(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > file_size_ - written_) {
    return absl::FailedPreconditionError(absl::StrCat(path_, ": ", written_ + static_cast<int64_t>(bytes.size()),
                                                      " bytes are more than the ", file_size_,
                                                      " that its tensors have"));
  }
  SLIPWAY_RETURN_IF_ERROR(file_->Append(bytes));
  checksum_.Update(bytes);
  written_ += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  if (written_ != file_size_) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": ", written_, " bytes were written of the ", file_size_, " that its tensors have"));
  }
  SLIPWAY_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace slipway::engine::format
