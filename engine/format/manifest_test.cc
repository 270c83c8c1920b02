#include "engine/format/manifest.h"

#include <nlohmann/json.hpp>

#include "common/checksum.h"
#include "engine/format/test_manifest.h"
#include "tests/support/format_files.h"

namespace slipway::engine::format {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::HasSubstr;

TEST(ManifestTest, RoundTrips) {
  const Manifest manifest = ExampleManifest();
  const std::string text = ManifestToJson(manifest);
  ASSERT_OK_AND_ASSIGN(const Manifest again, ManifestFromJson(text, "m"));
  EXPECT_EQ(ManifestToJson(again), text);
  EXPECT_EQ(again.job_id, kExampleJob);
  EXPECT_EQ(again.step, manifest.step);
  EXPECT_EQ(again.values.at("loss_scale"), 1.0 / 3);
  EXPECT_EQ(again.counters.at("skipped_steps"), 2);
  EXPECT_EQ(again.lineage, manifest.lineage);
  EXPECT_EQ(nlohmann::json::parse(again.resolved_spec), nlohmann::json::parse(manifest.resolved_spec));
  const ManifestTensor* tensor = again.Find("w", StateKind::kExpAvg);
  ASSERT_NE(tensor, nullptr);
  ASSERT_EQ(tensor->shards.size(), 3u);
  EXPECT_EQ(tensor->shards[1].piece, manifest.Find("w", StateKind::kExpAvg)->shards[1].piece);
  EXPECT_EQ(again.Find("lm_head", StateKind::kWeight)->alias_of, "w");
  EXPECT_EQ(again.Find("w", StateKind::kExpAvgSq), nullptr);
}

// Every damaged byte is noticed, because the text carries its own checksum; only white space may change.
TEST(ManifestTest, DamageIsNoticed) {
  const std::string good = ManifestToJson(ExampleManifest());
  ASSERT_OK_AND_ASSIGN(const Manifest original, ManifestFromJson(good, "m"));
  ForEachDamage(good, [&](const std::string& damaged) {
    const absl::StatusOr<Manifest> manifest = ManifestFromJson(damaged, "m");
    if (manifest.ok()) {
      EXPECT_EQ(ManifestToJson(*manifest), good);
    }
  });
}

// Texts with a right checksum but wrong contents.
std::string Edited(const std::function<void(nlohmann::json&)>& edit) {
  nlohmann::json json = nlohmann::json::parse(ManifestToJson(ExampleManifest()));
  json.erase("manifest_checksum");
  edit(json);
  json["manifest_checksum"] = ChecksumOf(json.dump());
  return json.dump();
}

TEST(ManifestTest, FieldsAreStrict) {
  using Json = nlohmann::json;
  ASSERT_OK(ManifestFromJson(Edited([](Json&) {}), "m"));
  const std::pair<std::function<void(Json&)>, std::string> cases[] = {
      {[](Json& j) { j["format_version"] = 1; }, "format_version"},
      {[](Json& j) { j.erase("job_id"); }, "job_id"},
      {[](Json& j) { j["job_id"] = ""; }, "job_id"},
      {[](Json& j) { j["surprise"] = 1; }, "surprise"},
      {[](Json& j) { j.erase("step"); }, "step"},
      {[](Json& j) { j["step"] = -1; }, "step"},
      {[](Json& j) { j["step"] = 1.5; }, "step"},
      {[](Json& j) { j["step"] = ~uint64_t{0}; }, "step"},
      {[](Json& j) { j["resolved_spec"] = 7; }, "resolved_spec"},
      {[](Json& j) { j["mesh"]["dp"] = 0; }, "dp"},
      {[](Json& j) { j["counters"]["x"] = "y"; }, "\"x\""},
      {[](Json& j) { j["values"]["x"] = "y"; }, "\"x\""},
      {[](Json& j) { j["lineage"] = Json::array(); }, "lineage"},
      {[](Json& j) { j["lineage"][1]["epoch"] = 0; }, "lineage"},
      {[](Json& j) { j["lineage"][1]["forked_from"]["epoch"] = 9; }, "lineage"},
      {[](Json& j) { j["files"]["../x"] = j["files"]["a.safetensors"]; }, "../x"},
      {[](Json& j) { j["files"]["a.safetensors"]["checksum"] = "md5:1"; }, "a.safetensors"},
      {[](Json& j) { j["files"]["a.safetensors"]["size"] = 50; }, "a.safetensors"},
      {[](Json& j) { j["files"].erase("b.safetensors"); }, "b.safetensors"},
      {[](Json& j) { j["tensors"][0]["kind"] = "momentum"; }, "momentum"},
      {[](Json& j) { j["tensors"][0]["dtype"] = "float7"; }, "float7"},
      {[](Json& j) {
         j["tensors"][0]["shape"] = {4, 5};
       },
       "\"w\" (weight)"},
      {[](Json& j) {
         j["tensors"][0]["shape"] = {-4, 4};
       },
       "\"w\" (weight)"},
      {[](Json& j) { j["tensors"][0]["name"] = ""; }, "no name"},
      {[](Json& j) { j["tensors"].push_back(j["tensors"][0]); }, "twice"},
      {[](Json& j) { j["tensors"][0]["shards"][0]["byte_offset"] = 60; }, "not inside"},
      {[](Json& j) { j["tensors"][1]["shards"].erase(1); }, "in no shard"},
      {[](Json& j) {
         j["tensors"][1]["shards"][0]["range"] = {0, 9};
       },
       "outside a box"},
      {[](Json& j) {
         j["tensors"][1]["shards"][1]["range"] = {4, 8};
       },
       "is in two shards"},
      {[](Json& j) { j["tensors"][1]["shards"][0]["range"] = {0}; }, "range"},
      {[](Json& j) { j["tensors"][1]["shards"][0]["extra"] = 0; }, "extra"},
      {[](Json& j) { j["tensors"][2]["alias_of"] = "nobody"; }, "nobody"},
      {[](Json& j) {
         j["tensors"][2]["shape"] = {4, 2};
       },
       "another shape"},
      {[](Json& j) { j["tensors"][2]["shards"] = Json::array(); }, "shards"},
  };
  for (const auto& [edit, message] : cases) {
    const std::string text = Edited(edit);
    EXPECT_THAT(ManifestFromJson(text, "m"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)))
        << message;
  }
  EXPECT_THAT(ManifestFromJson(R"({"format_version":2,"manifest_checksum":"x"})", "m"),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
  EXPECT_FALSE(ManifestFromJson(R"({"format_version":2})", "m").ok());
  EXPECT_FALSE(ManifestFromJson("[]", "m").ok());
  EXPECT_FALSE(ManifestFromJson("null", "m").ok());
}

TEST(LineageTest, FollowsTheForks) {
  // Epoch 2 saved steps that epoch 4, which went back to epoch 1's step 60, must not see.
  const std::vector<LineageEntry> lineage = {{.epoch = 1, .forked_from = {}},
                                             {.epoch = 2, .forked_from = LineageEntry::Fork{1, 40}},
                                             {.epoch = 4, .forked_from = LineageEntry::Fork{1, 60}}};
  EXPECT_TRUE(InLineage(lineage, 4, 1000));
  EXPECT_TRUE(InLineage(lineage, 1, 60));
  EXPECT_FALSE(InLineage(lineage, 1, 61));
  EXPECT_FALSE(InLineage(lineage, 2, 50));
  EXPECT_FALSE(InLineage(lineage, 3, 10));
  EXPECT_FALSE(InLineage({}, 1, 1));
  // A broken history ends instead of going round.
  EXPECT_FALSE(InLineage({{.epoch = 1, .forked_from = LineageEntry::Fork{1, 1}}}, 0, 0));
}

}  // namespace
}  // namespace slipway::engine::format
