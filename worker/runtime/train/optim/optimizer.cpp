#include <ddprun/train/optim/optimizer.h>

#include <ddprun/train/optim/adadelta.h>
#include <ddprun/train/optim/fused_optimizers.h>

namespace ddprun::train {
namespace {

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> make_adam(
    const OptimizerSettings& settings, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  Options options(settings.lr);
  options.betas({settings.beta1, settings.beta2}).amsgrad(settings.amsgrad);
  if (settings.weight_decay) options.weight_decay(*settings.weight_decay);
  if (settings.eps) options.eps(*settings.eps);
  return std::make_unique<Optimizer>(groups, options);
}

}  // namespace

std::optional<OptimizerKind> parse_optimizer_kind(std::string_view name) {
  if (name == "sgd") return OptimizerKind::kSgd;
  if (name == "adam") return OptimizerKind::kAdam;
  if (name == "adamw") return OptimizerKind::kAdamW;
  if (name == "adadelta") return OptimizerKind::kAdadelta;
  return std::nullopt;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSettings& settings, const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  switch (settings.kind) {
    case OptimizerKind::kAdam:
      return make_adam<FusedAdam, torch::optim::AdamOptions>(settings, groups);
    case OptimizerKind::kAdamW:
      return make_adam<FusedAdamW, torch::optim::AdamWOptions>(settings, groups);
    case OptimizerKind::kAdadelta: {
      AdadeltaOptions options(settings.lr);
      options.rho(settings.rho).weight_decay(settings.weight_decay.value_or(0));
      if (settings.eps) options.eps(*settings.eps);
      return std::make_unique<Adadelta>(groups, options);
    }
    case OptimizerKind::kSgd:
      break;
  }
  torch::optim::SGDOptions options(settings.lr);
  options.momentum(settings.momentum)
      .dampening(settings.dampening)
      .weight_decay(settings.weight_decay.value_or(0))
      .nesterov(settings.nesterov);
  return std::make_unique<FusedSgd>(groups, options);
}

}  // namespace ddprun::train
