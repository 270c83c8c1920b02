#include "engine/format/indexed_dataset.h"

#include <filesystem>

#include "common/fault_file_system.h"
#include "common/status_macros.h"
#include "engine/format/little_endian.h"
#include "tests/support/format_files.h"

namespace slipway::engine::format {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Document = std::vector<std::vector<int32_t>>;
constexpr int32_t kEod = 258;

std::string Golden(const std::string& name) { return GoldenPath("indexed_dataset/" + name); }

void Write(const std::string& prefix, TokenType type, const std::vector<Document>& documents) {
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(IndexedDatasetWriter writer, IndexedDatasetWriter::Create(files, prefix, type));
  for (const Document& document : documents) {
    for (const std::vector<int32_t>& sequence : document) ASSERT_OK(writer.AddSequence(sequence));
    writer.EndDocument();
  }
  ASSERT_OK(writer.Finish());
}

void ExpectSameFiles(const std::string& prefix, const std::string& golden) {
  EXPECT_EQ(ReadWhole(prefix + ".bin"), ReadWhole(Golden(golden) + ".bin")) << golden;
  EXPECT_EQ(ReadWhole(prefix + ".idx"), ReadWhole(Golden(golden) + ".idx")) << golden;
}

// P1 and P2: empty documents keep their boundary; the end-of-document id is in the recorded length.
TEST(IndexedDatasetTest, WritesMegatronsBytes) {
  TempDir dir;
  const Document abc = {{97, 98, 99, kEod}}, de = {{100, 101, kEod}}, empty = {};
  const std::vector<std::pair<std::string, std::vector<Document>>> cases = {{"empty_middle", {abc, empty, de}},
                                                                            {"empty_first", {empty, abc, de}},
                                                                            {"empty_all", {empty, empty}},
                                                                            {"two_documents", {abc, de}}};
  for (const auto& [name, documents] : cases) {
    Write(dir.Path(name), TokenType::kUint16, documents);
    ExpectSameFiles(dir.Path(name), name);
  }
  Write(dir.Path("s"), TokenType::kInt32, {{{1, 2}, {3}}, {{4, 5, 6}, {7}, {8}}});
  ExpectSameFiles(dir.Path("s"), "sentences");
  EXPECT_EQ(ReadWhole(dir.Path("empty_middle.idx")).size(), 90u);
  EXPECT_EQ(ReadWhole(dir.Path("two_documents.idx")).size(), 82u);
  EXPECT_EQ(ReadWhole(dir.Path("two_documents.bin")).size(), 14u);
}

TEST(IndexedDatasetTest, ReadsMegatronsFiles) {
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(const IndexedDataset middle, IndexedDataset::Open(files, Golden("empty_middle")));
  EXPECT_EQ(middle.token_type(), TokenType::kUint16);
  EXPECT_EQ(middle.sequence_count(), 2);
  EXPECT_EQ(middle.document_count(), 3);
  EXPECT_EQ(middle.token_count(), 7);
  EXPECT_EQ(middle.SequenceLength(0), 4);
  EXPECT_EQ(middle.SequenceLength(1), 3);
  EXPECT_EQ(middle.SequenceStart(1), 4);
  EXPECT_THAT((std::vector<int64_t>{middle.DocumentStart(0), middle.DocumentStart(1), middle.DocumentStart(2),
                                    middle.DocumentStart(3)}),
              ElementsAre(0, 1, 1, 2));
  EXPECT_EQ(middle.DocumentOf(0), 0);
  EXPECT_EQ(middle.DocumentOf(1), 2);
  std::vector<int32_t> tokens(2);
  ASSERT_OK(middle.Read(0, 2, absl::MakeSpan(tokens)));
  EXPECT_THAT(tokens, ElementsAre(99, kEod));
  EXPECT_THAT(middle.Read(0, 3, absl::MakeSpan(tokens)),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("4 tokens")));
  EXPECT_EQ(middle.Read(2, 0, absl::MakeSpan(tokens)).code(), absl::StatusCode::kOutOfRange);

  ASSERT_OK_AND_ASSIGN(const IndexedDataset merged, IndexedDataset::Open(files, Golden("merged")));
  EXPECT_EQ(merged.document_count(), 8);
  tokens.resize(4);
  ASSERT_OK(merged.Read(merged.sequence_count() - 1, 0, absl::MakeSpan(tokens)));
  EXPECT_THAT(tokens, ElementsAre(70000, 7, 8, 9));
  ASSERT_OK_AND_ASSIGN(const IndexedDataset none, IndexedDataset::Open(files, Golden("empty_all")));
  EXPECT_EQ(none.token_count(), 0);
  EXPECT_EQ(none.document_count(), 2);
}

