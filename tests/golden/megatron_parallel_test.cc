// Rank groups, pipeline schedules and layout strings against megatron-core's (data/megatron_parallel.json, made by
// make_megatron_parallel.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/topology/mesh.h"
#include "engine/topology/mesh_validity.h"
#include "engine/topology/pipeline_layout.h"
#include "engine/topology/pipeline_schedule.h"
#include "tests/support/source_dir.h"

namespace slipway::engine::topology {
namespace {

using Json = nlohmann::json;

Json Golden() {
  std::ifstream file(SLIPWAY_SOURCE_DIR "/tests/golden/data/megatron_parallel.json");
  return Json::parse(file);
}

TEST(MegatronParallel, Groups) {
  int refused = 0;
  const Json golden = Golden();
  for (const Json& known : golden["groups"]) {
    const std::vector<int> s = known["sizes"];
    const std::string order = known["order"];
    const MeshSizes sizes{.tp = s[0], .cp = s[1], .dp = s[2], .pp = s[3], .ep = s[4], .etp = s[5]};
    const absl::StatusOr<Mesh> mesh = Mesh::Create(sizes, order);
    const std::vector<Fault> faults = ValidateMesh(sizes, {}, order);
    const bool valid = mesh.ok() && std::none_of(faults.begin(), faults.end(),
                                                 [](const Fault& f) { return f.path == "parallelism.order"; });
    ASSERT_EQ(valid, !known["groups"].is_null()) << MeshText(sizes) << " " << order << ": " << mesh.status();
    if (!valid) {
      ++refused;
      continue;
    }
    int compared = 0;
    for (int i = 0; i < kNumGroupKinds; ++i) {
      const auto kind = static_cast<GroupKind>(i);
      const std::string name(GroupKindName(kind));
      if (!known["groups"].contains(name)) continue;
      EXPECT_EQ(mesh->Groups(kind), known["groups"][name].get<std::vector<std::vector<int>>>())
          << name << " of " << MeshText(sizes) << " in order " << order;
      ++compared;
    }
    EXPECT_EQ(compared, static_cast<int>(known["groups"].size()));
  }
  EXPECT_GT(refused, 0);
}

TEST(MegatronParallel, Schedules) {
  const Json golden = Golden();
  for (const Json& known : golden["schedules"]) {
    const int pp = known["pp"], vpp = known["vpp"], micro_batches = known["micro_batches"], group = known["group"];
    const PipelineSchedule schedule = vpp == 1
                                          ? OneForwardOneBackward(pp, micro_batches).value()
                                          : InterleavedOneForwardOneBackward(pp, vpp, micro_batches, group).value();
    for (int rank = 0; rank < pp; ++rank) {
      std::vector<int> passes;
      for (const Pass& pass : schedule.ranks[rank]) {
        const int place = pass.microbatch * vpp + pass.chunk;
        passes.push_back(pass.kind == PassKind::kForward ? place : -1 - place);
      }
      EXPECT_EQ(passes, known["ranks"][rank].get<std::vector<int>>())
          << "rank " << rank << " of " << pp << ", " << vpp << " chunks, " << micro_batches
          << " micro-batches in groups of " << group;
    }
  }
}

TEST(MegatronParallel, LayoutStrings) {
  const Json golden = Golden();
  for (const Json& known : golden["layouts"]) {
    const std::string layout = known["layout"];
    const absl::StatusOr<std::vector<int>> layers = ParsePipelineLayout(layout);
    ASSERT_TRUE(layers.ok()) << layout << ": " << layers.status();
    EXPECT_EQ(*layers, known["layers"].get<std::vector<int>>()) << layout;
  }
}

}  // namespace
}  // namespace slipway::engine::topology
