#include <ddprun/train/optim/lr_rules.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <tuple>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

using OneCycle = LrScheduleOptions::OneCycle;
using Plateau = LrScheduleOptions::Plateau;
constexpr double kPi = std::numbers::pi;

void expect(bool holds, const char* what, double got) {
  if (!holds) throw std::invalid_argument(c10::str("learning rate schedule: expected ", what, ", got ", got));
}

// -- CosineAnnealingLR: Loshchilov and Hutter 2017, "SGDR", section 3, without restarts --

void next_cosine(const LrScheduleOptions::Cosine& options, std::int64_t unit, std::vector<double>& lrs,
                 const std::vector<double>& initial) {
  const auto t_max = static_cast<double>(options.t_max), t = static_cast<double>(unit);
  const double eta_min = options.eta_min;
  // At the lowest point the ratio below is 0 / 0.
  const bool leaves_minimum = (unit - 1 - options.t_max) % (2 * options.t_max) == 0;
  const double ratio = (1 + std::cos(kPi * t / t_max)) / (1 + std::cos(kPi * (t - 1) / t_max));
  for (std::size_t i = 0; i < lrs.size(); ++i)
    if (leaves_minimum)
      lrs[i] = lrs[i] + (initial[i] - eta_min) * (1 - std::cos(kPi / t_max)) / 2;
    else
      lrs[i] = ratio * (lrs[i] - eta_min) + eta_min;
}

// -- OneCycleLR: Smith and Topin 2018, "Super-Convergence" --

/// returns  false for another optimizer
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

void check_one_cycle(const OneCycle& options, torch::optim::Optimizer& optimizer) {
  expect(options.total_steps > 0, "1 step or more in all", static_cast<double>(options.total_steps));
  expect(options.max_lr > 0, "a largest learning rate above 0", options.max_lr);
  expect(options.pct_start >= 0 && options.pct_start <= 1, "a rising part in [0, 1]", options.pct_start);
  for (auto& group : optimizer.param_groups())
    if (options.cycle_momentum && !set_momentum(group.options(), options.max_momentum))
      throw std::invalid_argument(
          "one-cycle: expected an optimizer with momentum or beta1 to cycle, as SGD, Adam or AdamW; got "
          "another");
}

enum class Level { kInitial, kMax, kMin };
struct Phase {
  double end_step;
  Level start_lr, end_lr;
  bool starts_at_max_momentum, ends_at_max_momentum;
};

std::vector<Phase> phases_of(const OneCycle& options) {
  const auto total = static_cast<double>(options.total_steps);
  const Phase rise = {options.pct_start * total - 1, Level::kInitial, Level::kMax, true, false};
  if (!options.three_phase) return {rise, {total - 1, Level::kMax, Level::kMin, false, true}};
  return {rise,
          {2 * options.pct_start * total - 2, Level::kMax, Level::kInitial, false, true},
          {total - 1, Level::kInitial, Level::kMin, true, true}};
}

double lr_at(const OneCycle& options, Level level, std::size_t group) {
  const double max = options.max_lr * (options.lr_factors.empty() ? 1 : options.lr_factors.at(group));
  if (level == Level::kMax) return max;
  const double initial = max / options.div_factor;
  return level == Level::kInitial ? initial : initial / options.final_div_factor;
}

double momentum_at(const OneCycle& options, bool max) {
  return max ? options.max_momentum : options.base_momentum;
}

double anneal(const OneCycle& options, double start, double end, double part) {
  if (options.linear) return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(kPi * part) + 1);
}

/// The phase of a unit, and how much of it is over.
std::pair<Phase, double> phase_at(const OneCycle& options, std::int64_t unit) {
  if (unit > options.total_steps)
    throw std::invalid_argument("one-cycle: expected " + std::to_string(options.total_steps) +
                                " steps at most, got one more");
  const auto all = phases_of(options);
  const auto now = static_cast<double>(unit);
  std::size_t i = 0;
  while (i + 1 < all.size() && now > all[i].end_step) ++i;
  const double begin = i == 0 ? 0.0 : all[i - 1].end_step;
  const double length = all[i].end_step - begin;
  return {all[i], length == 0 ? 1 : (now - begin) / length};
}

