#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace ddprun::train {

enum class OptimizerKind { kSgd, kAdam, kAdamW, kAdadelta };

/// torch.optim's arguments. A kind ignores arguments it does not have; nullopt is the kind's default.
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

/// One of the optimizers below. Options and states are LibTorch's, so optimizer_state_dict(), ZeroOptimizer
/// and learning rate schedules work with it.
///
/// groups  keep options they already have
/// throws  c10::Error for a setting out of range
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSettings& settings, const std::vector<torch::optim::OptimizerParamGroup>& groups);

/// Of all its groups.
std::vector<torch::Tensor> parameters_of(torch::optim::Optimizer& optimizer);

/// Applies the differences between two settings, except for the learning rate, to the groups that have the
/// first one's value.
void change_settings(torch::optim::Optimizer& optimizer, const OptimizerSettings& from,
                     const OptimizerSettings& to);

/// A parameter's steps, counted on its device.
struct DeviceStep {
  torch::Tensor count;       ///< float32 scalar
  std::int64_t settled = 0;  ///< the state's count when the two were last equal
};
using DeviceSteps = std::unordered_map<void*, DeviceStep>;  ///< by parameter, like Optimizer::state()

/// An optimizer whose step the device can hold back, like torch.optim's with `found_inf`: the host does not
/// wait to learn whether the step was taken.
class HeldBack {
 public:
  virtual ~HeldBack() = default;

  /// held  for the following steps: float32 scalar on the device; 1: step() changes nothing, 0: it does.
  ///       Undefined: every step is taken.
  void hold(const torch::Tensor& held) { held_ = held.defined() ? std::optional(held) : std::nullopt; }

  /// For steps in a CUDA graph, which repeats the device's work with numbers stored there: counts steps on
  /// the device, and reads learning rates from it.
  ///
  /// rates  one per group, float32 scalars; ignores those in the options
  void read_rates(std::vector<torch::Tensor> rates) { rates_ = std::move(rates); }

  /// Copies the device's step counts to the states. Call it before states are read or replaced.
  ///
  /// holder  of the states; null: this optimizer. A ZeroOptimizer's are its own between steps
  virtual void settle([[maybe_unused]] torch::optim::Optimizer* holder = nullptr) {}

 protected:
  /// Where a step counts: on the device if possible, else null: in the states.
  DeviceSteps* counts_for_step(bool can_be_on_device);
  /// Whether an update without a fused kernel is held; waits for the device. throws  with rates on it
  bool is_held() const;
  torch::Tensor rate(std::size_t group) const { return rates_.empty() ? torch::Tensor() : rates_.at(group); }

  std::optional<torch::Tensor> held_;
  std::vector<torch::Tensor> rates_;  // of groups; empty: those in the options
  DeviceSteps counts_;
};

// LibTorch's optimizers on PyTorch's fused kernels, which update all parameters of a kind in one call: bit
// for bit torch.optim's with fused=True, on the CPU and on CUDA. If the kernels cannot take a parameter or
// gradient (sparse, not dense, of mixed types), step() is LibTorch's.

class FusedSgd : public torch::optim::SGD, public HeldBack {
 public:
  using SGD::SGD;
  torch::Tensor step(LossClosure closure = nullptr) override;
};

template <typename Plain, typename Options, typename State>
class FusedAdamOf : public Plain, public HeldBack {
 public:
  using Plain::Plain;
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override;
  void settle(torch::optim::Optimizer* holder = nullptr) override;
};
using FusedAdam = FusedAdamOf<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState>;
using FusedAdamW =
    FusedAdamOf<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState>;

struct AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1.0) : lr_(lr) {}  // implicit, as in LibTorch's options
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
class Adadelta : public torch::optim::Optimizer, public HeldBack {
 public:
  /// throws  c10::Error for an option out of range
  explicit Adadelta(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    AdadeltaOptions defaults = {});
  explicit Adadelta(std::vector<torch::Tensor> parameters, AdadeltaOptions defaults = {});

  /// throws  c10::Error for a sparse gradient
  torch::Tensor step(LossClosure closure = nullptr) override;
  void settle(torch::optim::Optimizer* holder = nullptr) override;
};

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
