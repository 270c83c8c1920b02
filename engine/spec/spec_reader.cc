#include "engine/spec/spec_reader.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/str_cat.h"
#include "engine/spec/field_reader.h"
#include "engine/spec/yaml_tree.h"

namespace slipway::engine::spec {
namespace {

// A text of another version is refused before its keys are looked at: they may mean something else there.
bool CheckVersion(const YamlNode& root, std::string_view name, SpecFaults* faults) {
  for (const auto& [key, value] : root.entries) {
    int64_t version = 0;
    if (key.value != "spec_version" || value.quoted || !absl::SimpleAtoi(value.value, &version)) continue;
    if (version == kSpecVersion) return true;
    faults->push_back(
        {.location = LocationText(name, value),
         .path = "spec_version",
         .value = value.value,
         .message = StrCat(version > kSpecVersion ? "newer than this program reads" : "there is no such version",
                           "; expected ", kSpecVersion)});
    return false;
  }
  return true;
}

// "job.yaml:5:31" → {5, 31}; without numbers at the end behind all places in a text.
std::pair<int, int> LineAndColumn(std::string_view location) {
  const std::vector<absl::string_view> parts = absl::StrSplit(ToAbsl(location), ':');
  int line = 0;
  int column = 0;
  if (parts.size() < 3 || !absl::SimpleAtoi(parts[parts.size() - 2], &line) ||
      !absl::SimpleAtoi(parts.back(), &column)) {
    constexpr int kBehind = std::numeric_limits<int>::max();
    return {kBehind, kBehind};
  }
  return {line, column};
}

}  // namespace

ReadSpecResult ReadSpec(std::string_view text, std::string_view name) {
  ReadSpecResult result;
  YamlTree tree = ParseYamlOrJson(text, name);
  if (!tree.faults.empty()) {
    result.faults = std::move(tree.faults);
    return result;
  }
  if (!CheckVersion(tree.root, name, &result.faults)) return result;
  FieldReader reader(name, "", &result.faults, &result.locations);
  reader.ReadSection(tree.root, "", &result.spec);
  return result;
}

std::set<std::string> UnreadPaths(const ReadSpecResult& read) {
  std::set<std::string> paths;
  for (const SpecFault& fault : read.faults) paths.insert(fault.path);
  return paths;
}

void AddLocations(const SpecLocations& locations, SpecFaults* faults) {
  for (SpecFault& fault : *faults) {
    if (!fault.location.empty()) continue;
    std::string path = fault.path;
    while (!path.empty()) {
      if (const auto found = locations.find(path); found != locations.end()) {
        fault.location = found->second;
        break;
      }
      const size_t dot = path.rfind('.');
      path.resize(dot == std::string::npos ? 0 : dot);
    }
  }
}

SpecFaults MergeFaults(const ReadSpecResult& read, SpecFaults validation) {
  SpecFaults merged = read.faults;
  const std::set<std::string> unread = UnreadPaths(read);
  if (unread.contains("")) return merged;  // the text as a whole could not be read
  const auto follows_from_reading = [&](const std::string& path) {
    return std::any_of(unread.begin(), unread.end(), [&](const std::string& bad) {
      return path == bad ||
             (path.size() > bad.size() && path.compare(0, bad.size(), bad) == 0 && path[bad.size()] == '.');
    });
  };
  AddLocations(read.locations, &validation);
  for (SpecFault& fault : validation) {
    if (!follows_from_reading(fault.path)) merged.push_back(std::move(fault));
  }
  std::stable_sort(merged.begin(), merged.end(), [](const SpecFault& a, const SpecFault& b) {
    return LineAndColumn(a.location) < LineAndColumn(b.location);
  });
  return merged;
}

}  // namespace slipway::engine::spec