c10::impl::GenericDict one_cycle_state(const OneCycle& options, torch::optim::Optimizer& optimizer) {
  const auto name = [](Level level) {
    return level == Level::kInitial ? "initial_lr" : level == Level::kMax ? "max_lr" : "min_lr";
  };
  const auto momentum = [](bool max) { return max ? "max_momentum" : "base_momentum"; };
  auto list = make_list();
  for (const auto& phase : phases_of(options))
    list.push_back(make_state({{"end_step", phase.end_step},
                               {"start_lr", name(phase.start_lr)},
                               {"end_lr", name(phase.end_lr)},
                               {"start_momentum", momentum(phase.starts_at_max_momentum)},
                               {"end_momentum", momentum(phase.ends_at_max_momentum)}}));
  auto state = make_state({{"total_steps", options.total_steps},
                           {"_schedule_phases", list},
                           {"_anneal_func_type", options.linear ? "linear" : "cos"},
                           {"cycle_momentum", options.cycle_momentum}});
  const auto& of_group = optimizer.param_groups().front().options();
  if (options.cycle_momentum)
    state.insert("use_beta1", dynamic_cast<const torch::optim::SGDOptions*>(&of_group) == nullptr);
  return state;
}

}  // namespace

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

void check_schedule(const LrScheduleOptions& options, torch::optim::Optimizer& optimizer) {
  const double start_factor = options.warmup_start_factor;
  expect(options.warmup_steps >= 0, "0 warm-up steps or more", static_cast<double>(options.warmup_steps));
  expect(start_factor > 0 && start_factor <= 1, "a warm-up's start factor in (0, 1]", start_factor);
  if (options.kind == LrScheduleKind::kStep)
    expect(options.step.step_size > 0, "a step size of 1 or more",
           static_cast<double>(options.step.step_size));
  if (options.kind == LrScheduleKind::kCosine)
    expect(options.cosine.t_max > 0, "a T_max of 1 or more", static_cast<double>(options.cosine.t_max));
  if (options.kind == LrScheduleKind::kPlateau)
    expect(options.plateau.factor < 1, "a factor below 1", options.plateau.factor);
  if (options.kind == LrScheduleKind::kOneCycle) check_one_cycle(options.one_cycle, optimizer);
}

std::vector<double> initial_lrs(const LrScheduleOptions& options, std::vector<double> lrs) {
  for (std::size_t i = 0; i < lrs.size() && options.kind == LrScheduleKind::kOneCycle; ++i)
    lrs[i] = lr_at(options.one_cycle, Level::kInitial, i);
  return lrs;
}

std::vector<double> warmup_lrs(const LrScheduleOptions& options, std::int64_t step, std::vector<double> lrs) {
  const double start = options.warmup_start_factor, rise = 1.0 - start;
  const auto steps = static_cast<double>(options.warmup_steps);
  for (double& lr : lrs)
    lr *= step == 0 ? start : 1.0 + rise / (steps * start + static_cast<double>(step - 1) * rise);
  return lrs;
}

std::vector<double> next_lrs(const LrScheduleOptions& options, std::int64_t unit, std::vector<double> lrs,
                             const std::vector<double>& initial) {
  const auto& cycle = options.one_cycle;
  if (options.kind == LrScheduleKind::kOneCycle) {
    const auto [phase, part] = phase_at(cycle, unit);
    for (std::size_t i = 0; i < lrs.size(); ++i)
      lrs[i] = anneal(cycle, lr_at(cycle, phase.start_lr, i), lr_at(cycle, phase.end_lr, i), part);
  } else if (options.kind == LrScheduleKind::kCosine && unit > 0) {
    next_cosine(options.cosine, unit, lrs, initial);
  } else if (options.kind == LrScheduleKind::kStep && unit > 0 && unit % options.step.step_size == 0) {
    for (double& lr : lrs) lr *= options.step.gamma;
  }
  return lrs;
}

