#include "engine/format/hf_weights.h"

#include <cmath>
#include <filesystem>
#include <map>

#include "common/bfloat16.h"
#include "common/fault_file_system.h"
#include "engine/format/little_endian.h"
#include "tests/support/format_files.h"

namespace slipway::engine::format {
namespace {

using ::slipway::testing::StatusIs;
using ::slipway::testing::TempDir;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kSharded = GoldenPath("safetensors/sharded");
constexpr char kIndex[] = "model.safetensors.index.json";

// A copy of the four-shard golden model, to be damaged.
class ShardedModelTest : public ::testing::Test {
 protected:
  ShardedModelTest() { std::filesystem::copy(kSharded, dir_.path(), std::filesystem::copy_options::recursive); }
  absl::StatusOr<HfWeights> Open() { return HfWeights::Open(files_, dir_.path()); }
  void ReplaceInIndex(const std::string& from, const std::string& to) {
    std::string text = ReadWhole(dir_.Path(kIndex));
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos);
    WriteWhole(dir_.Path(kIndex), text.replace(at, from.size(), to));
  }

  TempDir dir_;
  PosixFileSystem files_;
};

TEST_F(ShardedModelTest, ReadsTheReferenceLibrarysShards) {
  ASSERT_OK_AND_ASSIGN(const HfWeights weights, Open());
  EXPECT_EQ(weights.tensors().size(), 6u);
  EXPECT_EQ(weights.files().size(), 4u);
  EXPECT_EQ(weights.total_bytes(), 4 * 7 * (5 + 8 + 11 + 14 + 17) + 8);
  const HfTensor* tensor = weights.Find("model.layers.3.w");
  ASSERT_NE(tensor, nullptr);
  EXPECT_THAT(tensor->stored.shape, ElementsAre(14, 7));
  std::string bytes(8, '\0');
  ASSERT_OK(weights.Read(*tensor, 8, BytesOf(bytes)));
  EXPECT_EQ(LoadLittleEndian<float>(bytes.data()), 3.0f);
}

// M2 (a)
TEST_F(ShardedModelTest, AMissingShardIsNamed) {
  std::filesystem::remove(dir_.Path("model-00002-of-00004.safetensors"));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound,
                               AllOf(HasSubstr("model-00002-of-00004.safetensors"), HasSubstr("model.layers."))));
}

// M2 (b)
TEST_F(ShardedModelTest, ATensorThatItsShardLacksIsNamed) {
  ReplaceInIndex("\"model.layers.0.w\"", "\"model.layers.9.w\"");
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("model.layers.9.w"), HasSubstr("model-0000"))));
}

// M2 (c): the index decides; neither a stray file nor a stray tensor is merged.
TEST_F(ShardedModelTest, StrayFilesAreNotLookedAt) {
  WriteWhole(dir_.Path("model.safetensors"), "rubbish");
  EXPECT_OK(Open());
  std::filesystem::copy(GoldenPath("safetensors/all_types.safetensors"), dir_.Path("model.safetensors"),
                        std::filesystem::copy_options::overwrite_existing);
  ASSERT_OK_AND_ASSIGN(const HfWeights weights, Open());
  EXPECT_EQ(weights.tensors().size(), 6u);
}

// M2 (d)
TEST_F(ShardedModelTest, ATruncatedShardIsNamed) {
  const std::string shard = dir_.Path("model-00003-of-00004.safetensors");
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 10);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument,
                               AllOf(HasSubstr("model-00003-of-00004.safetensors"), HasSubstr("cut off"))));
}

// M2 (e)
TEST_F(ShardedModelTest, AHugeHeaderLengthIsRefused) {
  const std::string shard = dir_.Path("model-00001-of-00004.safetensors");
  std::string contents = ReadWhole(shard);
  StoreLittleEndian(uint64_t{1} << 60, contents.data());
  WriteWhole(shard, contents);
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("1152921504606846976")));
}

