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

/// throws  std::invalid_argument "learning rate schedule: expected WHAT, got GOT" unless it holds
void expect(bool holds, const char* what, double got);

/// A schedule of torch.optim.lr_scheduler: the same formulas on the same doubles in the same order, the same
/// state. Reads and writes the learning rates of the optimizer's groups.
class LrScheduler {
 public:
  LrScheduler(const LrScheduler&) = delete;
  LrScheduler& operator=(const LrScheduler&) = delete;
  virtual ~LrScheduler() = default;

  /// Goes to the next unit. Only plateau uses metric.
  virtual void tick(std::optional<double> metric);
  /// Goes to unit 0, whatever the groups have: SequentialLR's start of its next schedule.
  void begin();
  /// Undoes the step of the constructor, as SequentialLR does.
  void undo_first_step() { --last_epoch_; }
  /// SequentialLR's first step of its first schedule, after undo_first_step().
  void take_first_step();

  /// If the groups had other rates when the scheduler was constructed.
  void set_base_lrs(std::vector<double> lrs) { base_lrs_ = std::move(lrs); }
  const std::vector<double>& base_lrs() const { return base_lrs_; }
  const std::vector<double>& last_lrs() const { return last_lrs_; }

  c10::impl::GenericDict state_dict() const;
  void load_state_dict(const c10::impl::GenericDict& state);

 protected:
  explicit LrScheduler(torch::optim::Optimizer& optimizer);

  /// At last_epoch_, which was just incremented; 0 in the constructor.
  virtual std::vector<double> next_lrs() = 0;
  /// At unit 0, whatever the groups have.
  virtual std::vector<double> first_lrs() { return base_lrs_; }
  virtual void write_state(c10::impl::GenericDict& state) const = 0;
  virtual void read_state(const DictReader& state) = 0;
  virtual bool counts_steps() const { return true; }  ///< false: the state has no base_lrs and _step_count

  std::vector<double> current_lrs() const;
  void set_lrs(const std::vector<double>& lrs);

  torch::optim::Optimizer& optimizer_;
  std::vector<double> base_lrs_, last_lrs_;
  std::int64_t last_epoch_ = -1, step_count_ = 0;
};

class StepLr : public LrScheduler {
 public:
  StepLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Step& options);

 private:
  std::vector<double> next_lrs() override;
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  LrScheduleOptions::Step options_;
};

/// Loshchilov and Hutter 2017, "SGDR", section 3, without restarts; as a recursion on the groups' rates.
class CosineAnnealingLr : public LrScheduler {
 public:
  CosineAnnealingLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Cosine& options);

 private:
  std::vector<double> next_lrs() override;
  std::vector<double> first_lrs() override;
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  LrScheduleOptions::Cosine options_;
};

/// Smith and Topin 2018, "Super-Convergence".
class OneCycleLr : public LrScheduler {
 public:
  OneCycleLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::OneCycle& options);

 private:
  enum class Level { kInitial, kMax, kMin };
  struct Phase {
    double end_step;
    Level start_lr, end_lr;
    bool starts_at_max_momentum, ends_at_max_momentum;
  };
  std::vector<Phase> phases() const;
  double lr_at(Level level) const;
  double anneal(double start, double end, double part) const;
  std::vector<double> next_lrs() override;
  std::vector<double> first_lrs() override { return next_lrs(); }
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  LrScheduleOptions::OneCycle options_;
};

class LinearLr : public LrScheduler {
 public:
  /// From start_factor x the groups' rates to those rates, in total_iters steps.
  LinearLr(torch::optim::Optimizer& optimizer, double start_factor, std::int64_t total_iters);

 private:
  std::vector<double> next_lrs() override;
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
  std::vector<double> next_lrs() override { return current_lrs(); }
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  bool counts_steps() const override { return false; }
  LrScheduleOptions::Plateau options_;
  double best_;
  std::int64_t cooldown_counter_ = 0, bad_epochs_ = 0;
};

}  // namespace ddprun::train
