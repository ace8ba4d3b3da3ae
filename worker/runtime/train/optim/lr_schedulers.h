#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
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
  /// Undoes the step of the constructor, as SequentialLR does.
  void undo_first_step() { --last_epoch_; }
  /// SequentialLR's first step of its first schedule, after undo_first_step().
  void take_first_step();

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

  /// At last_epoch_, which was just incremented; 0 in the constructor.
  virtual std::vector<double> next_lrs() = 0;
  /// At unit 0, whatever the groups' rates.
  virtual std::vector<double> first_lrs() { return base_lrs_; }
  /// At last_epoch_, whatever the groups' rates: the closed form of next_lrs().
  virtual std::vector<double> lrs_of_unit() { return base_lrs_; }
  virtual void write_state(c10::impl::GenericDict& state) const = 0;
  virtual void read_state(const DictReader& state) = 0;
  virtual bool counts_steps() const { return true; }  ///< false: the state lacks base_lrs and _step_count

  void set_lrs(const std::vector<double>& lrs);

  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_lrs_, last_lrs_;
  std::int64_t last_epoch_ = -1, step_count_ = 0;
};

class StepLr : public LrScheduler {
 public:
  StepLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Step& options);
  std::int64_t* length() override { return &options_.step_size; }

 private:
  std::vector<double> next_lrs() override;
  std::vector<double> lrs_of_unit() override;
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  LrScheduleOptions::Step options_;
};

/// Loshchilov and Hutter 2017, "SGDR", section 3, without restarts; as a recursion on the groups' rates.
class CosineAnnealingLr : public LrScheduler {
 public:
  CosineAnnealingLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Cosine& options);
  std::int64_t* length() override { return &options_.t_max; }

 private:
  std::vector<double> next_lrs() override;
  std::vector<double> lrs_of_unit() override;
  std::vector<double> first_lrs() override;
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  LrScheduleOptions::Cosine options_;
};

class LinearLr : public LrScheduler {
 public:
  /// From start_factor x the groups' rates up to those rates, in total_iters steps.
  LinearLr(torch::optim::Optimizer& optimizer, double start_factor, std::int64_t total_iters);
  std::int64_t* length() override { return &total_iters_; }

 private:
  std::vector<double> next_lrs() override;
  std::vector<double> lrs_of_unit() override;
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  double start_factor_;
  std::int64_t total_iters_;
};

class ReduceLrOnPlateau : public LrScheduler {
 public:
  ReduceLrOnPlateau(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Plateau& options);
  void tick(std::optional<double> metric) override;

 private:
  bool improves(double value) const;
  void reduce();
  std::vector<double> next_lrs() override { return lrs_of(optimizer_); }
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  bool counts_steps() const override { return false; }
  LrScheduleOptions::Plateau options_;
  double best_;
  std::int64_t cooldown_counter_ = 0, bad_epochs_ = 0;
};

}  // namespace ddprun::train
