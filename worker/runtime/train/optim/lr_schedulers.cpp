#include <ddprun/train/optim/lr_schedulers.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {

c10::impl::GenericList to_list(const std::vector<double>& values) {
  return make_list({values.begin(), values.end()});
}

std::vector<double> lrs_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

void set_lrs(torch::optim::Optimizer& optimizer, const std::vector<double>& lrs) {
  for (std::size_t i = 0; i < lrs.size(); ++i) optimizer.param_groups()[i].options().set_lr(lrs[i]);
}

double scaled_rate(double lr, double from, double to) { return lr == from ? to : lr * (to / from); }

void expect(bool holds, const char* what, double got) {
  if (!holds) throw std::invalid_argument(c10::str("learning rate schedule: expected ", what, ", got ", got));
}

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer)
    : optimizer_(optimizer), base_lrs_(lrs_of(optimizer)), last_lrs_(base_lrs_) {}

void LrScheduler::set_lrs(const std::vector<double>& lrs) {
  train::set_lrs(optimizer_, lrs);
  last_lrs_ = lrs;
}

void LrScheduler::take_first_step() {
  step_count_ = 1;
  ++last_epoch_;
  set_lrs(next_lrs());
}

void LrScheduler::tick(std::optional<double> /*metric*/) {
  ++step_count_;
  ++last_epoch_;
  set_lrs(next_lrs());
}

void LrScheduler::begin() {
  last_epoch_ = 0;
  set_lrs(lrs_of_unit());
}

void LrScheduler::move_to(std::int64_t unit) {
  last_epoch_ = unit;
  step_count_ = unit + 1;
  set_lrs(lrs_of_unit());
}

void LrScheduler::scale_lrs(double from, double to) {
  for (auto* lrs : {&base_lrs_, &last_lrs_})
    for (double& lr : *lrs) lr = scaled_rate(lr, from, to);
}

void LrScheduler::add_to_group(c10::impl::GenericDict group, std::size_t index) const {
  group.insert_or_assign("initial_lr", base_lrs_[index]);
}

c10::impl::GenericDict LrScheduler::state_dict() const {
  auto state = own_state();
  if (counts_steps()) {
    state.insert("base_lrs", to_list(base_lrs_));
    state.insert("_step_count", step_count_);
    state.insert("_is_initial", false);
    state.insert("_get_lr_called_within_step", false);
  }
  state.insert("last_epoch", last_epoch_);
  state.insert("_last_lr", to_list(last_lrs_));
  return state;
}

void LrScheduler::load_state_dict(const c10::impl::GenericDict& state) {
  const DictReader reader(state, "the learning rate schedule");
  const auto last_epoch = reader.integer("last_epoch");
  const auto last_lrs = reader.numbers("_last_lr");
  const auto base_lrs = counts_steps() ? reader.numbers("base_lrs") : base_lrs_;
  const auto step_count = counts_steps() ? reader.integer("_step_count") : 0;
  if (base_lrs.size() != base_lrs_.size() || last_lrs.size() != base_lrs_.size())
    reader.fail("expected learning rates of " + std::to_string(base_lrs_.size()) + " groups, got " +
                std::to_string(last_lrs.size()));
  read_state(reader);
  last_epoch_ = last_epoch;
  last_lrs_ = last_lrs;
  base_lrs_ = base_lrs;
  step_count_ = step_count;
}

namespace {

constexpr double kPi = std::numbers::pi;

class StepLr : public LrScheduler {
 public:
  StepLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Step& options)
      : LrScheduler(optimizer), options_(options) {
    expect(options.step_size > 0, "a step size of 1 or more", static_cast<double>(options.step_size));
  }
  std::int64_t* length() override { return &options_.step_size; }