// M2 (f)
TEST_F(ShardedModelTest, ShardsOutsideTheDirectoryAreRefused) {
  for (const std::string name : {"../../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "", "..", "x.bin"}) {
    WriteWhole(dir_.Path(kIndex), ReadWhole(kSharded + "/" + kIndex));
    ReplaceInIndex("\"model-00001-of-00004.safetensors\"", "\"" + name + "\"");
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"" + name + "\"")));
  }
}

TEST_F(ShardedModelTest, BadIndexesAreRefused) {
  for (const std::string text :
       {"", "{", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":[1]})", R"({"weight_map":{"a":1}})",
        R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"}) {
    WriteWhole(dir_.Path(kIndex), text);
    EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(kIndex))) << text;
  }
  WriteWhole(dir_.Path(kIndex), "{\"weight_map\":" + std::string(100000, '['));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("nested")));
}

TEST(HfWeightsTest, NoWeightsAtAll) {
  TempDir dir;
  PosixFileSystem files;
  EXPECT_THAT(HfWeights::Open(files, dir.path()), StatusIs(absl::StatusCode::kNotFound, HasSubstr(dir.path())));
}

std::vector<HfTensorSpec> SpecsOf(const HfWeights& weights) {
  std::vector<HfTensorSpec> specs;
  for (const HfTensor& tensor : weights.tensors()) {
    specs.push_back({tensor.stored.name, tensor.stored.shape, tensor.stored.dtype, tensor.stored.dtype});
  }
  return specs;
}

// M8, M5: import and export without training gives the same bytes, file by file.
TEST_F(ShardedModelTest, ExportGivesTheReferenceLibrarysFiles) {
  ASSERT_OK_AND_ASSIGN(const HfWeights weights, Open());
  TempDir out;
  ASSERT_OK_AND_ASSIGN(const HfWriteReport report, WriteHfWeights(files_, out.path(), SpecsOf(weights),
                                                                  {.max_file_bytes = 400}, SourceFromWeights(weights)));
  EXPECT_EQ(report.files.size(), 5u);
  EXPECT_EQ(report.total_bytes, weights.total_bytes());
  for (const auto& entry : std::filesystem::directory_iterator(kSharded)) {
    const std::string name = entry.path().filename();
    EXPECT_EQ(ReadWhole(out.Path(name)), ReadWhole(entry.path())) << name;
  }
  EXPECT_THAT(WriteHfWeights(files_, out.path(), SpecsOf(weights), {}, SourceFromWeights(weights)),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(out.path())));
}

TEST(HfWeightsTest, OneFileWhenItFits) {
  PosixFileSystem files;
  TempDir in, out;
  std::filesystem::copy(GoldenPath("safetensors/all_types.safetensors"), in.Path("model.safetensors"));
  ASSERT_OK_AND_ASSIGN(const HfWeights weights, HfWeights::Open(files, in.path()));
  ASSERT_OK_AND_ASSIGN(const HfWriteReport report,
                       WriteHfWeights(files, out.path(), SpecsOf(weights), {}, SourceFromWeights(weights)));
  EXPECT_THAT(report.files, ElementsAre("model.safetensors"));
  EXPECT_EQ(ReadWhole(out.Path("model.safetensors")), ReadWhole(in.Path("model.safetensors")));
}

