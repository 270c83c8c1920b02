#include "engine/topology/mesh.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace slipway::engine::topology {
namespace {

constexpr std::array<std::string_view, kNumAxes> kAxisNames = {"tp", "cp", "ep", "dp", "pp", "etp", "edp"};
constexpr std::array<std::string_view, kNumGroupKinds> kGroupKindNames = {
    "tp", "cp",     "dp",        "dp-cp", "tp-cp",     "tp-dp-cp",          "model", "pp", "etp",
    "ep", "etp-ep", "etp-ep-pp", "edp",   "embedding", "position-embedding"};

bool IsExpertAxis(Axis axis) { return axis == Axis::kEtp || axis == Axis::kEp || axis == Axis::kEdp; }

std::optional<Axis> OrderAxis(std::string_view name) {
  for (Axis axis : {Axis::kTp, Axis::kCp, Axis::kEp, Axis::kDp, Axis::kPp}) {
    if (name == AxisName(axis)) return axis;
  }
  return std::nullopt;
}

// The place of a dense axis of the order string in the expert view: context parallelism has none there.
std::optional<Axis> ExpertAxisOf(Axis axis) {
  switch (axis) {
    case Axis::kTp:
      return Axis::kEtp;
    case Axis::kDp:
      return Axis::kEdp;
    case Axis::kEp:
    case Axis::kPp:
      return axis;
    default:
      return std::nullopt;
  }
}

absl::StatusOr<std::vector<Axis>> ParseOrder(const std::string& order, const MeshSizes& sizes) {
  std::vector<Axis> parsed;
  for (const std::string& name : std::vector<std::string>(absl::StrSplit(order, '-'))) {
    const std::optional<Axis> axis = OrderAxis(name);
    if (!axis.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank order \"", order, "\": unknown axis \"", name, "\"; axes are tp, cp, ep, dp, pp"));
    }
    if (std::find(parsed.begin(), parsed.end(), *axis) != parsed.end()) {
      return absl::InvalidArgumentError(absl::StrCat("rank order \"", order, "\" names ", name, " twice"));
    }
    parsed.push_back(*axis);
  }
  const std::pair<Axis, int> required[] = {{Axis::kTp, std::max(sizes.tp, sizes.etp)},
                                           {Axis::kCp, sizes.cp},
                                           {Axis::kEp, sizes.ep},
                                           {Axis::kDp, sizes.dp},
                                           {Axis::kPp, sizes.pp}};
  for (const auto& [axis, size] : required) {
    if (std::find(parsed.begin(), parsed.end(), axis) != parsed.end()) continue;
    if (size > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank order \"", order, "\" lacks ", std::string(AxisName(axis)), ", whose size is ", size));
    }
    parsed.push_back(axis);
  }
  return parsed;
}

}  // namespace

std::string_view AxisName(Axis axis) { return kAxisNames[static_cast<int>(axis)]; }

std::string_view GroupKindName(GroupKind kind) { return kGroupKindNames[static_cast<int>(kind)]; }

std::string MeshText(const MeshSizes& sizes) {
  return absl::StrCat("tp", sizes.tp, " cp", sizes.cp, " dp", sizes.dp, " pp", sizes.pp, " ep", sizes.ep, " etp",
                      sizes.etp, " (", sizes.World(), sizes.World() == 1 ? " rank)" : " ranks)");
}