 private:
  std::vector<double> next_lrs() override {
    auto lrs = lrs_of(optimizer_);
    if (last_epoch_ != 0 && last_epoch_ % options_.step_size == 0)
      for (double& lr : lrs) lr *= options_.gamma;
    return lrs;
  }
  std::vector<double> lrs_of_unit() override {
    auto lrs = base_lrs_;
    for (double& lr : lrs)
      lr *= std::pow(options_.gamma, static_cast<double>(last_epoch_ / options_.step_size));
    return lrs;
  }
  c10::impl::GenericDict own_state() const override {
    return make_state({{"step_size", options_.step_size}, {"gamma", options_.gamma}});
  }
  void read_state(const DictReader& state) override {
    options_ = {state.positive("step_size"), state.number("gamma")};
  }

  LrScheduleOptions::Step options_;
};

/// Loshchilov and Hutter 2017, "SGDR", section 3, without restarts; as a recursion on the groups' rates.
class CosineAnnealingLr : public LrScheduler {
 public:
  CosineAnnealingLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Cosine& options)
      : LrScheduler(optimizer), options_(options) {
    expect(options.t_max > 0, "a T_max of 1 or more", static_cast<double>(options.t_max));
  }
  std::int64_t* length() override { return &options_.t_max; }

 private:
  std::vector<double> next_lrs() override {
    auto lrs = lrs_of(optimizer_);
    if (last_epoch_ == 0) return lrs;
    const auto t_max = static_cast<double>(options_.t_max), t = static_cast<double>(last_epoch_);
    const double eta_min = options_.eta_min;
    // At the lowest point the ratio below is 0 / 0.
    const bool leaves_minimum = (last_epoch_ - 1 - options_.t_max) % (2 * options_.t_max) == 0;
    for (std::size_t i = 0; i < lrs.size(); ++i)
      if (leaves_minimum)
        lrs[i] = lrs[i] + (base_lrs_[i] - eta_min) * (1 - std::cos(kPi / t_max)) / 2;
      else
        lrs[i] =
            (1 + std::cos(kPi * t / t_max)) / (1 + std::cos(kPi * (t - 1) / t_max)) * (lrs[i] - eta_min) +
            eta_min;
    return lrs;
  }
  std::vector<double> lrs_of_unit() override {
    auto lrs = base_lrs_;
    const double part = static_cast<double>(last_epoch_) / static_cast<double>(options_.t_max);
    for (double& lr : lrs) lr = options_.eta_min + (lr - options_.eta_min) * (1 + std::cos(kPi * part)) / 2;
    return lrs;
  }
  c10::impl::GenericDict own_state() const override {
    return make_state({{"T_max", options_.t_max}, {"eta_min", options_.eta_min}});
  }
  void read_state(const DictReader& state) override {
    options_ = {state.positive("T_max"), state.number("eta_min")};
  }

  LrScheduleOptions::Cosine options_;
};

class LinearLr : public LrScheduler {
 public:
  LinearLr(torch::optim::Optimizer& optimizer, double start_factor, std::int64_t total_iters)
      : LrScheduler(optimizer), start_factor_(start_factor), total_iters_(total_iters) {
    expect(start_factor > 0 && start_factor <= 1, "a warm-up's start factor in (0, 1]", start_factor);
    expect(total_iters > 0, "1 warm-up step or more", static_cast<double>(total_iters));
  }
  std::int64_t* length() override { return &total_iters_; }

 private:
  std::vector<double> next_lrs() override {
    auto lrs = lrs_of(optimizer_);
    const double rise = 1.0 - start_factor_;
    for (double& lr : lrs)
      if (last_epoch_ == 0)
        lr *= start_factor_;
      else if (last_epoch_ <= total_iters_)
        lr *= 1.0 + rise / (static_cast<double>(total_iters_) * start_factor_ +
                            static_cast<double>(last_epoch_ - 1) * rise);
    return lrs;
  }
  std::vector<double> lrs_of_unit() override {
    auto lrs = base_lrs_;
    const double part =
        static_cast<double>(std::min(last_epoch_, total_iters_)) / static_cast<double>(total_iters_);
    for (double& lr : lrs) lr *= start_factor_ + (1 - start_factor_) * part;
    return lrs;
  }
  c10::impl::GenericDict own_state() const override {
    return make_state({{"start_factor", start_factor_}, {"end_factor", 1.0}, {"total_iters", total_iters_}});
  }
  void read_state(const DictReader& state) override {
    const auto start_factor = state.number("start_factor");
    total_iters_ = state.integer("total_iters");
    start_factor_ = start_factor;
  }

