#include "engine/format/safetensors.h"

#include "common/fault_file_system.h"
#include "engine/format/little_endian.h"
#include "tests/support/format_files.h"

namespace slipway::engine::format {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::HasSubstr;

const std::string kAllTypes = GoldenPath("safetensors/all_types.safetensors");

std::string WithHeader(const std::string& header, const std::string& data) {
  std::string file;
  AppendLittleEndian<uint64_t>(header.size(), &file);
  return file + header + data;
}

TEST(SafetensorsTest, ReadsWhatTheReferenceLibraryWrote) {
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile file, SafetensorsFile::Open(files, kAllTypes));
  EXPECT_EQ(file.tensors().size(), 13u);
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const StoredTensor* scalar = file.Find("scalar");
  ASSERT_NE(scalar, nullptr);
  EXPECT_TRUE(scalar->shape.empty());
  std::string bytes(4, '\0');
  ASSERT_OK(file.Read(*scalar, 0, BytesOf(bytes)));
  EXPECT_EQ(LoadLittleEndian<float>(bytes.data()), 1.5f);
  EXPECT_EQ(file.Find("empty")->bytes, 0);
  EXPECT_NE(file.Find("odd \"name\"\\ \n\té/"), nullptr);
  EXPECT_EQ(file.Find("nothing"), nullptr);

  const StoredTensor* ints = file.Find("t.4");
  ASSERT_NE(ints, nullptr);
  EXPECT_EQ(ints->dtype, DType::kInt64);
  bytes.resize(16);
  ASSERT_OK(file.Read(*ints, 32, BytesOf(bytes)));
  EXPECT_EQ(LoadLittleEndian<int64_t>(bytes.data() + 8), 5);
  EXPECT_THAT(file.Read(*ints, 40, BytesOf(bytes)), StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("48 bytes")));
}

TEST(SafetensorsTest, WritesTheReferenceLibrarysBytes) {
  TempDir dir;
  PosixFileSystem files;
  ASSERT_OK_AND_ASSIGN(const SafetensorsFile source, SafetensorsFile::Open(files, kAllTypes));
  std::vector<TensorInfo> infos(source.tensors().begin(), source.tensors().end());
  ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer,
                       SafetensorsWriter::Create(files, dir.Path("copy"), infos, source.metadata()));
  for (const StoredTensor& tensor : writer.layout()) {
    std::string bytes(static_cast<size_t>(tensor.bytes), '\0');
    ASSERT_OK(source.Read(*source.Find(tensor.name), 0, BytesOf(bytes)));
    ASSERT_OK(writer.Append(bytes));
  }
  ASSERT_OK(writer.Finish());
  const std::string copy = ReadWhole(dir.Path("copy"));
  EXPECT_EQ(copy, ReadWhole(kAllTypes));
  EXPECT_EQ(writer.file_size(), static_cast<int64_t>(copy.size()));
  EXPECT_EQ(writer.checksum(), ChecksumOf(copy));
}

