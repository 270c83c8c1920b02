// One decoder layer over a flat store, on any device: what the GPU proof and its benchmark drive.
#ifndef SLIPWAY_TESTS_SUPPORT_ONE_LAYER_H_
#define SLIPWAY_TESTS_SUPPORT_ONE_LAYER_H_

#include <ATen/ATen.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/comm/parallel_groups.h"
#include "engine/model/stage_piece.h"
#include "engine/optim/adamw.h"
#include "engine/parallel/flat_store.h"
#include "engine/parallel/parallel_layer_factory.h"

namespace slipway::testing {

class OneLayer {
 public:
  OneLayer(const engine::arch::ModelArch& arch, at::ScalarType dtype, at::Device device)
      : mesh_(engine::topology::Mesh::Create({}).value()), groups_(engine::comm::MakeSoloGroups()) {
    const std::vector<engine::arch::Piece> pieces = {{engine::arch::Piece::Kind::kLayer, 0}};
    engine::parallel::FlatStoreOptions options;
    options.compute_dtype = dtype;
    options.device = device;
    auto store =
        engine::parallel::FlatStore::Create(engine::arch::BuildParamTable(arch), pieces, mesh_, 0, groups_, options);
    if (!store.ok()) throw std::runtime_error(store.status().ToString());
    store_ = std::move(*store);
    store_->InitializeWeights(11);
    engine::parallel::ParallelLayerFactory layers([this](const std::string& group) { return store_->Handle(group); },
                                                  groups_, {.vocab_size = arch.vocab_size});
    pieces_ = engine::model::BuildDecoder(arch, pieces, layers, device);
    optimizer_ = std::make_unique<engine::optim::AdamW>(*store_, groups_, engine::optim::AdamWOptions{});
  }

  // rows sequences of `length` tokens.
  engine::model::MicroBatch Batch(int64_t rows, int64_t length) const {
    engine::model::MicroBatch batch;
    std::vector<int64_t> samples(rows);
    for (int64_t r = 0; r < rows; ++r) samples[r] = r;
    batch.layout = engine::nn::MakeSequenceLayout(std::vector<int64_t>(rows, length), samples, rows * length,
                                                  store_->options().device);
    return batch;
  }

  // Output for x; with backward(dout) the main gradients are complete and the gradient of x comes back.
  at::Tensor Forward(const at::Tensor& x, const engine::model::MicroBatch& batch) {
    engine::nn::ForwardContext context;
    context.layout = &batch.layout;
    return pieces_[0]->Forward(x, batch, context);
  }
  struct Result {
    at::Tensor out, dx;
  };
  Result ForwardBackward(const at::Tensor& x_in, const at::Tensor& dout, const engine::model::MicroBatch& batch) {
    at::Tensor x = x_in.detach().requires_grad_();
    store_->BeginStep();
    at::Tensor out = Forward(x, batch);
    store_->BeginLastBackward({pieces_[0]->piece()});
    out.backward(dout);
    store_->FinishGradients();
    return {out.detach(), x.grad()};
  }
  engine::optim::StepOutcome Step(double lr) { return optimizer_->Step(lr); }
  engine::parallel::FlatStore& store() { return *store_; }

 private:
  engine::topology::Mesh mesh_;
  engine::comm::ParallelGroups groups_;
  std::unique_ptr<engine::parallel::FlatStore> store_;
  engine::model::StagePieces pieces_;
  std::unique_ptr<engine::optim::AdamW> optimizer_;
};

}  // namespace slipway::testing

#endif  // SLIPWAY_TESTS_SUPPORT_ONE_LAYER_H_
