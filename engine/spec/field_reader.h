// From a YAML node into a field or a section of a message, checking types. Internal to engine/spec: the reader and the
// overrides share it. Not thread-safe (it collects faults).
#ifndef SLIPWAY_ENGINE_SPEC_FIELD_READER_H_
#define SLIPWAY_ENGINE_SPEC_FIELD_READER_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <string_view>

#include "engine/spec/spec_fault.h"
#include "engine/spec/spec_reader.h"
#include "engine/spec/yaml_tree.h"

namespace slipway::engine::spec {

class FieldReader {
 public:
  // `fixed_location` replaces places in the text ("--set #2"); empty: "<name>:line:column".
  FieldReader(std::string_view name, std::string_view fixed_location, SpecFaults* faults, SpecLocations* locations)
      : name_(name), fixed_location_(fixed_location), faults_(faults), locations_(locations) {}

  // Reads the keys of `node` into `message`. `path` is the section's, empty at the top.
  void ReadSection(const YamlNode& node, const std::string& path, google::protobuf::Message* message);

  // Reads one value; null leaves the field as it is.
  void ReadField(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
                 google::protobuf::Message* message);

  // Reads one entry of a map of strings.
  void ReadMapEntry(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
                    const std::string& key, google::protobuf::Message* message);

 private:
  void ReadList(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
                google::protobuf::Message* message);
  void ReadMap(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
               google::protobuf::Message* message);
  void ReadScalar(const YamlNode& node, const std::string& path, const google::protobuf::FieldDescriptor* field,
                  google::protobuf::Message* message);
  // The text of a key, after the checks that all maps share; false when it is not usable.
  bool CheckKey(const YamlNode& key, const std::string& path);
  bool CheckScalar(const YamlNode& node, const std::string& path, std::string_view expected);
  std::string Place(const YamlNode& node) const;
  void Add(const YamlNode& node, const std::string& path, std::string message);

  std::string name_;
  std::string fixed_location_;
  SpecFaults* faults_;
  SpecLocations* locations_;
};

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_FIELD_READER_H_
