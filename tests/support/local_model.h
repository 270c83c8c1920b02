// A rank's parameters as single handles, cut from whole tensors by the parameter table: for tests of layers and models
// that need no flat store. Gradients come back per logical tensor.
#ifndef SLIPWAY_TESTS_SUPPORT_LOCAL_MODEL_H_
#define SLIPWAY_TESTS_SUPPORT_LOCAL_MODEL_H_

#include <ATen/ATen.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/arch/param_spec.h"
#include "engine/nn/local_param_handle.h"

namespace slipway::testing {

using NamedTensors = std::map<std::string, at::Tensor>;

// Random weights of a table: N(0, std), norms around one, biases not zero.
inline NamedTensors RandomWeights(const std::vector<engine::arch::ParamSpec>& table, uint64_t seed, double std = 0.2) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  NamedTensors weights;
  for (const auto& spec : table) {
    if (spec.tied_to) continue;
    at::Tensor weight = at::randn(spec.shape, generator, at::kFloat) * std;
    if (spec.init.kind == engine::arch::Init::Kind::kOnes) weight.add_(1);
    weights[spec.name] = weight;
  }
  return weights;
}

// The share of a whole tensor that a tensor-parallel rank holds; vocabulary padding is zero.
inline at::Tensor LocalShare(const engine::arch::ParamSpec& spec, const at::Tensor& whole,
                             const engine::arch::TpPlacement& tp) {
  if (!spec.tp_shard_dim) return whole.clone();
  const int dim = *spec.tp_shard_dim;
  const engine::arch::ShardRange range = engine::arch::LocalRange(spec, dim, tp).value();
  const at::Tensor held = whole.narrow(dim, range.begin, range.count);
  if (range.padding == 0) return held.clone();
  std::vector<int64_t> padding = held.sizes().vec();
  padding[dim] = range.padding;
  return at::cat({held, at::zeros(padding, held.options())}, dim);
}

class LocalModel {
 public:
  LocalModel(std::vector<engine::arch::ParamSpec> table, const NamedTensors& weights,
             const engine::arch::TpPlacement& tp = {}, at::ScalarType dtype = at::kFloat)
      : table_(std::move(table)), tp_(tp) {
    std::map<std::string, std::vector<at::Tensor>> members;
    for (const auto& spec : table_) {
      if (spec.tied_to) continue;
      members[spec.fuse_group.name].push_back(LocalShare(spec, weights.at(spec.name), tp).to(dtype));
    }
    for (const auto& [group, tensors] : members) {
      handles_[group] = c10::make_intrusive<engine::nn::LocalParamHandle>(group, at::cat(tensors, 0), true);
    }
    for (const auto& spec : table_) {
      if (!spec.tied_to) continue;
      for (const auto& other : table_) {
        if (other.name == *spec.tied_to) handles_[spec.fuse_group.name] = handles_.at(other.fuse_group.name);
      }
    }
  }

  engine::nn::ParamPtr Handle(const std::string& group) {
    asked_.insert(group);
    const auto found = handles_.find(group);
    return found == handles_.end() ? engine::nn::ParamPtr() : engine::nn::ParamPtr(found->second);
  }
  const std::set<std::string>& asked() const { return asked_; }

  void BeginStep() {
    for (auto& [group, handle] : handles_) handle->BeginStep();
  }

  // This rank's share of each logical tensor, vocabulary padding cut off: views of the handles' tensors.
  NamedTensors Gradients() const {
    return Shares([](engine::nn::LocalParamHandle& handle) { return handle.main_grad(); });
  }
  NamedTensors Weights() const {
    return Shares([](engine::nn::LocalParamHandle& handle) {
      const at::Tensor weight = handle.Acquire();
      handle.Release();
      return weight;
    });
  }

  const std::map<std::string, c10::intrusive_ptr<engine::nn::LocalParamHandle>>& handles() const { return handles_; }

 private:
  template <typename TensorOf>
  NamedTensors Shares(const TensorOf& tensor_of) const {
    NamedTensors shares;
    std::map<std::string, int64_t> offsets;
    for (const auto& spec : table_) {
      if (spec.tied_to) continue;
      const int64_t rows = engine::arch::LocalShape(spec, tp_).value()[0];
      const int64_t padding = spec.tp_shard_dim == 0 ? engine::arch::LocalRange(spec, 0, tp_).value().padding : 0;
      int64_t& offset = offsets[spec.fuse_group.name];
      shares[spec.name] = tensor_of(*handles_.at(spec.fuse_group.name)).narrow(0, offset, rows - padding);
      offset += rows;
    }
    return shares;
  }

  std::vector<engine::arch::ParamSpec> table_;
  engine::arch::TpPlacement tp_;
  std::map<std::string, c10::intrusive_ptr<engine::nn::LocalParamHandle>> handles_;
  std::set<std::string> asked_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_LOCAL_MODEL_H_
