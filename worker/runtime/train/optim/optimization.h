#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <ddprun/train/optim/ema.h>
#include <ddprun/train/optim/grad_scaler.h>
#include <ddprun/train/optim/lr_schedule.h>
#include <ddprun/train/optim/optimizer.h>
#include <ddprun/train/optim/precision.h>

namespace ddprun::train {

/// What happens to the weights in a step.
struct OptimOptions {
  OptimizerSettings optimizer;
  LrScheduleKind schedule = LrScheduleKind::kNone;
  bool schedule_per_step = false;  ///< its unit is an optimizer step, not an epoch; one-cycle's always is
  std::int64_t t_max = 0;      ///< cosine: units until the lowest learning rate; 0: as many as the run has
  std::int64_t step_size = 1;  ///< step: units between two changes
  double gamma = 0.1;          ///< step, plateau: what the learning rate is multiplied by
  std::int64_t plateau_patience = 10;
  std::int64_t warmup_steps = 0;
  bool scale_lr = false;  ///< learning rate x ranks
  double clip_norm = 0;   ///< 0: no clipping
  double clip_value = 0;
  double ema = 0;  ///< decay of the averaged weights; 0: none
};

/// How long a run is, as far as schedules need to know.
struct RunLength {
  std::int64_t epochs = 1;
  std::int64_t steps_per_epoch = 1;  ///< optimizer steps
  std::int64_t max_steps = 0;        ///< 0: no limit
  std::int64_t steps() const {
    const auto all = epochs * steps_per_epoch;
    return max_steps > 0 && max_steps < all ? max_steps : all;
  }
};

/// The schedule's arguments for a run of that length whose optimizer has this learning rate.
LrScheduleOptions schedule_options(const OptimOptions& options, double lr, const RunLength& length,
                                   MonitorMode mode);

/// What an optimizer step is made of beside the optimizer: loss scaling, clipping, averaging, learning rates.
class Optimization {
 public:
  struct Parts {
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    std::unique_ptr<Ema> ema;  ///< null: none
    /// Where ranks hold parts of the gradients: sums a tensor over ranks. Else null.
    std::function<void(at::Tensor&)> sum_over_ranks;
  };
  Optimization(Parts parts, const OptimOptions& options, Precision precision, at::Device device,
               const LrScheduleOptions& schedule);
  ~Optimization();
  Optimization(Optimization&&) noexcept;

  /// What backward starts from.
  at::Tensor scaled(const at::Tensor& loss) const { return scaler_.scale(loss); }

  /// Unscales, clips, steps, averages and sets the next learning rate. Without loss scaling nothing waits for
  /// the device. A step that is skipped for an infinite gradient moves the learning rate all the same, as in
  /// Lightning.
  void optimizer_step();

  /// metric  what the plateau schedule watches
  void end_epoch(std::optional<double> metric);

  torch::optim::Optimizer& optimizer() const { return *optimizer_; }
  Ema* ema() const { return ema_.get(); }
  double learning_rate() const;
  /// Of the whole run, also before it was resumed.
  std::int64_t skipped_steps() const { return skipped_before_ + scaler_.skipped_steps(); }
  double loss_scale() const { return scaler_.get_scale(); }

  /// GradScaler's and "skipped_steps"; None without loss scaling.
  c10::IValue scaler_state() const;
  c10::IValue schedule_state() const;
  void load_scaler_state(const c10::IValue& state);
  void load_schedule_state(const c10::IValue& state);

 private:
  void clip();

  OptimOptions options_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<Ema> ema_;
  std::function<void(at::Tensor&)> sum_over_ranks_;
  GradScaler scaler_;
  std::int64_t skipped_before_ = 0;  // until the run was resumed
  LrSchedule schedule_;
};

}  // namespace ddprun::train
