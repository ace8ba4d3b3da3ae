#pragma once

#include <vector>

#include <ddprun/train/optim/lr_schedulers.h>

namespace ddprun::train {

/// Smith and Topin 2018, "Super-Convergence".
class OneCycleLr : public LrScheduler {
 public:
  OneCycleLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::OneCycle& options);
  std::int64_t* length() override { return &options_.total_steps; }
  void add_to_group(c10::impl::GenericDict group, std::size_t index) const override;

 private:
  enum class Level { kInitial, kMax, kMin };
  struct Phase {
    double end_step;
    Level start_lr, end_lr;
    bool starts_at_max_momentum, ends_at_max_momentum;
  };
  std::vector<Phase> phases() const;
  double lr_at(Level level, std::size_t group) const;
  double anneal(double start, double end, double part) const;
  std::vector<double> next_lrs() override;
  std::vector<double> first_lrs() override { return next_lrs(); }
  std::vector<double> lrs_of_unit() override { return next_lrs(); }
  void write_state(c10::impl::GenericDict& state) const override;
  void read_state(const DictReader& state) override;
  LrScheduleOptions::OneCycle options_;
};

}  // namespace ddprun::train
