#include <ddprun/train/optim/lr_schedulers.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

constexpr double kPi = std::numbers::pi;

/// Sets SGD's momentum or Adam's and AdamW's beta1. returns  false for another optimizer
bool set_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  const auto set_beta1 = [&](auto& adam) { adam.betas({momentum, std::get<1>(adam.betas())}); };
  if (auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options))
    sgd->momentum(momentum);
  else if (auto* adam = dynamic_cast<torch::optim::AdamOptions*>(&options))
    set_beta1(*adam);
  else if (auto* adamw = dynamic_cast<torch::optim::AdamWOptions*>(&options))
    set_beta1(*adamw);
  else
    return false;
  return true;
}

bool has_beta1(const torch::optim::OptimizerOptions& options) {
  return dynamic_cast<const torch::optim::SGDOptions*>(&options) == nullptr;
}

}  // namespace

c10::impl::GenericList to_list(const std::vector<double>& values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const double value : values) list.push_back(value);
  return list;
}

void expect(bool holds, const char* what, double got) {
  if (holds) return;
  std::ostringstream text;
  text << "learning rate schedule: expected " << what << ", got " << got;
  throw std::invalid_argument(text.str());
}

LrScheduler::LrScheduler(torch::optim::Optimizer& optimizer)
    : optimizer_(optimizer), base_lrs_(current_lrs()), last_lrs_(base_lrs_) {}