absl::StatusOr<Mesh> Mesh::Create(const MeshSizes& sizes, std::string_view order) {
  int64_t product = 1;
  for (const auto& [name, size] : {std::pair{"tp", sizes.tp}, std::pair{"cp", sizes.cp}, std::pair{"dp", sizes.dp},
                                   std::pair{"pp", sizes.pp}, std::pair{"ep", sizes.ep}, std::pair{"etp", sizes.etp}}) {
    if (size < 1 || size > kMaxWorld) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is ", size, "; sizes go from 1 to ", kMaxWorld));
    }
    if (std::string_view(name) == "ep" || std::string_view(name) == "etp") continue;
    product *= size;
    if (product > kMaxWorld) {
      return absl::InvalidArgumentError(absl::StrCat("the product of tp ", sizes.tp, ", cp ", sizes.cp, ", dp ",
                                                     sizes.dp, " and pp ", sizes.pp, " is above ", kMaxWorld,
                                                     " ranks"));
    }
  }
  const int64_t expert = int64_t{sizes.etp} * sizes.ep * sizes.pp;
  if (product % expert != 0) {
    return absl::InvalidArgumentError(absl::StrCat("the world of ", product,
                                                   " ranks is not a multiple of etp * ep * pp = ", sizes.etp, " * ",
                                                   sizes.ep, " * ", sizes.pp, " = ", expert));
  }
  auto parsed = ParseOrder(std::string(order), sizes);
  if (!parsed.ok()) return parsed.status();

  Mesh mesh;
  mesh.sizes_ = sizes;
  mesh.order_ = std::string(order);
  mesh.world_ = static_cast<int>(product);
  mesh.edp_ = static_cast<int>(product / expert);
  const std::pair<Axis, int> axis_sizes[] = {{Axis::kTp, sizes.tp},  {Axis::kCp, sizes.cp}, {Axis::kEp, sizes.ep},
                                             {Axis::kDp, sizes.dp},  {Axis::kPp, sizes.pp}, {Axis::kEtp, sizes.etp},
                                             {Axis::kEdp, mesh.edp_}};
  for (const auto& [axis, size] : axis_sizes) mesh.axes_[static_cast<int>(axis)].size = size;
  int dense_stride = 1;
  int expert_stride = 1;
  for (Axis axis : *parsed) {
    if (axis == Axis::kPp && sizes.pp > 1 && dense_stride != expert_stride) {
      return absl::InvalidArgumentError(
          absl::StrCat("rank order \"", std::string(order), "\": pipeline neighbours are ", dense_stride,
                       " ranks apart for dense layers and ", expert_stride, " for experts; put pp last or make dp (",
                       sizes.dp, ") equal edp (", mesh.edp_, ")"));
    }
    if (axis != Axis::kEp) {
      mesh.dense_order_.push_back(axis);
      mesh.axes_[static_cast<int>(axis)].stride = dense_stride;
      dense_stride *= mesh.Size(axis);
    }
    if (const std::optional<Axis> other = ExpertAxisOf(axis)) {
      mesh.expert_order_.push_back(*other);
      mesh.axes_[static_cast<int>(*other)].stride = expert_stride;
      expert_stride *= mesh.Size(*other);
    }
  }
  return mesh;
}

int Mesh::CoordinateOf(Axis axis, int rank) const {
  assert(rank >= 0 && rank < world_);
  const AxisLayout& layout = axes_[static_cast<int>(axis)];
  return rank / layout.stride % layout.size;
}

Coordinates Mesh::CoordinatesOf(int rank) const {
  return {.tp = CoordinateOf(Axis::kTp, rank),
          .cp = CoordinateOf(Axis::kCp, rank),
          .dp = CoordinateOf(Axis::kDp, rank),
          .pp = CoordinateOf(Axis::kPp, rank),
          .ep = CoordinateOf(Axis::kEp, rank),
          .etp = CoordinateOf(Axis::kEtp, rank),
          .edp = CoordinateOf(Axis::kEdp, rank)};
}

int Mesh::RankOf(const Coordinates& at) const {
  int rank = 0;
  for (const auto& [axis, place] : {std::pair{Axis::kTp, at.tp}, std::pair{Axis::kCp, at.cp},
                                    std::pair{Axis::kDp, at.dp}, std::pair{Axis::kPp, at.pp}}) {
    assert(place >= 0 && place < Size(axis));
    rank += place * axes_[static_cast<int>(axis)].stride;
  }
  return rank;
}

int Mesh::ExpertRankOf(const Coordinates& at) const {
  int rank = 0;
  for (const auto& [axis, place] : {std::pair{Axis::kEtp, at.etp}, std::pair{Axis::kEp, at.ep},
                                    std::pair{Axis::kEdp, at.edp}, std::pair{Axis::kPp, at.pp}}) {
    assert(place >= 0 && place < Size(axis));
    rank += place * axes_[static_cast<int>(axis)].stride;
  }
  return rank;
}

