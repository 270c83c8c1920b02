#include "engine/format/reshard.h"

#include <numeric>
#include <random>

#include "tests/support/status_matchers.h"

namespace slipway::engine::format {
namespace {

using ::slipway::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Global row-major indices of a piece's elements, one by one: the oracle.
std::vector<int64_t> GlobalIndices(const std::vector<int64_t>& shape, const Piece& piece) {
  std::vector<int64_t> indices;
  for (int64_t element = piece.begin; element < piece.end; ++element) {
    std::vector<int64_t> at(shape.size());
    int64_t rest = element;
    for (size_t d = shape.size(); d-- > 0;) {
      at[d] = piece.box.start[d] + rest % piece.box.extent[d];
      rest /= piece.box.extent[d];
    }
    int64_t global = 0;
    for (size_t d = 0; d < shape.size(); ++d) global = global * shape[d] + at[d];
    indices.push_back(global);
  }
  return indices;
}

// A random layout that gives each element once: every dimension cut into random parts, then every box cut into random
// element ranges.
std::vector<Piece> RandomLayout(const std::vector<int64_t>& shape, std::mt19937& random) {
  std::vector<Box> boxes = {WholeTensor(shape).box};
  const auto below = [&](int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random); };
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t parts = 1 + below(4);
    std::vector<int64_t> cuts = {0, shape[d]};
    for (int64_t i = 1; i < parts; ++i) cuts.push_back(below(shape[d] + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<Box> cut_boxes;
    for (const Box& box : boxes) {
      for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        Box part = box;
        part.start[d] = cuts[i];
        part.extent[d] = cuts[i + 1] - cuts[i];
        cut_boxes.push_back(part);
      }
    }
    boxes = cut_boxes;
  }
  std::vector<Piece> pieces;
  for (const Box& box : boxes) {
    const int64_t elements = box.Elements(), parts = 1 + below(3);
    int64_t begin = 0;
    for (int64_t i = 0; i < parts; ++i) {
      const int64_t end = i + 1 == parts ? elements : begin + below(elements - begin + 1);
      pieces.push_back({box, begin, end});
      begin = end;
    }
  }
  std::shuffle(pieces.begin(), pieces.end(), random);
  return pieces;
}

TEST(PlanCopiesTest, EqualsTheElementwiseOracleOnRandomLayouts) {
  for (unsigned seed = 0; seed < 600; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const size_t rank = seed % 4;  // scalars too
    std::vector<int64_t> shape(rank);
    for (int64_t& size : shape) size = std::uniform_int_distribution<int64_t>(1, rank == 1 ? 40 : 7)(random);
    const std::vector<Piece> sources = RandomLayout(shape, random);
    std::vector<std::vector<int64_t>> source_values;
    for (const Piece& piece : sources) source_values.push_back(GlobalIndices(shape, piece));

    for (const Piece& target : RandomLayout(shape, random)) {
      ASSERT_OK_AND_ASSIGN(const auto copies, PlanCopies(shape, sources, target));
      std::vector<int64_t> filled(static_cast<size_t>(target.Elements()), -1);
      for (const CopyRange& copy : copies) {
        ASSERT_GT(copy.count, 0);
        for (int64_t i = 0; i < copy.count; ++i) {
          int64_t& place = filled.at(static_cast<size_t>(copy.target_element + i));
          ASSERT_EQ(place, -1);
          place = source_values.at(copy.source).at(static_cast<size_t>(copy.source_element + i));
        }
      }
      ASSERT_EQ(filled, GlobalIndices(shape, target)) << PieceText(target);
    }

    // Without one of the (non-empty) sources there is a hole, with one twice there is an overlap.
    for (size_t i = 0; i < sources.size(); ++i) {
      if (sources[i].Elements() == 0) continue;
      std::vector<Piece> less = sources, more = sources;
      less.erase(less.begin() + static_cast<std::ptrdiff_t>(i));
      more.push_back(sources[i]);
      EXPECT_THAT(PlanCopies(shape, less, WholeTensor(shape)),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is in no shard")));
      EXPECT_THAT(PlanCopies(shape, more, WholeTensor(shape)),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is in two shards")));
      break;
    }
  }
}

TEST(PlanCopiesTest, CopiesWholeRowsAtOnce) {
  // Rows 2 and 3 of a [4, 5, 6] tensor are one copy, a column slice is one copy a row.
  const std::vector<int64_t> shape = {4, 5, 6};
  const Piece whole = WholeTensor(shape);
  ASSERT_OK_AND_ASSIGN(auto copies, PlanCopies(shape, {whole}, WholeBox({{2, 0, 0}, {2, 5, 6}})));
  EXPECT_THAT(copies, ElementsAre(CopyRange{0, 60, 0, 60}));
  ASSERT_OK_AND_ASSIGN(copies, PlanCopies(shape, {whole}, WholeBox({{0, 1, 0}, {2, 2, 6}})));
  EXPECT_THAT(copies, ElementsAre(CopyRange{0, 6, 0, 12}, CopyRange{0, 36, 12, 12}));
  // Neighbouring ranks' slices of one flattened box.
  ASSERT_OK_AND_ASSIGN(copies, PlanCopies(shape, {{whole.box, 0, 50}, {whole.box, 50, 120}}, {whole.box, 40, 70}));
  EXPECT_THAT(copies, ElementsAre(CopyRange{0, 40, 0, 10}, CopyRange{1, 0, 10, 20}));
}

TEST(PlanCopiesTest, LargeTensorsNeedNoTimePerElement) {
  const std::vector<int64_t> shape = {int64_t{1} << 20, int64_t{1} << 20};
  std::vector<Piece> sources;
  for (int64_t i = 0; i < 64; ++i) sources.push_back({WholeTensor(shape).box, i << 34, (i + 1) << 34});
  ASSERT_OK_AND_ASSIGN(const auto copies, PlanCopies(shape, sources, WholeTensor(shape)));
  EXPECT_EQ(copies.size(), 64u);
}

TEST(PlanCopiesTest, EmptyTensors) {
  const std::vector<int64_t> shape = {0, 3};
  ASSERT_OK_AND_ASSIGN(const auto copies, PlanCopies(shape, {}, WholeTensor(shape)));
  EXPECT_TRUE(copies.empty());
}

TEST(PlanCopiesTest, RefusesPiecesOutsideTheTensor) {
  const std::vector<int64_t> shape = {4, 5};
  const Piece whole = WholeTensor(shape);
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  for (const Piece& bad : {Piece{{{0}, {4}}, 0, 4}, Piece{{{0, 0}, {4, 6}}, 0, 24}, Piece{{{-1, 0}, {2, 5}}, 0, 10},
                           Piece{{{1, 0}, {kHuge, 5}}, 0, 5}, Piece{{{0, 0}, {4, 5}}, 0, 21},
                           Piece{{{0, 0}, {4, 5}}, 5, 4}, Piece{{{0, 0}, {4, 5}}, -1, 4}}) {
    EXPECT_EQ(PlanCopies(shape, {whole}, bad).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(PlanCopies(shape, {bad}, whole).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(ElementCount({int64_t{1} << 40, int64_t{1} << 40}).ok());
  EXPECT_FALSE(ElementCount({0, int64_t{1} << 40, int64_t{1} << 40}).ok());
  EXPECT_FALSE(ElementCount({-1}).ok());
}

}  // namespace
}  // namespace slipway::engine::format