TEST(IndexedDatasetTest, MergesLikeMegatron) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(IndexedDatasetWriter writer,
                       IndexedDatasetWriter::Create(files, dir.Path("m"), TokenType::kInt32));
  for (const char* part : {"three_documents", "sentences", "three_documents"}) ASSERT_OK(writer.AddIndex(Golden(part)));
  EXPECT_THAT(writer.AddIndex(Golden("two_documents")),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("uint16"), HasSubstr("int32"))));
  ASSERT_OK(writer.Finish());
  ExpectSameFiles(dir.Path("m"), "merged");
}

TEST(IndexedDatasetTest, EveryTypeRoundTrips) {
  TempDir dir;
  PosixFileSystem files;
  for (const TokenType type : {TokenType::kUint8, TokenType::kInt8, TokenType::kInt16, TokenType::kUint16,
                               TokenType::kInt32, TokenType::kInt64}) {
    Write(dir.Path("t"), type, {{{1, 2, 100}}, {{}, {127}}});
    ASSERT_OK_AND_ASSIGN(const IndexedDataset dataset, IndexedDataset::Open(files, dir.Path("t")));
    EXPECT_EQ(dataset.token_type(), type);
    std::vector<int32_t> tokens(3);
    ASSERT_OK(dataset.Read(0, 0, absl::MakeSpan(tokens)));
    EXPECT_THAT(tokens, ElementsAre(1, 2, 100));
    EXPECT_EQ(dataset.SequenceLength(1), 0);
    EXPECT_EQ(dataset.DocumentOf(2), 1);
  }
  EXPECT_EQ(TokenTypeForVocabulary(65499), TokenType::kUint16);
  EXPECT_EQ(TokenTypeForVocabulary(65500), TokenType::kInt32);
  EXPECT_EQ(TokenTypeForVocabulary(std::nullopt), TokenType::kInt32);
}

TEST(IndexedDatasetTest, WriterRefusesWhatTheTypeCannotHold) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(IndexedDatasetWriter writer,
                       IndexedDatasetWriter::Create(files, dir.Path("w"), TokenType::kUint16));
  EXPECT_THAT(writer.AddSequence({1, 70000}), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("uint16")));
  EXPECT_EQ(writer.AddSequence({-1}).code(), absl::StatusCode::kInvalidArgument);
  ASSERT_OK(writer.AddSequence({1, 65535}));
  EXPECT_THAT(writer.Finish(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not ended")));
  EXPECT_EQ(writer.AddIndex(Golden("two_documents")).code(), absl::StatusCode::kFailedPrecondition);
  writer.EndDocument();
  ASSERT_OK(writer.Finish());
  ASSERT_OK_AND_ASSIGN(const IndexedDataset dataset, IndexedDataset::Open(files, dir.Path("w")));
  EXPECT_EQ(dataset.token_count(), 2);
}

TEST(IndexedDatasetTest, NegativeAndHugeIdsAreNamed) {
  TempDir dir;
  PosixFileSystem files;
  Write(dir.Path("n"), TokenType::kInt64, {{{1}}, {}, {{2, 3}}});
  std::string data = ReadWhole(dir.Path("n.bin"));
  std::vector<int32_t> tokens(2);
  for (const int64_t bad : {int64_t{-1}, int64_t{1} << 31}) {
    StoreLittleEndian(bad, data.data() + 16);
    WriteWhole(dir.Path("n.bin"), data);
    ASSERT_OK_AND_ASSIGN(const IndexedDataset dataset, IndexedDataset::Open(files, dir.Path("n")));
    EXPECT_THAT(dataset.Read(1, 0, absl::MakeSpan(tokens)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("document 2")));
  }
}

// P4: index and data that disagree.
class DamagedDatasetTest : public ::testing::Test {
 protected:
  DamagedDatasetTest()
      : index_(ReadWhole(Golden("three_documents.idx"))), data_(ReadWhole(Golden("three_documents.bin"))) {}

  void ExpectRefused(const std::string& index, const std::string& data, const std::string& message) {
    WriteWhole(dir_.Path("d.idx"), index);
    WriteWhole(dir_.Path("d.bin"), data);
    PosixFileSystem files;
    EXPECT_THAT(IndexedDataset::Open(files, dir_.Path("d")),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr(dir_.Path("d.")), HasSubstr(message))));
  }
  template <typename T>
  std::string IndexWith(size_t at, T value) const {
    std::string changed = index_;
    StoreLittleEndian(value, changed.data() + at);
    return changed;
  }

  TempDir dir_;
  const std::string index_, data_;
};

