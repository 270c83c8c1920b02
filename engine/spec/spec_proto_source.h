// The descriptor of training_spec.proto with its comments, made at build time. Internal to engine/spec.
#ifndef SLIPWAY_ENGINE_SPEC_SPEC_PROTO_SOURCE_H_
#define SLIPWAY_ENGINE_SPEC_SPEC_PROTO_SOURCE_H_

#include <string_view>

namespace slipway::engine::spec {

// A serialized google.protobuf.FileDescriptorSet with one file.
std::string_view TrainingSpecDescriptorSet();

}  // namespace slipway::engine::spec

#endif  // SLIPWAY_ENGINE_SPEC_SPEC_PROTO_SOURCE_H_