std::vector<double> LrScheduler::current_lrs() const {
  std::vector<double> lrs;
  for (const auto& group : optimizer_.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

void LrScheduler::set_lrs(const std::vector<double>& lrs) {
  for (std::size_t i = 0; i < lrs.size(); ++i) optimizer_.param_groups()[i].options().set_lr(lrs[i]);
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
  set_lrs(first_lrs());
}

c10::impl::GenericDict LrScheduler::state_dict() const {
  auto state = make_state();
  write_state(state);
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

StepLr::StepLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::Step& options)
    : LrScheduler(optimizer), options_(options) {
  expect(options.step_size > 0, "a step size of 1 or more", static_cast<double>(options.step_size));
  take_first_step();
}

std::vector<double> StepLr::next_lrs() {
  auto lrs = current_lrs();
  if (last_epoch_ != 0 && last_epoch_ % options_.step_size == 0)
    for (double& lr : lrs) lr *= options_.gamma;
  return lrs;
}

void StepLr::write_state(c10::impl::GenericDict& state) const {
  state.insert("step_size", options_.step_size);
  state.insert("gamma", options_.gamma);
}

void StepLr::read_state(const DictReader& state) {
  options_ = {state.positive("step_size"), state.number("gamma")};
}

CosineAnnealingLr::CosineAnnealingLr(torch::optim::Optimizer& optimizer,
                                     const LrScheduleOptions::Cosine& options)
    : LrScheduler(optimizer), options_(options) {
  expect(options.t_max > 0, "a T_max of 1 or more", static_cast<double>(options.t_max));
  take_first_step();
}

std::vector<double> CosineAnnealingLr::next_lrs() {
  auto lrs = current_lrs();
  if (last_epoch_ == 0) return lrs;
  const auto t_max = static_cast<double>(options_.t_max), t = static_cast<double>(last_epoch_);
  const double eta_min = options_.eta_min;
  // At the lowest point the ratio below is 0 / 0.
  const bool leaves_minimum = (last_epoch_ - 1 - options_.t_max) % (2 * options_.t_max) == 0;
  for (std::size_t i = 0; i < lrs.size(); ++i)
    if (leaves_minimum)
      lrs[i] = lrs[i] + (base_lrs_[i] - eta_min) * (1 - std::cos(kPi / t_max)) / 2;
    else
      lrs[i] = (1 + std::cos(kPi * t / t_max)) / (1 + std::cos(kPi * (t - 1) / t_max)) * (lrs[i] - eta_min) +
               eta_min;
  return lrs;
}

std::vector<double> CosineAnnealingLr::first_lrs() {
  auto lrs = base_lrs_;
  for (double& lr : lrs) lr = options_.eta_min + (lr - options_.eta_min) * 2 / 2;
  return lrs;
}

void CosineAnnealingLr::write_state(c10::impl::GenericDict& state) const {
  state.insert("T_max", options_.t_max);
  state.insert("eta_min", options_.eta_min);
}

void CosineAnnealingLr::read_state(const DictReader& state) {
  options_ = {state.positive("T_max"), state.number("eta_min")};
}

LinearLr::LinearLr(torch::optim::Optimizer& optimizer, double start_factor, std::int64_t total_iters)
    : LrScheduler(optimizer), start_factor_(start_factor), total_iters_(total_iters) {
  expect(start_factor > 0 && start_factor <= 1, "a warm-up's start factor in (0, 1]", start_factor);
  expect(total_iters > 0, "1 warm-up step or more", static_cast<double>(total_iters));
  take_first_step();
}

std::vector<double> LinearLr::next_lrs() {
  auto lrs = current_lrs();
  const double rise = 1.0 - start_factor_;
  for (double& lr : lrs)
    if (last_epoch_ == 0)
      lr *= start_factor_;
    else if (last_epoch_ <= total_iters_)
      lr *= 1.0 + rise / (static_cast<double>(total_iters_) * start_factor_ +
                          static_cast<double>(last_epoch_ - 1) * rise);
  return lrs;
}

void LinearLr::write_state(c10::impl::GenericDict& state) const {
  state.insert("start_factor", start_factor_);
  state.insert("end_factor", 1.0);
  state.insert("total_iters", total_iters_);
}

void LinearLr::read_state(const DictReader& state) {
  const auto start_factor = state.number("start_factor");
  total_iters_ = state.integer("total_iters");
  start_factor_ = start_factor;
}

OneCycleLr::OneCycleLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::OneCycle& options)
    : LrScheduler(optimizer), options_(options) {
  expect(options.total_steps > 0, "1 step or more in all", static_cast<double>(options.total_steps));
  expect(options.max_lr > 0, "a largest learning rate above 0", options.max_lr);
  expect(options.pct_start >= 0 && options.pct_start <= 1, "a rising part in [0, 1]", options.pct_start);
  if (options.cycle_momentum)
    for (auto& group : optimizer.param_groups())
      if (!set_momentum(group.options(), options.max_momentum))
        throw std::invalid_argument(
            "one-cycle: expected an optimizer with momentum or beta1 to cycle, as SGD, Adam or AdamW; got "
            "another");
  std::fill(base_lrs_.begin(), base_lrs_.end(), lr_at(Level::kInitial));
  take_first_step();
}

double OneCycleLr::lr_at(Level level) const {
  if (level == Level::kMax) return options_.max_lr;
  const double initial = options_.max_lr / options_.div_factor;
  return level == Level::kInitial ? initial : initial / options_.final_div_factor;
}

std::vector<OneCycleLr::Phase> OneCycleLr::phases() const {
  const auto total = static_cast<double>(options_.total_steps);
  const Phase rise = {options_.pct_start * total - 1, Level::kInitial, Level::kMax, true, false};
  if (!options_.three_phase) return {rise, {total - 1, Level::kMax, Level::kMin, false, true}};
  return {rise,
          {2 * options_.pct_start * total - 2, Level::kMax, Level::kInitial, false, true},
          {total - 1, Level::kInitial, Level::kMin, true, true}};
}

double OneCycleLr::anneal(double start, double end, double part) const {
  if (options_.linear) return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(kPi * part) + 1);
}

