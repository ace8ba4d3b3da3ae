#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/optim/lr_arguments.h>
#include <ddprun/train/optim/lr_schedulers.h>

namespace ddprun::train {

ReduceLrOnPlateau::ReduceLrOnPlateau(torch::optim::Optimizer& optimizer,
                                     const LrScheduleOptions::Plateau& options)
    : LrScheduler(optimizer),
      options_(options),
      best_(options.mode == MonitorMode::kMin ? std::numeric_limits<double>::infinity()
                                              : -std::numeric_limits<double>::infinity()) {
  expect(options.factor < 1, "a factor below 1", options.factor);
  last_epoch_ = 0;
}

void ReduceLrOnPlateau::step(std::optional<double> metric) {
  if (!metric) throw std::invalid_argument("plateau: expected the value of the metric to watch, got none");
  ++last_epoch_;
  if (is_better(*metric)) {
    best_ = *metric;
    bad_epochs_ = 0;
  } else {
    ++bad_epochs_;
  }
  if (cooldown_counter_ > 0) {
    --cooldown_counter_;
    bad_epochs_ = 0;
  }
  if (bad_epochs_ > options_.patience) {
    reduce();
    cooldown_counter_ = options_.cooldown;
    bad_epochs_ = 0;
  }
  last_lrs_ = current_lrs();
}

bool ReduceLrOnPlateau::is_better(double value) const {
  if (options_.mode == MonitorMode::kMin)
    return value < (options_.absolute ? best_ - options_.threshold : best_ * (1.0 - options_.threshold));
  return value > (options_.absolute ? best_ + options_.threshold : best_ * (options_.threshold + 1.0));
}

void ReduceLrOnPlateau::reduce() {
  for (auto& group : optimizer_.param_groups()) {
    const double old_lr = group.options().get_lr();
    const double new_lr = std::max(old_lr * options_.factor, options_.min_lr);
    if (old_lr - new_lr > options_.eps) group.options().set_lr(new_lr);
  }
}

void ReduceLrOnPlateau::write_state(c10::impl::GenericDict& state) const {
  const bool min = options_.mode == MonitorMode::kMin;
  const double infinity = std::numeric_limits<double>::infinity();
  state.insert("factor", options_.factor);
  state.insert("default_min_lr", options_.min_lr);
  state.insert("min_lrs", to_list(std::vector<double>(base_lrs_.size(), options_.min_lr)));
  state.insert("patience", options_.patience);
  state.insert("cooldown", options_.cooldown);
  state.insert("eps", options_.eps);
  state.insert("mode_worse", min ? infinity : -infinity);
  state.insert("mode", min ? "min" : "max");
  state.insert("threshold", options_.threshold);
  state.insert("threshold_mode", options_.absolute ? "abs" : "rel");
  state.insert("best", best_);
  state.insert("cooldown_counter", cooldown_counter_);
  state.insert("num_bad_epochs", bad_epochs_);
}

void ReduceLrOnPlateau::read_state(const DictReader& state) {
  const auto best = state.number("best");
  const auto cooldown_counter = state.integer("cooldown_counter");
  bad_epochs_ = state.integer("num_bad_epochs");
  best_ = best;
  cooldown_counter_ = cooldown_counter;
}

}  // namespace ddprun::train
