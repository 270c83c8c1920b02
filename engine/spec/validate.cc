#include "engine/spec/validate.h"

#include <google/protobuf/unknown_field_set.h>

#include <vector>

#include "common/str_cat.h"
#include "engine/spec/resolve.h"
#include "engine/spec/spec_fields.h"
#include "engine/spec/spec_rules.h"

namespace slipway::engine::spec {
namespace {

using google::protobuf::Message;

// A newer client may set what this version does not know; ignoring it would train something else.
void CheckUnknownFields(const Message& message, const std::string& path, SpecFaults* faults) {
  const auto* reflection = message.GetReflection();
  const auto& unknown = reflection->GetUnknownFields(message);
  if (!unknown.empty()) {
    faults->push_back({.path = path.empty() ? "spec" : path,
                       .message = StrCat("has ", unknown.field_count(),
                                         " field(s) that this version does not know, the first with "
                                         "number ",
                                         unknown.field(0).number(), "; is the client newer than the server?")});
  }
  std::vector<const google::protobuf::FieldDescriptor*> set;
  reflection->ListFields(message, &set);
  for (const auto* field : set) {
    if (IsSection(field)) {
      CheckUnknownFields(reflection->GetMessage(message, field),
                         path.empty() ? field->name() : StrCat(path, ".", field->name()), faults);
    }
  }
}

}  // namespace

SpecFaults Validate(const v1::TrainingSpec& spec, const ValidateOptions& options) {
  SpecFaults faults;
  CheckUnknownFields(spec, "", &faults);
  const v1::TrainingSpec resolved = Resolve(spec);
  CheckFields(resolved, options, &faults);

  // Rules between fields are of no use on top of a field that is itself wrong: one mistake, one fault.
  WrongFields wrong(options.unread);
  for (const SpecFault& fault : faults) wrong.Add(fault.path);
  SpecFaults more;
  CheckModel(resolved, options, wrong, &more);
  CheckData(resolved, wrong, &more);
  CheckSchedule(resolved, wrong, &more);
  CheckLayout(resolved, options, wrong, &more);
  for (SpecFault& fault : more) {
    if (wrong.Add(fault.path)) faults.push_back(std::move(fault));
  }
  return faults;
}

}  // namespace slipway::engine::spec