TEST_F(DamagedDatasetTest, IsRefusedAtOpen) {
  ASSERT_EQ(index_.size(), 102u);
  constexpr size_t kLengths = 34, kOffsets = 34 + 12, kBoundaries = 34 + 36;
  ExpectRefused(index_, data_.substr(0, 35), "ends at byte 36, but");  // (a)
  ExpectRefused(index_, data_ + "x", "have 36 bytes");
  ExpectRefused(index_.substr(0, 101), data_, "only 101 bytes");  // (b)
  ExpectRefused(index_ + "x", data_, "must have 102 bytes, and it has 103");
  ExpectRefused("X" + index_.substr(1), data_, "MMIDIDX");  // (c)
  ExpectRefused(IndexWith<uint64_t>(9, 2), data_, "version is 2");
  ExpectRefused(IndexWith<uint8_t>(17, 9), data_, "code is 9");  // (d)
  ExpectRefused(IndexWith<uint8_t>(17, 7), data_, "float32");
  ExpectRefused(IndexWith<uint8_t>(17, 8), data_, "begins at byte 12");
  ExpectRefused(IndexWith<int64_t>(kBoundaries + 24, 2), data_, "ends at sequence 2, but there are 3");  // (e)
  ExpectRefused(IndexWith<int64_t>(kBoundaries + 8, 4), data_, "document boundary 1 is 4");
  ExpectRefused(IndexWith<int64_t>(kBoundaries, 1), data_, "begins at sequence 1");
  ExpectRefused(IndexWith<int64_t>(kBoundaries + 8, -1), data_, "document boundary 1 is -1");
  ExpectRefused(IndexWith<int64_t>(kOffsets + 16, 1000), data_, "begins at byte 1000");  // (f)
  ExpectRefused(IndexWith<int32_t>(kLengths, -5), data_, "-5 tokens");
  ExpectRefused(IndexWith<int32_t>(kLengths + 8, 1 << 30), data_, "has only 36 bytes");
  ExpectRefused(IndexWith<uint64_t>(18, uint64_t{1} << 40), data_, "1099511627776 sequences");  // (h)
  ExpectRefused(IndexWith<uint64_t>(26, ~uint64_t{0}), data_, "18446744073709551615 document boundaries");
  ExpectRefused(index_ + std::string(3, '\0'), data_, "multimodal");
  ExpectRefused("", data_, "0 bytes");

  std::filesystem::remove(dir_.Path("d.bin"));  // (g)
  PosixFileSystem files;
  WriteWhole(dir_.Path("d.idx"), index_);
  EXPECT_THAT(IndexedDataset::Open(files, dir_.Path("d")), StatusIs(absl::StatusCode::kNotFound, HasSubstr("d.bin")));
}

TEST_F(DamagedDatasetTest, DamageIsAnErrorOrAnotherValidDataset) {
  PosixFileSystem files;
  WriteWhole(dir_.Path("d.bin"), data_);
  ForEachDamage(index_, [&](const std::string& damaged) {
    WriteWhole(dir_.Path("d.idx"), damaged);
    const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(files, dir_.Path("d"));
    if (!dataset.ok()) return;
    for (int64_t i = 0; i < dataset->sequence_count(); ++i) {
      std::vector<int32_t> tokens(static_cast<size_t>(dataset->SequenceLength(i)));
      dataset->Read(i, 0, absl::MakeSpan(tokens)).IgnoreError();  // ids may be bad; it must not crash
      EXPECT_LT(dataset->DocumentOf(i), dataset->document_count());
    }
  });
}

// A run that fails at any operation leaves nothing that opens, also over an earlier dataset.
TEST(IndexedDatasetTest, AFailedRunLeavesNothingThatOpens) {
  for (const FaultKind kind : {FaultKind::kNoSpace, FaultKind::kCrash, FaultKind::kPowerLoss, FaultKind::kShortWrite}) {
    for (int nth = 1; nth < 20; ++nth) {
      TempDir dir;
      PosixFileSystem real;
      Write(dir.Path("p"), TokenType::kInt32, {{{9, 9, 9}}});
      FaultFileSystem faulty(real);
      faulty.FailAt(nth, kind);
      const auto write = [&]() -> absl::Status {
        SLIPWAY_ASSIGN_OR_RETURN(IndexedDatasetWriter writer,
                                 IndexedDatasetWriter::Create(faulty, dir.Path("p"), TokenType::kInt32));
        SLIPWAY_RETURN_IF_ERROR(writer.AddSequence({1, 2}));
        writer.EndDocument();
        return writer.Finish();
      };
      const absl::Status status = write();
      const absl::StatusOr<IndexedDataset> dataset = IndexedDataset::Open(real, dir.Path("p"));
      if (status.ok()) {
        ASSERT_OK(dataset);
        EXPECT_EQ(dataset->token_count(), 2);
        break;
      }
      // Either untouched, or complete (only the last sync failed), or refused.
      if (dataset.ok()) {
        EXPECT_TRUE(dataset->token_count() == (nth == 1 ? 3 : 2)) << nth;
      }
    }
  }
}

}  // namespace
}  // namespace slipway::engine::format