std::vector<double> lrs_after_warmup(const LrScheduleOptions& options, std::vector<double> initial) {
  const double eta_min = options.cosine.eta_min;
  if (options.kind == LrScheduleKind::kCosine)
    for (double& lr : initial) lr = eta_min + (lr - eta_min) * (1 + std::cos(0.0)) / 2;
  return next_lrs(options, 0, initial, initial);
}

void cycle_momentum(const LrScheduleOptions& options, std::int64_t unit, torch::optim::Optimizer& optimizer) {
  const auto& cycle = options.one_cycle;
  if (options.kind != LrScheduleKind::kOneCycle || !cycle.cycle_momentum) return;
  const auto [phase, part] = phase_at(cycle, unit);
  const double momentum = anneal(cycle, momentum_at(cycle, phase.starts_at_max_momentum),
                                 momentum_at(cycle, phase.ends_at_max_momentum), part);
  for (auto& group : optimizer.param_groups()) set_momentum(group.options(), momentum);
}

c10::impl::GenericDict arguments_state(const LrScheduleOptions& options, torch::optim::Optimizer& optimizer) {
  const auto& plateau = options.plateau;
  const bool min = plateau.mode == MonitorMode::kMin;
  switch (options.kind) {
    case LrScheduleKind::kStep:
      return make_state({{"step_size", options.step.step_size}, {"gamma", options.step.gamma}});
    case LrScheduleKind::kCosine:
      return make_state({{"T_max", options.cosine.t_max}, {"eta_min", options.cosine.eta_min}});
    case LrScheduleKind::kOneCycle:
      return one_cycle_state(options.one_cycle, optimizer);
    case LrScheduleKind::kPlateau:
      return make_state(
          {{"factor", plateau.factor},
           {"default_min_lr", plateau.min_lr},
           {"min_lrs", to_list(std::vector<double>(optimizer.param_groups().size(), plateau.min_lr))},
           {"patience", plateau.patience},
           {"cooldown", plateau.cooldown},
           {"eps", plateau.eps},
           {"mode_worse", worst_value<double>(plateau.mode)},
           {"mode", min ? "min" : "max"},
           {"threshold", plateau.threshold},
           {"threshold_mode", plateau.absolute ? "abs" : "rel"}});
    case LrScheduleKind::kNone:
      break;
  }
  return make_state();
}

void add_to_group(const LrScheduleOptions& options, c10::impl::GenericDict group, std::size_t index,
                  double initial_lr) {
  const auto& cycle = options.one_cycle;
  group.insert_or_assign("initial_lr", initial_lr);
  if (options.kind != LrScheduleKind::kOneCycle) return;
  group.insert_or_assign("max_lr", lr_at(cycle, Level::kMax, index));
  group.insert_or_assign("min_lr", lr_at(cycle, Level::kMin, index));
  if (!cycle.cycle_momentum) return;
  group.insert_or_assign("max_momentum", cycle.max_momentum);
  group.insert_or_assign("base_momentum", cycle.base_momentum);
}

double lowered_lr(const Plateau& options, double lr) {
  const double lower = std::max(lr * options.factor, options.min_lr);
  return lr - lower > options.eps ? lower : lr;
}

bool PlateauMemory::observe(const Plateau& options, std::optional<double> metric) {
  if (!metric) throw std::invalid_argument("plateau: expected the value of the metric to watch, got none");
  const double change = options.mode == MonitorMode::kMin ? -options.threshold : options.threshold;
  const bool improves =
      is_better(options.mode, *metric, options.absolute ? best + change : best * (1.0 + change));
  if (improves) best = *metric;
  bad_epochs = improves || cooldown > 0 ? 0 : bad_epochs + 1;
  if (cooldown > 0) --cooldown;
  const bool falls = bad_epochs > options.patience;
  if (falls) cooldown = options.cooldown, bad_epochs = 0;
  return falls;
}

void PlateauMemory::add_to(c10::impl::GenericDict state) const {
  state.insert("best", best);
  state.insert("cooldown_counter", cooldown);
  state.insert("num_bad_epochs", bad_epochs);
}

void PlateauMemory::load(const DictReader& state) {
  *this = {state.number("best"), state.integer("cooldown_counter"), state.integer("num_bad_epochs")};
}

}  // namespace ddprun::train
