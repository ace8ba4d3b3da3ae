#pragma once

#include <c10/util/ScopeExit.h>

#include <ddprun/train/optim/gradients.h>
#include <ddprun/train/optim/lr_schedule.h>

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
  std::int64_t updates() const {  ///< may wait for the device
    return updates_on_device_.defined() ? updates_on_device_.item<std::int64_t>() : updates_;
  }

  /// While the returned object lives, the module holds the averages and update() must not be called. Tensors
  /// keep their memory. Does nothing before the first update().
  [[nodiscard]] auto swap_in() {
    set_swapped(true);
    return c10::make_scope_exit([this] { set_swapped(false); });
  }

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
  void set_swapped(bool swapped);

  Options options_;
  std::vector<Entry> entries_;
  std::int64_t updates_ = 0;
  at::Tensor updates_on_device_;  // if defined, replaces the host count: int64 scalar
  bool swapped_ = false;
};

struct OptimOptions {
  OptimizerSettings optimizer;
  GroupingOptions grouping;
  LrScheduleKind schedule = LrScheduleKind::kNone;
  bool schedule_per_step = false;  ///< per optimizer step, not per epoch; one-cycle always works per step
  std::int64_t t_max = 0;          ///< cosine: units until the lowest learning rate; 0: the whole run
  std::int64_t step_size = 1;      ///< step: units between two changes
  double gamma = 0.1;              ///< step, plateau: factor on the learning rate
  std::int64_t plateau_patience = 10;
  double pct_start = 0.3;      ///< one-cycle: the fraction of the run in which the learning rate rises
  bool linear = false;         ///< one-cycle: anneal_strategy
  bool cycle_momentum = true;  ///< one-cycle: the momentum falls while the learning rate rises
  std::int64_t warmup_steps = 0;
  bool scale_lr = false;  ///< learning rate x ranks
  double clip_norm = 0;   ///< 0: no clipping
  double clip_value = 0;
  double ema = 0;  ///< decay of the averaged weights; 0: no averages

  /// Whether the schedule changes the momentum as well as the learning rate.
  bool changes_momentum() const {
    return schedule == LrScheduleKind::kOneCycle && cycle_momentum &&
           optimizer.kind != OptimizerKind::kAdadelta;
  }
};

/// The length of a run, for schedules.
struct RunLength {
  std::int64_t epochs = 1;
  std::int64_t steps_per_epoch = 1;  ///< optimizer steps
  std::int64_t max_steps = 0;        ///< 0: no limit
  /// The optimizer steps of an epoch for which options in steps were given, such as a warm-up; 0: as now.
  std::int64_t steps_meant = 0;
  std::int64_t steps() const {
    const auto all = epochs * steps_per_epoch;
    return max_steps > 0 && max_steps < all ? max_steps : all;
  }
};

/// The arguments for a schedule of the run. Options in steps stand for samples: if a step has half as many
/// samples as those that were meant, it takes twice the steps.
LrScheduleOptions schedule_options(const OptimOptions& options, double lr, const RunLength& length,
                                   MonitorMode mode);

/// Whether one continues where the other ended. Plateau's numbers are not part of its state.
bool same_schedule(const OptimOptions& a, const OptimOptions& b);

/// An optimizer with loss scaling, clipping, averaging and a learning rate schedule.
class Optimization {
 public:
  struct Parts {
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    std::unique_ptr<Ema> ema;  ///< null: none
    /// Sums a tensor over ranks if ranks hold parts of the gradients; otherwise null.
    std::function<void(at::Tensor&)> sum_over_ranks;
  };
  Optimization(Parts parts, const OptimOptions& options, Precision precision, at::Device device,
               const LrScheduleOptions& schedule);

  /// The loss that backward starts from.
  at::Tensor scaled(const at::Tensor& loss) const { return scaler_.scale(loss); }

  /// Unscales, clips, steps, averages and sets the next learning rate, without waiting for the device (unless
  /// the optimizer has no fused kernel that loss scaling can hold back). A step skipped for an infinite
  /// gradient still advances the schedule, as in Lightning.
  void optimizer_step() {
    update();
    after_update();
  }

  /// Makes update() read on the device everything that changes from step to step, so that a CUDA graph can
  /// repeat it. Then call bring_rates() before each step, and after_update() after it, outside the graph.
  void keep_on_device();
  void bring_rates();
  void update();
  /// Drops an update() that threw before the device computed any of it.
  void abandon_update() { scaler_.abandon_step(); }
  void after_update() { schedule_.after_step(); }

  /// Brings the optimizer's state up to date before it is read or replaced. Waits for the device.
  void settle();

  /// metric  for the plateau schedule
  void end_epoch(std::optional<double> metric) { schedule_.after_epoch(metric); }

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  Ema* ema() const { return ema_.get(); }
  double learning_rate() const { return optimizer_->param_groups().front().options().get_lr(); }
  /// In the whole run, including before it was resumed.
  std::int64_t skipped_steps() const { return skipped_before_ + scaler_.skipped_steps(); }
  double loss_scale() const { return scaler_.get_scale(); }

  /// GradScaler's state and "skipped_steps"; None without loss scaling.
  c10::IValue scaler_state() const;
  c10::IValue schedule_state() const;
  void load_scaler_state(const c10::IValue& state);
  /// After the optimizer's state was loaded: as LrSchedule::go_to().
  void go_to(const LrScheduleOptions& schedule, const RunProgress& at, const c10::IValue& state,
             double lr_ratio) {
    schedule_.go_to(schedule, at, state, lr_ratio);
  }
  /// Adds to an optimizer_state_dict() what the schedule stores there; does nothing for None.
  void complete(const c10::IValue& optimizer_state) const;

 private:
  void clip();

  OptimOptions options_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<Ema> ema_;
  std::function<void(at::Tensor&)> sum_over_ranks_;
  at::Device device_;
  std::vector<at::Tensor> rates_;  // of the groups, on the device; empty: in the groups' options
  std::vector<double> brought_;    // their values
  at::Tensor never_skipped_;       // a 0, used with rates_
  GradScaler scaler_;
  std::int64_t skipped_before_ = 0;  // before the run was resumed
  LrSchedule schedule_;
};

}  // namespace ddprun::train
