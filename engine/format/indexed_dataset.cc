#include "engine/format/indexed_dataset.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "common/status_macros.h"
#include "common/str_cat.h"
#include "engine/format/indexed_dataset_layout.h"
#include "engine/format/little_endian.h"

namespace slipway::engine::format {
namespace {

absl::Status Refuse(const std::string& path, std::string_view why) {
  return absl::InvalidArgumentError(StrCat(path, ": ", why));
}

absl::StatusOr<TokenType> TokenTypeFromCode(const std::string& path, uint8_t code) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      return static_cast<TokenType>(code);
    case 6:
    case 7:
      return Refuse(path, absl::StrCat("its data type code ", int{code}, " (", code == 6 ? "float64" : "float32",
                                       ") holds no token ids"));
    default:
      return Refuse(path, absl::StrCat("its data type code is ", int{code}, "; the known ones are 1 to 8"));
  }
}

template <typename Stored>
bool CopyTokens(const char* from, absl::Span<int32_t> out) {
  bool good = true;
  for (size_t i = 0; i < out.size(); ++i) {
    const Stored value = LoadLittleEndian<Stored>(from + i * sizeof(Stored));
    if constexpr (sizeof(Stored) == 8) good = good && value <= std::numeric_limits<int32_t>::max();
    if constexpr (std::is_signed_v<Stored>) good = good && value >= 0;
    out[i] = static_cast<int32_t>(value);
  }
  return good;
}

}  // namespace

int64_t TokenSize(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
    case TokenType::kInt8:
      return 1;
    case TokenType::kInt16:
    case TokenType::kUint16:
      return 2;
    case TokenType::kInt32:
      return 4;
    case TokenType::kInt64:
      return 8;
  }
  return 0;
}

std::string_view TokenTypeName(TokenType type) {
  switch (type) {
    case TokenType::kUint8:
      return "uint8";
    case TokenType::kInt8:
      return "int8";
    case TokenType::kInt16:
      return "int16";
    case TokenType::kUint16:
      return "uint16";
    case TokenType::kInt32:
      return "int32";
    case TokenType::kInt64:
      return "int64";
  }
  return "";
}

TokenType TokenTypeForVocabulary(std::optional<int64_t> vocabulary_size) {
  return vocabulary_size.has_value() && *vocabulary_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

absl::StatusOr<IndexedDataset> IndexedDataset::Open(FileSystem& file_system, const std::string& prefix) {
  IndexedDataset dataset;
  dataset.prefix_ = prefix;
  const std::string index_path = IndexPath(prefix), data_path = DataPath(prefix);
  SLIPWAY_ASSIGN_OR_RETURN(dataset.index_info_, file_system.Stat(index_path));
  SLIPWAY_ASSIGN_OR_RETURN(dataset.data_info_, file_system.Stat(data_path));
  SLIPWAY_ASSIGN_OR_RETURN(dataset.index_, file_system.Map(index_path));
  SLIPWAY_ASSIGN_OR_RETURN(dataset.data_, file_system.Map(data_path));
  SLIPWAY_RETURN_IF_ERROR(dataset.CheckIndex(dataset.index_->data(), index_path));
  SLIPWAY_RETURN_IF_ERROR(dataset.CheckSequences(index_path, data_path));
  SLIPWAY_RETURN_IF_ERROR(dataset.CheckDocuments(index_path));
  dataset.tokens_ = static_cast<int64_t>(dataset.data_->data().size()) / TokenSize(dataset.type_);
  return dataset;
}

// The header, and that the three arrays fill the rest of the file.
absl::Status IndexedDataset::CheckIndex(std::string_view index, const std::string& index_path) {
  if (index.size() < kIndexHeaderBytes) {
    return Refuse(index_path,
                  absl::StrCat("it has ", index.size(), " bytes, and the header alone ", kIndexHeaderBytes));
  }
  if (index.substr(0, kIndexMagic.size()) != kIndexMagic) {
    return Refuse(index_path, "it does not begin with MMIDIDX, so it is not the index of an indexed dataset");
  }
  const uint64_t version = LoadLittleEndian<uint64_t>(index.data() + 9);
  if (version != kIndexVersion) return Refuse(index_path, absl::StrCat("its version is ", version, ", and 1 is known"));
  SLIPWAY_ASSIGN_OR_RETURN(type_, TokenTypeFromCode(index_path, static_cast<uint8_t>(index[17])));
  const uint64_t sequences = LoadLittleEndian<uint64_t>(index.data() + 18);
  const uint64_t boundaries = LoadLittleEndian<uint64_t>(index.data() + 26);
  const uint64_t rest = index.size() - kIndexHeaderBytes;
  const std::string counts = absl::StrCat(sequences, " sequences and ", boundaries, " document boundaries");
  if (sequences > rest / 12 || boundaries > (rest - 12 * sequences) / 8) {
    return Refuse(index_path, absl::StrCat("it claims ", counts, ", but has only ", index.size(), " bytes"));
  }
  const uint64_t expected = 12 * sequences + 8 * boundaries;
  if (rest == expected + sequences && sequences > 0) {
    return Refuse(index_path, absl::StrCat("it has a mode for each of its ", sequences,
                                           " sequences; multimodal datasets are not supported"));
  }
  if (rest != expected) {
    return Refuse(index_path, absl::StrCat("with ", counts, " it must have ", kIndexHeaderBytes + expected,
                                           " bytes, and it has ", index.size()));
  }
  if (boundaries == 0)
    return Refuse(index_path, "it has no document boundary, and there must be one more than documents");
  sequences_ = static_cast<int64_t>(sequences);
  documents_ = static_cast<int64_t>(boundaries) - 1;
  lengths_ = index.data() + kIndexHeaderBytes;
  offsets_ = lengths_ + 4 * sequences;
  boundaries_ = offsets_ + 8 * sequences;
  return absl::OkStatus();
}

// Sequences lie end to end and fill the data file.
absl::Status IndexedDataset::CheckSequences(const std::string& index_path, const std::string& data_path) const {
  const int64_t data_bytes = static_cast<int64_t>(data_->data().size());
  const int64_t size = TokenSize(type_);
  int64_t expected = 0;
  for (int64_t i = 0; i < sequences_; ++i) {
    const int64_t length = LoadLittleEndian<int32_t>(lengths_ + 4 * i);
    const int64_t offset = LoadLittleEndian<int64_t>(offsets_ + 8 * i);
    if (length < 0) return Refuse(index_path, absl::StrCat("sequence ", i, " has ", length, " tokens"));
    if (offset != expected) {
      return Refuse(index_path, absl::StrCat("sequence ", i, " begins at byte ", offset, " of ", data_path,
                                             ", but the sequences before it end at byte ", expected));
    }
    expected += length * size;
    if (expected > data_bytes) {
      return Refuse(index_path, absl::StrCat("sequence ", i, " ends at byte ", expected, ", but ", data_path,
                                             " has only ", data_bytes, " bytes"));
    }
  }
  if (expected != data_bytes) {
    return Refuse(index_path, absl::StrCat("its sequences have ", expected, " bytes of ", ToAbsl(TokenTypeName(type_)),
                                           ", but ", data_path, " has ", data_bytes));
  }
  return absl::OkStatus();
}

absl::Status IndexedDataset::CheckDocuments(const std::string& index_path) const {
  int64_t last = 0;
  for (int64_t d = 0; d <= documents_; ++d) {
    const int64_t boundary = DocumentStart(d);
    if (d == 0 && boundary != 0) {
      return Refuse(index_path, absl::StrCat("the first document begins at sequence ", boundary, " and not at 0"));
    }
    if (boundary < last || boundary > sequences_) {
      return Refuse(index_path, absl::StrCat("document boundary ", d, " is ", boundary, ", which is not between ", last,
                                             " and the number of sequences, ", sequences_));
    }
    last = boundary;
  }
  if (last != sequences_) {
    return Refuse(index_path,
                  absl::StrCat("the last document ends at sequence ", last, ", but there are ", sequences_));
  }
  return absl::OkStatus();
}

int64_t IndexedDataset::SequenceLength(int64_t sequence) const {
  return LoadLittleEndian<int32_t>(lengths_ + 4 * sequence);
}

int64_t IndexedDataset::SequenceStart(int64_t sequence) const {
  return LoadLittleEndian<int64_t>(offsets_ + 8 * sequence) / TokenSize(type_);
}

int64_t IndexedDataset::DocumentStart(int64_t document) const {
  return LoadLittleEndian<int64_t>(boundaries_ + 8 * document);
}

int64_t IndexedDataset::SequenceAt(int64_t token) const {
  // The last one that does not start behind it: empty ones before it are skipped.
  int64_t low = 0, high = sequences_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (SequenceStart(middle) <= token ? low : high) = middle;
  }
  return low;
}