// M8: every tensor gets the asked type, sizes change exactly, 16 bits through 32 and back are the same bits, overflows
// are told, integers stay.
TEST(HfWeightsTest, ConvertsOnExport) {
  PosixFileSystem files;
  TempDir original, wide, back, half;
  std::vector<uint16_t> bits(1000);
  for (size_t i = 0; i < bits.size(); ++i)
    bits[i] = BFloat16FromFloat(std::ldexp(1.0f + static_cast<float>(i) / 128, 5));
  bits[7] = BFloat16FromFloat(1e6f);  // more than float16 can hold
  const std::vector<float> norm = {1.0f, 1.1f};
  const std::vector<int64_t> ids = {1, 2, 3};
  const std::vector<HfTensorSpec> specs = {{"w", {10, 100}, DType::kBFloat16, DType::kBFloat16},
                                           {"norm", {2}, DType::kFloat32, DType::kFloat32},
                                           {"ids", {3}, DType::kInt64, DType::kInt64}};
  const TensorSource values = [&](const HfTensorSpec& spec, const AppendBytes& append) {
    if (spec.name == "norm") return append(BytesOf(norm));
    return spec.name == "w" ? append(BytesOf(bits)) : append(BytesOf(ids));
  };
  ASSERT_OK(WriteHfWeights(files, original.path(), specs, {}, values));

  const auto convert = [&](const TempDir& from, const TempDir& to, DType dtype) -> HfWriteReport {
    absl::StatusOr<HfWeights> weights = HfWeights::Open(files, from.path());
    EXPECT_OK(weights);
    std::vector<HfTensorSpec> wanted = SpecsOf(*weights);
    for (HfTensorSpec& spec : wanted) {
      if (IsFloatingPoint(spec.dtype)) spec.dtype = dtype;
    }
    absl::StatusOr<HfWriteReport> report = WriteHfWeights(files, to.path(), wanted, {}, SourceFromWeights(*weights));
    EXPECT_OK(report);
    return *report;
  };
  EXPECT_EQ(convert(original, wide, DType::kFloat32).total_bytes, 4000 + 8 + 24);
  EXPECT_EQ(convert(wide, back, DType::kBFloat16).total_bytes, 2000 + 4 + 24);
  ASSERT_OK_AND_ASSIGN(const HfWeights result, HfWeights::Open(files, back.path()));
  for (const HfTensor& tensor : result.tensors()) {
    EXPECT_EQ(tensor.stored.dtype, tensor.stored.name == "ids" ? DType::kInt64 : DType::kBFloat16);
  }
  std::vector<uint16_t> again(bits.size());
  ASSERT_OK(
      result.Read(*result.Find("w"), 0, absl::MakeSpan(reinterpret_cast<std::byte*>(again.data()), again.size() * 2)));
  EXPECT_EQ(again, bits);

  const HfWriteReport report = convert(original, half, DType::kFloat16);
  ASSERT_EQ(report.overflows.size(), 1u);
  EXPECT_EQ(report.overflows[0].tensor, "w");
  EXPECT_EQ(report.overflows[0].elements, 1);
}

TEST(HfWeightsTest, BadExportsAreRefusedAndLeaveNothing) {
  PosixFileSystem files;
  TempDir dir;
  const TensorSource two_bytes = [](const HfTensorSpec&, const AppendBytes& append) {
    return append(BytesOf(std::vector<uint16_t>{1}));
  };
  const HfTensorSpec one{"a", {1}, DType::kBFloat16, DType::kBFloat16};
  const HfTensorSpec ints{"b", {1}, DType::kFloat32, DType::kInt64};
  EXPECT_FALSE(WriteHfWeights(files, dir.path(), {}, {}, two_bytes).ok());
  EXPECT_THAT(WriteHfWeights(files, dir.path(), {one, one}, {}, two_bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"a\"")));
  EXPECT_THAT(WriteHfWeights(files, dir.path(), {ints}, {}, two_bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("int64")));
  EXPECT_FALSE(WriteHfWeights(files, dir.path(), {one}, {.max_file_bytes = 0}, two_bytes).ok());
  for (const int64_t elements : {int64_t{0}, int64_t{2}}) {
    EXPECT_THAT(WriteHfWeights(files, dir.path(), {{"a", {elements}}}, {}, two_bytes),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("\"a\"")));
  }
  FaultFileSystem full(files);
  full.SetFreeBytes(100);
  const TensorSource large = [](const HfTensorSpec&, const AppendBytes& append) {
    return append(BytesOf(std::vector<uint16_t>(100)));
  };
  EXPECT_THAT(WriteHfWeights(full, dir.path(), {{"a", {100}}, {"b", {100}}}, {.max_file_bytes = 200}, large),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("model-00001-of-00002.safetensors")));
  ASSERT_OK_AND_ASSIGN(const auto left, files.List(dir.path()));
  EXPECT_THAT(left, IsEmpty());
}

}  // namespace
}  // namespace slipway::engine::format
