#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ddprun/train/optim/lr_schedule.h>

namespace torch::optim {
class Optimizer;
class OptimizerParamGroup;
}  // namespace torch::optim

namespace ddprun::train {

class DictReader;

c10::impl::GenericList to_list(const std::vector<double>& values);

/// The learning rates of the optimizer's groups.
std::vector<double> lrs_of(torch::optim::Optimizer& optimizer);
void set_lrs(torch::optim::Optimizer& optimizer, const std::vector<double>& lrs);

/// lr x to / from; exactly `to` if lr equals from
double scaled_rate(double lr, double from, double to);

/// throws  std::invalid_argument "learning rate schedule: expected WHAT, got GOT" unless holds
void expect(bool holds, const char* what, double got);

/// A schedule of torch.optim.lr_scheduler: the same formulas on the same doubles in the same order, and the
/// same state. Reads and writes the learning rates of the optimizer's groups.
class LrScheduler {
 public:
  LrScheduler(const LrScheduler&) = delete;
  LrScheduler& operator=(const LrScheduler&) = delete;
  virtual ~LrScheduler() = default;

  /// Moves to the next unit. Only plateau uses metric.
  virtual void tick(std::optional<double> metric);
  /// Moves to unit 0, whatever the groups' rates: SequentialLR's start of its next schedule.
  void begin();
  /// Sets the first rates: Python does so in the constructor.
  void take_first_step();
  /// Before SequentialLR's first step of its first schedule.
  void undo_first_step() { --last_epoch_; }

  /// Call it if the groups had other rates when the scheduler was constructed.
  void set_base_lrs(std::vector<double> lrs) { base_lrs_ = std::move(lrs); }
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  /// Multiplies all rates by to / from.
  void scale_lrs(double from, double to);

  /// Units until the end, the lowest rate or the next change: T_max, step_size, ...; null if none.
  virtual std::int64_t* length() { return nullptr; }
  std::int64_t unit() const { return last_epoch_; }
  /// Jumps to a unit, with the rates that follow from the first ones.
  void move_to(std::int64_t unit);
  const std::vector<double>& last_lrs() const { return last_lrs_; }

  virtual void add_to_group(c10::impl::GenericDict group, std::size_t index) const;
  c10::impl::GenericDict state_dict() const;
  void load_state_dict(const c10::impl::GenericDict& state);

 protected:
  explicit LrScheduler(torch::optim::Optimizer& optimizer);

  /// At last_epoch_, which was just incremented; 0 at first.
  virtual std::vector<double> next_lrs() = 0;
  /// At last_epoch_, whatever the groups' rates: the closed form of next_lrs().
  virtual std::vector<double> lrs_of_unit() { return base_lrs_; }
  virtual c10::impl::GenericDict own_state() const = 0;
  virtual void read_state(const DictReader& state) = 0;
  virtual bool counts_steps() const { return true; }  ///< false: the state lacks base_lrs and _step_count

  void set_lrs(const std::vector<double>& lrs);

  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_lrs_, last_lrs_;
  std::int64_t last_epoch_ = -1, step_count_ = 0;
};

// These throw std::invalid_argument for an option out of range. Then call take_first_step().

/// LinearLR: from start_factor x the groups' rates up to those rates, in total_iters steps.
std::unique_ptr<LrScheduler> make_warmup(torch::optim::Optimizer& optimizer, double start_factor,
                                         std::int64_t total_iters);

/// Null for kNone without a warm-up.
std::unique_ptr<LrScheduler> make_scheduler(torch::optim::Optimizer& optimizer,
                                            const LrScheduleOptions& options);

/// Smith and Topin 2018, "Super-Convergence".
std::unique_ptr<LrScheduler> make_one_cycle(torch::optim::Optimizer& optimizer,
                                            const LrScheduleOptions::OneCycle& options);

}  // namespace ddprun::train