// The axes of the view of `axes`, fastest first: those inside the list, or the others.
std::vector<Axis> Mesh::Ordered(std::initializer_list<Axis> axes, bool inside) const {
  const bool expert = std::any_of(axes.begin(), axes.end(), IsExpertAxis);
  const std::vector<Axis>& view = expert ? expert_order_ : dense_order_;
  assert(std::all_of(axes.begin(), axes.end(),
                     [&](Axis axis) { return std::find(view.begin(), view.end(), axis) != view.end(); }));
  std::vector<Axis> ordered;
  for (Axis axis : view) {
    if ((std::find(axes.begin(), axes.end(), axis) != axes.end()) == inside) ordered.push_back(axis);
  }
  return ordered;
}

// The rank offsets of all coordinates along `axes`, the first axis fastest.
std::vector<int> Mesh::OffsetsOf(const std::vector<Axis>& axes) const {
  std::vector<int> offsets = {0};
  for (Axis axis : axes) {
    const AxisLayout& layout = axes_[static_cast<int>(axis)];
    const size_t before = offsets.size();
    offsets.reserve(before * layout.size);
    for (int i = 1; i < layout.size; ++i) {
      for (size_t j = 0; j < before; ++j) offsets.push_back(offsets[j] + i * layout.stride);
    }
  }
  return offsets;
}

std::vector<std::vector<int>> Mesh::Groups(std::initializer_list<Axis> axes) const {
  const std::vector<int> members = OffsetsOf(Ordered(axes, /*inside=*/true));
  std::vector<std::vector<int>> groups;
  for (int base : OffsetsOf(Ordered(axes, /*inside=*/false))) {
    std::vector<int>& group = groups.emplace_back(members);
    for (int& rank : group) rank += base;
  }
  return groups;
}

std::vector<int> Mesh::GroupOf(std::initializer_list<Axis> axes, int rank) const {
  const std::vector<Axis> inside = Ordered(axes, /*inside=*/true);
  int base = rank;
  for (Axis axis : inside) base -= CoordinateOf(axis, rank) * axes_[static_cast<int>(axis)].stride;
  std::vector<int> group = OffsetsOf(inside);
  for (int& member : group) member += base;
  return group;
}

namespace {

std::initializer_list<Axis> AxesOf(GroupKind kind) {
  static constexpr std::initializer_list<Axis> kAxes[] = {{Axis::kTp},
                                                          {Axis::kCp},
                                                          {Axis::kDp},
                                                          {Axis::kDp, Axis::kCp},
                                                          {Axis::kTp, Axis::kCp},
                                                          {Axis::kTp, Axis::kDp, Axis::kCp},
                                                          {Axis::kTp, Axis::kPp},
                                                          {Axis::kPp},
                                                          {Axis::kEtp},
                                                          {Axis::kEp},
                                                          {Axis::kEtp, Axis::kEp},
                                                          {Axis::kEtp, Axis::kEp, Axis::kPp},
                                                          {Axis::kEdp},
                                                          {Axis::kPp},
                                                          {Axis::kPp}};
  return kAxes[static_cast<int>(kind)];
}

// The members of a pipeline group that a kind keeps.
std::vector<int> Select(GroupKind kind, std::vector<int> pipeline) {
  if (kind == GroupKind::kPositionEmbedding || (kind == GroupKind::kEmbedding && pipeline.size() == 1)) {
    return {pipeline.front()};
  }
  if (kind == GroupKind::kEmbedding) return {pipeline.front(), pipeline.back()};
  return pipeline;
}

}  // namespace

std::vector<std::vector<int>> Mesh::Groups(GroupKind kind) const {
  std::vector<std::vector<int>> groups = Groups(AxesOf(kind));
  for (std::vector<int>& group : groups) group = Select(kind, std::move(group));
  return groups;
}

std::vector<int> Mesh::GroupOf(GroupKind kind, int rank) const {
  std::vector<int> group = Select(kind, GroupOf(AxesOf(kind), rank));
  if (std::find(group.begin(), group.end(), rank) == group.end()) return {};
  return group;
}

int Mesh::GroupSize(GroupKind kind) const { return static_cast<int>(GroupOf(kind, 0).size()); }

std::vector<GroupList> Mesh::AllGroups() const {
  std::vector<GroupList> all;
  for (int i = 0; i < kNumGroupKinds; ++i) {
    const auto kind = static_cast<GroupKind>(i);
    if (GroupSize(kind) > 1) all.push_back({kind, Groups(kind)});
  }
  return all;
}

}  // namespace slipway::engine::topology
