#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace ddprun::train {

/// An exponential moving average of a module's weights, for evaluation and saving:
/// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay).
///
///   average <- weights                                   at the first update()
///   average <- decay average + (1 - decay) weights       at later ones
class Ema {
 public:
  struct Options {
    double decay = 0.999;
    bool average_buffers = false;  ///< if false, copied from the module at every update()
  };
  using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

  /// Keeps a copy of the module's parameters and buffers on their device.
  /// throws  std::invalid_argument if decay is not in [0, 1]
  Ema(const torch::nn::Module& module, const Options& options);
  Ema(NamedTensors parameters, NamedTensors buffers, const Options& options);

  /// Call it after every optimizer step.
  ///
  /// skipped  if defined, a float32 scalar on the device: if it is not 0, the step was skipped and nothing is
  ///          updated. Does not wait for the value
  void update(const at::Tensor& skipped = {});
  std::int64_t updates() const;  ///< may wait for the device

  /// While the returned object lives, the module holds the averages and update() must not be called. Tensors
  /// keep their memory. Does nothing before the first update().
  class [[nodiscard]] Swap {
   public:
    ~Swap();
    Swap(const Swap&) = delete;
    Swap& operator=(const Swap&) = delete;

   private:
    friend Ema;
    explicit Swap(Ema& owner);
    Ema& owner_;
  };
  Swap swap_in() { return Swap(*this); }

  /// By name, sharing memory.
  NamedTensors averages() const;

  /// AveragedModel's keys: n_averaged, and module.NAME for each parameter and buffer. Shares memory.
  c10::impl::GenericDict state_dict() const;
  /// Copies. throws  std::invalid_argument naming a key that is missing or has the wrong type or shape
  void load_state_dict(const c10::impl::GenericDict& state);

 private:
  struct Entry {
    std::string name;
    at::Tensor source, average;
    bool averaged;
    bool alias;  // the same tensor as an earlier entry
  };
  void add(NamedTensors tensors, bool averaged);
  void update_unless(const at::Tensor& skipped);
  void exchange();

  Options options_;
  std::vector<Entry> entries_;
  std::int64_t updates_ = 0;
  at::Tensor updates_on_device_;  // if defined, replaces the host count: int64 scalar
  bool swapped_ = false;
};

}  // namespace ddprun::train