int64_t IndexedDataset::DocumentOf(int64_t sequence) const {
  // The last document that starts at or before the sequence: empty documents before it are skipped.
  int64_t low = 0, high = documents_;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (DocumentStart(middle) <= sequence ? low : high) = middle;
  }
  return low;
}

absl::Status IndexedDataset::Read(int64_t sequence, int64_t offset, absl::Span<int32_t> out) const {
  if (sequence < 0 || sequence >= sequences_) {
    return absl::OutOfRangeError(absl::StrCat(prefix_, ": there is no sequence ", sequence, " among ", sequences_));
  }
  const int64_t length = SequenceLength(sequence), count = static_cast<int64_t>(out.size());
  if (offset < 0 || offset > length || count > length - offset) {
    return absl::OutOfRangeError(absl::StrCat(prefix_, ": sequence ", sequence, " has ", length, " tokens; ", count,
                                              " from ", offset, " on are not inside"));
  }
  const char* from = data_->data().data() + (SequenceStart(sequence) + offset) * TokenSize(type_);
  bool good = true;
  switch (type_) {
    case TokenType::kUint8:
      good = CopyTokens<uint8_t>(from, out);
      break;
    case TokenType::kInt8:
      good = CopyTokens<int8_t>(from, out);
      break;
    case TokenType::kInt16:
      good = CopyTokens<int16_t>(from, out);
      break;
    case TokenType::kUint16:
      good = CopyTokens<uint16_t>(from, out);
      break;
    case TokenType::kInt32:
      good = CopyTokens<int32_t>(from, out);
      break;
    case TokenType::kInt64:
      good = CopyTokens<int64_t>(from, out);
      break;
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(DataPath(prefix_), ": document ", DocumentOf(sequence), " (sequence ",
                                                 sequence, ") holds a token id outside 0 to 2147483647"));
}

absl::Status IndexedDataset::CheckUnchanged(FileSystem& file_system) const {
  const std::pair<std::string, const FileInfo*> opened[] = {{IndexPath(prefix_), &index_info_},
                                                            {DataPath(prefix_), &data_info_}};
  for (const auto& [path, before] : opened) {
    SLIPWAY_ASSIGN_OR_RETURN(const FileInfo now, file_system.Stat(path));
    if (now.size == before->size && now.modified == before->modified) continue;
    return absl::DataLossError(absl::StrCat(path, " was changed while it was in use: it had ", before->size,
                                            " bytes of ", absl::FormatTime(before->modified), ", and now has ", now.size,
                                            " of ", absl::FormatTime(now.modified)));
  }
  return absl::OkStatus();
}

}  // namespace slipway::engine::format
