#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include <torch/optim/optimizer.h>

namespace ddprun::train {

enum class OptimizerKind { kSgd, kAdam, kAdamW, kAdadelta };

/// sgd, adam, adamw, adadelta; nullopt for another name.
std::optional<OptimizerKind> parse_optimizer_kind(std::string_view name);

/// torch.optim's arguments. What a kind does not know is ignored; nullopt is the kind's own default.
struct OptimizerSettings {
  OptimizerKind kind = OptimizerKind::kAdam;
  double lr = 1e-3;
  std::optional<double> weight_decay = {};  ///< SGD, Adam, Adadelta 0; AdamW 0.01
  std::optional<double> eps = {};           ///< Adam, AdamW 1e-8; Adadelta 1e-6
  double momentum = 0;                      ///< SGD
  double dampening = 0;                     ///< SGD
  bool nesterov = false;                    ///< SGD
  double beta1 = 0.9, beta2 = 0.999;        ///< Adam, AdamW
  bool amsgrad = false;                     ///< Adam, AdamW
  double rho = 0.9;                         ///< Adadelta
};

/// An optimizer on PyTorch's fused kernels (worker/runtime/train/optim/fused_optimizers.h, adadelta.h), equal
/// to torch.optim's with fused=True. Its options and states are LibTorch's: optimizer_state_dict(),
/// ZeroOptimizer and learning rate schedules work with it.
///
/// groups  those that have options keep them
/// throws  c10::Error for a setting out of its range
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSettings& settings, const std::vector<torch::optim::OptimizerParamGroup>& groups);

}  // namespace ddprun::train