TEST(SafetensorsTest, WriterRefusesMistakes) {
  TempDir dir;
  PosixFileSystem files;
  const TensorInfo a{"a", DType::kFloat32, {2}};
  EXPECT_THAT(SafetensorsWriter::Create(files, dir.Path("f"), {a, a}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\"")));
  EXPECT_FALSE(SafetensorsWriter::Create(files, dir.Path("f"), {{"\xff", DType::kFloat32, {2}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(files, dir.Path("f"), {{"__metadata__", DType::kFloat32, {2}}}, {}).ok());
  EXPECT_FALSE(SafetensorsWriter::Create(files, dir.Path("f"), {{"a", DType::kFloat32, {-2}}}, {}).ok());
  ASSERT_OK_AND_ASSIGN(SafetensorsWriter writer, SafetensorsWriter::Create(files, dir.Path("f"), {a}, {}));
  ASSERT_OK(writer.Append("1234"));
  EXPECT_EQ(writer.Finish().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer.Append("12345").code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_OK(writer.Append("5678"));
  EXPECT_OK(writer.Finish());
}

struct HostileHeader {
  std::string header;
  std::string data;
  std::string message;
};

TEST(SafetensorsTest, RefusesHostileHeaders) {
  TempDir dir;
  PosixFileSystem files;
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const std::string two = R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],)";
  const HostileHeader cases[] = {
      {good, "1234567", "cut off"},
      {good, "123456789", "9"},
      {"{", "", "not valid JSON"},
      {"[]", "", "a list is not expected"},
      {"7", "", "a number is not expected"},
      {"{}x", "", "not valid JSON"},
      {R"({"a":7})", "", "a number is not expected"},
      {R"({"a":{}})", "", "missing"},
      {R"({"a":{"dtype":"F32","shape":[2]}})", "12345678", "missing"},
      {R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", "12345678", "F99"},
      {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678", "3 elements"},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678", "negative"},
      {R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "12345678", "fraction"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "12345678", "[begin, end]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}})", "12345678", "[begin, end]"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", "12345678", "unknown"},
      {R"({"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678", "twice"},
      {R"({"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0]}})", "",
       "too large"},
      {R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,0]}})", "", "too large"},
      {R"({"a":{"dtype":"F32","shape":[[1]],"data_offsets":[0,8]}})", "12345678", "list is not expected"},
      {R"({"__metadata__":{"a":1}})", "", "number is not expected"},
      {R"({"__metadata__":{"a":{"b":"c"}}})", "", "object is not expected"},
      {two + R"("data_offsets":[1,3]}})", "123", "inside the tensor before"},
      {two + R"("data_offsets":[3,5]}})", "12345", "hole"},
      {two + R"("data_offsets":[0,2]}})", "12", "inside the tensor before"},
      {R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
       "", "twice"},
      {std::string(200000, '['), "", "not expected"},
      {R"({"a":{"dtype":"U8","shape":)" + std::string(200000, '['), "", "not expected"},
  };
  for (const HostileHeader& hostile : cases) {
    WriteWhole(dir.Path("f"), WithHeader(hostile.header, hostile.data));
    EXPECT_THAT(SafetensorsFile::Open(files, dir.Path("f")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(hostile.message)))
        << hostile.header.substr(0, 200);
  }
}

// M2 (e), and its neighbours.
TEST(SafetensorsTest, RefusesAHugeHeaderLengthWithoutAllocating) {
  TempDir dir;
  PosixFileSystem files;
  for (const uint64_t length : {uint64_t{1} << 60, ~uint64_t{0}, uint64_t{3}, uint64_t{1} << 63}) {
    std::string file;
    AppendLittleEndian(length, &file);
    WriteWhole(dir.Path("f"), file + "{}");
    EXPECT_THAT(SafetensorsFile::Open(files, dir.Path("f")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(std::to_string(length))));
  }
}

TEST(SafetensorsTest, DamageIsAnErrorOrAnotherValidFile) {
  TempDir dir;
  PosixFileSystem files;
  int opened = 0;
  ForEachDamage(ReadWhole(kAllTypes), [&](const std::string& damaged) {
    WriteWhole(dir.Path("f"), damaged);
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(files, dir.Path("f"));
    if (!file.ok()) {
      EXPECT_THAT(std::string(file.status().message()), HasSubstr(dir.Path("f")));
      return;
    }
    ++opened;
    for (const StoredTensor& tensor : file->tensors()) {
      std::string bytes(static_cast<size_t>(tensor.bytes), '\0');
      EXPECT_OK(file->Read(tensor, 0, BytesOf(bytes)));
    }
  });
  EXPECT_GT(opened, 0);  // damage in the tensors' own bytes cannot be seen here
}

TEST(SafetensorsTest, AFailingDiskIsAnError) {
  TempDir dir;
  PosixFileSystem real;
  WriteWhole(dir.Path("f"), ReadWhole(kAllTypes));
  FaultFileSystem faulty(real);
  faulty.FailReadsOf(dir.Path("f"));
  EXPECT_THAT(SafetensorsFile::Open(faulty, dir.Path("f")), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("f")));
}

}  // namespace
}  // namespace slipway::engine::format
