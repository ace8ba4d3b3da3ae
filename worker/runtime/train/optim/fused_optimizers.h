#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

namespace ddprun::train {

// LibTorch's optimizers with a step() on PyTorch's fused kernels, which update all parameters of a kind in
// one call: bit for bit torch.optim's with fused=True, on the CPU and on CUDA. Where a parameter or gradient
// is not for these kernels (sparse, not dense, of mixed types), step() is LibTorch's own.

class FusedSgd : public torch::optim::SGD {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdam : public torch::optim::Adam {
 public:
  using Adam::Adam;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

class FusedAdamW : public torch::optim::AdamW {
 public:
  using AdamW::AdamW;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace ddprun::train
