#pragma once

#include <ATen/core/ivalue.h>

#include <ddprun/train/optim/monitor.h>

namespace torch::optim {
class Optimizer;
}

namespace ddprun::train {

enum class LrScheduleKind { kNone, kStep, kCosine, kOneCycle, kPlateau };

/// The arguments of torch.optim.lr_scheduler's classes, with their defaults.
struct LrScheduleOptions {
  LrScheduleKind kind = LrScheduleKind::kNone;
  bool per_step = false;  ///< the schedule's unit is an optimizer step, not an epoch; ignored by plateau

  std::int64_t warmup_steps = 0;      ///< optimizer steps of linear warm-up before the schedule
  double warmup_start_factor = 0.01;  ///< the first step's fraction of the schedule's first learning rate

  struct Step {  ///< StepLR
    std::int64_t step_size = 1;
    double gamma = 0.1;
  } step = {};

  struct Cosine {  ///< CosineAnnealingLR
    std::int64_t t_max = 0;
    double eta_min = 0;
  } cosine = {};

  struct OneCycle {  ///< OneCycleLR
    double max_lr = 0;
    std::vector<double> lr_factors = {};  ///< x max_lr, by parameter group; empty: 1
    std::int64_t total_steps = 0;
    double pct_start = 0.3;
    bool linear = false;         ///< anneal_strategy: linear, not cosine
    bool cycle_momentum = true;  ///< SGD's momentum, Adam's and AdamW's beta1
    double base_momentum = 0.85, max_momentum = 0.95;
    double div_factor = 25, final_div_factor = 1e4;
    bool three_phase = false;
  } one_cycle = {};

  struct Plateau {             ///< ReduceLROnPlateau
    std::string monitor = {};  ///< what it watches, for its state alone; empty: not said
    MonitorMode mode = MonitorMode::kMin;
    double factor = 0.1;
    std::int64_t patience = 10;
    double threshold = 1e-4;
    bool absolute = false;  ///< threshold_mode: abs, not rel
    std::int64_t cooldown = 0;
    double min_lr = 0, eps = 1e-8;
  } plateau = {};
};

/// How far a run is, in its own steps.
struct RunProgress {
  std::int64_t step = 0;             ///< optimizer steps done: all of the run's minus those that are left
  std::int64_t epoch = 0;            ///< epochs done
  std::int64_t steps_per_epoch = 1;  ///< optimizer steps
};

/// The learning rate for world_size ranks: a step sees that many times more samples. Goyal et al. 2017,
/// "Accurate, Large Minibatch SGD", section 2.1
inline double scaled_lr(double lr, int world_size) { return lr * world_size; }

class DictReader;

/// Sets an optimizer's learning rates during training: one of torch.optim.lr_scheduler's schedules, after an
/// optional linear warm-up. Rates live only in the optimizer's groups, so changing them from outside shifts
/// the schedule, as in Python (cosine continues from what it finds).
///
/// A warm-up of W steps makes it torch's SequentialLR([LinearLR(start_factor, total_iters=W), schedule],
/// [W]): step t of the warm-up uses (start + (1 - start) t / W) of the schedule's first learning rate. The
/// schedule's first unit begins after the warm-up; epochs that end before the next step do not count.
class LrSchedule {
 public:
  /// Sets the first learning rate. The optimizer must outlive it.
  /// throws  std::invalid_argument for an option out of range, or if an optimizer without momentum should
  /// cycle it
  LrSchedule(torch::optim::Optimizer& optimizer, const LrScheduleOptions& options);

  /// Call it after every optimizer step.
  void after_step();

  /// Call it after every epoch.
  /// metric  for plateau only
  /// throws  std::invalid_argument if plateau gets none
  void after_epoch(std::optional<double> metric = std::nullopt);

  /// The state_dict() of the schedule's class in Python, or SequentialLR's if there is a warm-up, even for
  /// plateau, which Python's does not support. Empty for kNone without a warm-up.
  c10::impl::GenericDict state_dict() const;
  /// Adds to the param_groups of an optimizer's state_dict() what PyTorch's schedules keep there: initial_lr
  /// and, for one-cycle, max_lr, min_lr, max_momentum and base_momentum.
  void add_to_groups(const c10::impl::GenericList& groups) const;
  /// Restores the schedule's position; the learning rates are in the optimizer's state.
  /// throws  std::invalid_argument naming a key that is missing or has the wrong type
  void load_state_dict(const c10::impl::GenericDict& state);

  /// Sets the learning rate that a run with these options has at this place, whatever it was before: it
  /// follows from the optimizer's own first rates. Only plateau remembers more.
  ///
  /// state  the schedule's at this place, or None: for plateau's memory, and its rates times lr_ratio; for
  ///        arguments of Python's that no setting has (eta_min, start_factor)
  void go_to(LrScheduleOptions options, const RunProgress& at, const c10::IValue& state = {},
             double lr_ratio = 1);

 private:
  bool in_warmup() const { return ticks_ < options_.warmup_steps; }
  bool counts_steps() const { return options_.per_step && options_.kind != LrScheduleKind::kPlateau; }
  /// The schedule's; 0 when it begins.
  std::int64_t unit() const { return ticks_ - options_.warmup_steps; }
  void begin(const LrScheduleOptions& options);
  void advance(std::optional<double> metric);
  bool plateau_falls(std::optional<double> metric);
  std::vector<double> read_lrs(const DictReader& state, const char* key) const;

  torch::optim::Optimizer* optimizer_;
  std::vector<double> first_lrs_;  ///< the optimizer's own, before any schedule changed them
  LrScheduleOptions options_;
  /// As in PyTorch's states; the last: of the warm-up.
  std::vector<double> initial_lrs_, last_lrs_, warmup_lrs_;
  double best_ = 0;  ///< this and the next two: what plateau remembers
  std::int64_t cooldown_ = 0, bad_epochs_ = 0;
  std::int64_t steps_ = 0;  ///< optimizer steps
  std::int64_t ticks_ = 0;  ///< SequentialLR's last_epoch
};

}  // namespace ddprun::train