std::vector<double> OneCycleLr::next_lrs() {
  if (last_epoch_ > options_.total_steps)
    throw std::invalid_argument("one-cycle: expected " + std::to_string(options_.total_steps) +
                                " steps at most, got one more");
  const auto all = phases();
  const auto now = static_cast<double>(last_epoch_);
  std::size_t i = 0;
  while (i + 1 < all.size() && now > all[i].end_step) ++i;
  const double begin = i == 0 ? 0.0 : all[i - 1].end_step;
  const double length = all[i].end_step - begin;
  const double part = length == 0 ? 1 : (now - begin) / length;
  if (options_.cycle_momentum) {
    const auto level = [&](bool max) { return max ? options_.max_momentum : options_.base_momentum; };
    const double momentum =
        anneal(level(all[i].starts_at_max_momentum), level(all[i].ends_at_max_momentum), part);
    for (auto& group : optimizer_.param_groups()) set_momentum(group.options(), momentum);
  }
  return std::vector<double>(base_lrs_.size(), anneal(lr_at(all[i].start_lr), lr_at(all[i].end_lr), part));
}

void OneCycleLr::write_state(c10::impl::GenericDict& state) const {
  const auto name = [](Level level) {
    return level == Level::kInitial ? "initial_lr" : level == Level::kMax ? "max_lr" : "min_lr";
  };
  const auto momentum = [](bool max) { return max ? "max_momentum" : "base_momentum"; };
  c10::impl::GenericList list(c10::AnyType::get());
  for (const auto& phase : phases()) {
    auto entry = make_state();
    entry.insert("end_step", phase.end_step);
    entry.insert("start_lr", name(phase.start_lr));
    entry.insert("end_lr", name(phase.end_lr));
    entry.insert("start_momentum", momentum(phase.starts_at_max_momentum));
    entry.insert("end_momentum", momentum(phase.ends_at_max_momentum));
    list.push_back(entry);
  }
  state.insert("total_steps", options_.total_steps);
  state.insert("_schedule_phases", list);
  state.insert("_anneal_func_type", options_.linear ? "linear" : "cos");
  state.insert("cycle_momentum", options_.cycle_momentum);
  if (options_.cycle_momentum)
    state.insert("use_beta1", has_beta1(optimizer_.param_groups().front().options()));
}

void OneCycleLr::read_state(const DictReader& state) {
  // The options define the cycle; its length cannot change while it runs.
  const auto total = state.integer("total_steps");
  if (total != options_.total_steps)
    state.fail("'total_steps': expected " + std::to_string(options_.total_steps) + ", got " +
               std::to_string(total));
}

ReduceLrOnPlateau::ReduceLrOnPlateau(torch::optim::Optimizer& optimizer,
                                     const LrScheduleOptions::Plateau& options)
    : LrScheduler(optimizer), options_(options), best_(worst_value<double>(options.mode)) {
  expect(options.factor < 1, "a factor below 1", options.factor);
  last_epoch_ = 0;
}

void ReduceLrOnPlateau::tick(std::optional<double> metric) {
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
  last_lrs_ = current_lrs();
}

bool ReduceLrOnPlateau::improves(double value) const {
  const double change = options_.mode == MonitorMode::kMin ? -options_.threshold : options_.threshold;
  return is_better(options_.mode, value, options_.absolute ? best_ + change : best_ * (1.0 + change));
}

void ReduceLrOnPlateau::reduce() {
  for (auto& group : optimizer_.param_groups()) {
    const double old_lr = group.options().get_lr();
    const double new_lr = std::max(old_lr * options_.factor, options_.min_lr);
    if (old_lr - new_lr > options_.eps) group.options().set_lr(new_lr);
  }
}

void ReduceLrOnPlateau::write_state(c10::impl::GenericDict& state) const {
  state.insert("factor", options_.factor);
  state.insert("default_min_lr", options_.min_lr);
  state.insert("min_lrs", to_list(std::vector<double>(base_lrs_.size(), options_.min_lr)));
  state.insert("patience", options_.patience);
  state.insert("cooldown", options_.cooldown);
  state.insert("eps", options_.eps);
  state.insert("mode_worse", worst_value<double>(options_.mode));
  state.insert("mode", options_.mode == MonitorMode::kMin ? "min" : "max");
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