  double start_factor_;
  std::int64_t total_iters_;
};

class ReduceLrOnPlateau : public LrScheduler {
 public:
  ReduceLrOnPlateau(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Plateau& options)
      : LrScheduler(optimizer), options_(options), best_(worst_value<double>(options.mode)) {
    expect(options.factor < 1, "a factor below 1", options.factor);
  }

  void tick(std::optional<double> metric) override {
    if (!metric) throw std::invalid_argument("plateau: expected the value of the metric to watch, got none");
    ++last_epoch_;
    if (improves(*metric)) {
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
    last_lrs_ = lrs_of(optimizer_);
  }

 private:
  bool improves(double value) const {
    const double change = options_.mode == MonitorMode::kMin ? -options_.threshold : options_.threshold;
    return is_better(options_.mode, value, options_.absolute ? best_ + change : best_ * (1.0 + change));
  }
  void reduce() {
    for (auto& group : optimizer_.param_groups()) {
      const double old_lr = group.options().get_lr();
      const double new_lr = std::max(old_lr * options_.factor, options_.min_lr);
      if (old_lr - new_lr > options_.eps) group.options().set_lr(new_lr);
    }
  }
  std::vector<double> next_lrs() override { return lrs_of(optimizer_); }
  c10::impl::GenericDict own_state() const override {
    return make_state({{"factor", options_.factor},
                       {"default_min_lr", options_.min_lr},
                       {"min_lrs", to_list(std::vector<double>(base_lrs_.size(), options_.min_lr))},
                       {"patience", options_.patience},
                       {"cooldown", options_.cooldown},
                       {"eps", options_.eps},
                       {"mode_worse", worst_value<double>(options_.mode)},
                       {"mode", options_.mode == MonitorMode::kMin ? "min" : "max"},
                       {"threshold", options_.threshold},
                       {"threshold_mode", options_.absolute ? "abs" : "rel"},
                       {"best", best_},
                       {"cooldown_counter", cooldown_counter_},
                       {"num_bad_epochs", bad_epochs_}});
  }
  void read_state(const DictReader& state) override {
    const auto best = state.number("best");
    const auto cooldown_counter = state.integer("cooldown_counter");
    bad_epochs_ = state.integer("num_bad_epochs");
    best_ = best;
    cooldown_counter_ = cooldown_counter;
  }
  bool counts_steps() const override { return false; }

  LrScheduleOptions::Plateau options_;
  double best_;
  std::int64_t cooldown_counter_ = 0, bad_epochs_ = 0;
};

}  // namespace

std::unique_ptr<LrScheduler> make_warmup(torch::optim::Optimizer& optimizer, double start_factor,
                                         std::int64_t total_iters) {
  return std::make_unique<LinearLr>(optimizer, start_factor, total_iters);
}

std::unique_ptr<LrScheduler> make_scheduler(torch::optim::Optimizer& optimizer,
                                            const LrScheduleOptions& options) {
  switch (options.kind) {
    case LrScheduleKind::kStep:
      return std::make_unique<StepLr>(optimizer, options.step);
    case LrScheduleKind::kCosine:
      return std::make_unique<CosineAnnealingLr>(optimizer, options.cosine);
    case LrScheduleKind::kOneCycle:
      return make_one_cycle(optimizer, options.one_cycle);
    case LrScheduleKind::kPlateau:
      return std::make_unique<ReduceLrOnPlateau>(optimizer, options.plateau);
    case LrScheduleKind::kNone:
      break;
  }
  // After a warm-up the rate stays constant.
  if (options.warmup_steps > 0) return std::make_unique<StepLr>(optimizer, LrScheduleOptions::Step{1, 1.0});
  return nullptr;
}

}  // namespace ddprun::train
