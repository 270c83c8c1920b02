#include "engine/parallel/flat_param.h"

#include <c10/util/Exception.h>

namespace slipway::engine::parallel {

ParamHost& FlatParam::Host() const {
  TORCH_CHECK(host_ != nullptr, name_, " is used after its store was destroyed");
  return *host_;
}

}  // namespace slipway::engine::parallel
