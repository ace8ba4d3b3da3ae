#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

namespace ddprun::train {

struct AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1.0) : lr_(lr) {}  // implicit, as LibTorch's options are
  TORCH_ARG(double, lr);
  TORCH_ARG(double, rho) = 0.9;
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(double lr) override { this->lr(lr); }
};

struct AdadeltaParamState : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, square_avg);
  TORCH_ARG(torch::Tensor, acc_delta);
};

/// torch.optim.Adadelta, which LibTorch lacks. Zeiler 2012, "ADADELTA: An Adaptive Learning Rate Method".
class Adadelta : public torch::optim::Optimizer {
 public:
  /// throws  c10::Error for an option out of its range
  explicit Adadelta(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    AdadeltaOptions defaults = {});
  explicit Adadelta(std::vector<torch::Tensor> parameters, AdadeltaOptions defaults = {});

  /// throws  c10::Error for a sparse gradient
  torch::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace ddprun::train
