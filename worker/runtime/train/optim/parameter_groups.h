#pragma once

#include <optional>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include <ddprun/train/optim/optimizer.h>

namespace torch::nn {
class Module;
}

namespace ddprun::train {

/// Parameters that an optimizer updates with separate settings: an entry of param_groups in Python.
struct ParameterGroup {
  std::vector<std::string> names;           ///< as in named_parameters()
  double lr_factor = 1;                     ///< x the learning rate
  std::optional<double> weight_decay = {};  ///< nullopt: the optimizer's
};

struct GroupingOptions {
  std::optional<double> norm_weight_decay = {};  ///< for modules with only vectors: BatchNorm, LayerNorm, ...
  std::optional<double> bias_weight_decay = {};  ///< of the other modules' parameters named bias
  /// The ratio of each layer's learning rate to the next one's; the last layer has the optimizer's. A layer
  /// is a numbered part of the module ("encoder.layers.3"), else a child of it, without its numbered parts.
  double layer_decay = 1;

  bool any() const { return norm_weight_decay || bias_weight_decay || layer_decay != 1; }
};

/// The module's parameters in groups, those of the last layer first. Clark et al. 2020, "ELECTRA", section
/// 3.1; the weight decays are those of torchvision's set_weight_decay()
std::vector<ParameterGroup> group_parameters(const torch::nn::Module& module, const GroupingOptions& options);

/// For an optimizer with these settings. Parameters that no group names come first, in a separate group; each
/// tensor appears once, under its first name.
/// throws  std::invalid_argument naming a parameter that is not in the module, or in two groups
std::vector<torch::optim::OptimizerParamGroup> optimizer_groups(const torch::nn::Module& module,
                                                                const std::vector<ParameterGroup>& groups,
                                                                const OptimizerSettings& settings);

}  // namespace ddprun::train
