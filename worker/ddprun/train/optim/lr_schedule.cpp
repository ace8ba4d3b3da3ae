// The rules of torch.optim.lr_scheduler: the same formulas on the same doubles in the same order, so that the
// rates are bit for bit PyTorch's. There each rate follows from the one before.
#include <ddprun/train/optim/lr_schedule.h>

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <tuple>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

const char* mode_name(MonitorMode mode) { return mode == MonitorMode::kMin ? "min" : "max"; }

using OneCycle = LrScheduleOptions::OneCycle;
using Lrs = std::vector<double>;  // of the optimizer's groups
using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
constexpr double kPi = std::numbers::pi;
constexpr const char* kOwner = "the learning rate schedule";

void expect(bool holds, const char* what, double got) {
  if (!holds) throw std::invalid_argument(c10::str("learning rate schedule: expected ", what, ", got ", got));
}

Lrs lrs_of(Optimizer& optimizer) {
  Lrs lrs;
  for (const auto& group : optimizer.param_groups()) lrs.push_back(group.options().get_lr());
  return lrs;
}

void set_lrs(Optimizer& optimizer, const Lrs& lrs) {
  for (std::size_t i = 0; i < lrs.size(); ++i) optimizer.param_groups()[i].options().set_lr(lrs[i]);
}

// -- OneCycleLR: Smith and Topin 2018, "Super-Convergence" --

/// The values that a phase begins and ends with, by PyTorch's names.
struct Phase {
  double end_step;
  const char *start_lr, *end_lr, *start_momentum, *end_momentum;
};

std::vector<Phase> phases_of(const OneCycle& options) {
  const auto total = static_cast<double>(options.total_steps);
  const char *low = "base_momentum", *high = "max_momentum";
  const Phase rise = {options.pct_start * total - 1, "initial_lr", "max_lr", high, low};
  if (!options.three_phase) return {rise, {total - 1, "max_lr", "min_lr", low, high}};
  return {rise,
          {2 * options.pct_start * total - 2, "max_lr", "initial_lr", low, high},
          {total - 1, "initial_lr", "min_lr", high, high}};
}

/// group  whose rate it is
double value_named(const OneCycle& options, std::string_view name, std::size_t group = 0) {
  if (name == "max_momentum") return options.max_momentum;
  if (name == "base_momentum") return options.base_momentum;
  const double max = options.max_lr * (options.lr_factors.empty() ? 1 : options.lr_factors.at(group));
  if (name == "max_lr") return max;
  const double initial = max / options.div_factor;
  return name == "initial_lr" ? initial : initial / options.final_div_factor;
}

/// The rate of a group, or the momentum, in this unit.
double one_cycle_value(const OneCycle& options, std::int64_t unit, const char* Phase::*from,
                       const char* Phase::*to, std::size_t group = 0) {
  if (unit > options.total_steps)
    throw std::invalid_argument(
        c10::str("one-cycle: expected at most ", options.total_steps, " steps, got one more"));
  const auto all = phases_of(options);
  const auto now = static_cast<double>(unit);
  std::size_t i = 0;
  while (i + 1 < all.size() && now > all[i].end_step) ++i;
  const double begin = i == 0 ? 0.0 : all[i - 1].end_step, length = all[i].end_step - begin;
  const double part = length == 0 ? 1 : (now - begin) / length;
  const double start = value_named(options, all[i].*from, group),
               end = value_named(options, all[i].*to, group);
  if (options.linear) return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(kPi * part) + 1);
}

/// SGD's momentum, Adam's and AdamW's beta1. returns  false for another optimizer
bool set_momentum(OptimizerOptions& options, double momentum) {
  const auto set_beta1 = [&](auto* adam) {
    if (adam != nullptr) adam->betas({momentum, std::get<1>(adam->betas())});
    return adam != nullptr;
  };
  auto* sgd = dynamic_cast<torch::optim::SGDOptions*>(&options);
  if (sgd != nullptr) sgd->momentum(momentum);
  return sgd != nullptr || set_beta1(dynamic_cast<torch::optim::AdamOptions*>(&options)) ||
         set_beta1(dynamic_cast<torch::optim::AdamWOptions*>(&options));
}

void cycle_momentum(const LrScheduleOptions& options, std::int64_t unit, Optimizer& optimizer) {
  const auto& cycle = options.one_cycle;
  if (options.kind != LrScheduleKind::kOneCycle || !cycle.cycle_momentum) return;
  const double momentum = one_cycle_value(cycle, unit, &Phase::start_momentum, &Phase::end_momentum);
  for (auto& group : optimizer.param_groups()) set_momentum(group.options(), momentum);
}

// -- all schedules --

void check_schedule(const LrScheduleOptions& options, Optimizer& optimizer) {
  const double start_factor = options.warmup_start_factor;
  expect(options.warmup_steps >= 0, "0 warm-up steps or more", static_cast<double>(options.warmup_steps));
  expect(start_factor > 0 && start_factor <= 1, "a warm-up's start factor in (0, 1]", start_factor);
  const auto step_size = options.step.step_size, t_max = options.cosine.t_max;
  const auto& cycle = options.one_cycle;
  switch (options.kind) {
    case LrScheduleKind::kNone:
      return;
    case LrScheduleKind::kStep:
      return expect(step_size > 0, "a step size of 1 or more", static_cast<double>(step_size));
    case LrScheduleKind::kCosine:
      return expect(t_max > 0, "a T_max of 1 or more", static_cast<double>(t_max));
    case LrScheduleKind::kPlateau:
      return expect(options.plateau.factor < 1, "a factor below 1", options.plateau.factor);
    case LrScheduleKind::kOneCycle:
      expect(cycle.total_steps > 0, "1 step or more in all", static_cast<double>(cycle.total_steps));
      expect(cycle.max_lr > 0, "a largest learning rate above 0", cycle.max_lr);
      expect(cycle.pct_start >= 0 && cycle.pct_start <= 1, "a rising part in [0, 1]", cycle.pct_start);
  }
  for (auto& group : optimizer.param_groups())
    if (cycle.cycle_momentum && !set_momentum(group.options(), cycle.max_momentum))
      throw std::invalid_argument(
          "one-cycle: expected an optimizer with momentum or beta1 to cycle, such as SGD, Adam or AdamW; got "
          "a different one");
}

/// LinearLR: the rates of this step of the warm-up, 0 at first.
///
/// lrs  of the previous step; at first those that the schedule begins with
Lrs warmup_lrs(const LrScheduleOptions& options, std::int64_t step, Lrs lrs) {
  const double start = options.warmup_start_factor, rise = 1.0 - start;
  const auto steps = static_cast<double>(options.warmup_steps);
  for (double& lr : lrs)
    lr *= step == 0 ? start : 1.0 + rise / (steps * start + static_cast<double>(step - 1) * rise);
  return lrs;
}

/// The schedule's rates in this unit, 0 at first; plateau's and none's stay. lrs  of the unit before
Lrs next_lrs(const LrScheduleOptions& options, std::int64_t unit, Lrs lrs, const Lrs& initial) {
  if (options.kind == LrScheduleKind::kOneCycle)
    for (std::size_t i = 0; i < lrs.size(); ++i)
      lrs[i] = one_cycle_value(options.one_cycle, unit, &Phase::start_lr, &Phase::end_lr, i);
  if (unit == 0) return lrs;
  if (options.kind == LrScheduleKind::kStep && unit % options.step.step_size == 0)
    for (double& lr : lrs) lr *= options.step.gamma;
  if (options.kind != LrScheduleKind::kCosine) return lrs;
  // CosineAnnealingLR: Loshchilov and Hutter 2017, "SGDR", section 3, without restarts.
  const auto t_max = static_cast<double>(options.cosine.t_max), t = static_cast<double>(unit);
  const double eta_min = options.cosine.eta_min;
  // At the lowest point the ratio below is 0 / 0.
  const bool leaves_minimum = (unit - 1 - options.cosine.t_max) % (2 * options.cosine.t_max) == 0;
  const double ratio = (1 + std::cos(kPi * t / t_max)) / (1 + std::cos(kPi * (t - 1) / t_max));
  for (std::size_t i = 0; i < lrs.size(); ++i)
    lrs[i] = leaves_minimum ? lrs[i] + (initial[i] - eta_min) * (1 - std::cos(kPi / t_max)) / 2
                            : ratio * (lrs[i] - eta_min) + eta_min;
  return lrs;
}

/// The schedule's first rates if it begins after a warm-up, whose last ones do not matter.
Lrs lrs_after_warmup(const LrScheduleOptions& options, Lrs initial) {
  const double eta_min = options.cosine.eta_min;
  if (options.kind == LrScheduleKind::kCosine)
    for (double& lr : initial) lr = eta_min + (lr - eta_min) * (1 + std::cos(0.0)) / 2;
  return next_lrs(options, 0, initial, initial);
}

// -- PyTorch's states --

c10::impl::GenericList to_list(const Lrs& values) { return make_list({values.begin(), values.end()}); }

c10::impl::GenericDict one_cycle_state(const OneCycle& options, Optimizer& optimizer) {
  auto phases = make_list();
  for (const auto& phase : phases_of(options))
    phases.push_back(make_state({{"end_step", phase.end_step},
                                 {"start_lr", phase.start_lr},
                                 {"end_lr", phase.end_lr},
                                 {"start_momentum", phase.start_momentum},
                                 {"end_momentum", phase.end_momentum}}));
  auto state = make_state({{"total_steps", options.total_steps},
                           {"_schedule_phases", phases},
                           {"_anneal_func_type", options.linear ? "linear" : "cos"},
                           {"cycle_momentum", options.cycle_momentum}});
  const auto& of_group = optimizer.param_groups().front().options();
  if (options.cycle_momentum)
    state.insert("use_beta1", dynamic_cast<const torch::optim::SGDOptions*>(&of_group) == nullptr);
  return state;
}

/// The arguments in the state_dict() of the schedule's class.
c10::impl::GenericDict arguments_state(const LrScheduleOptions& options, Optimizer& optimizer) {
  const auto& plateau = options.plateau;
  switch (options.kind) {
    case LrScheduleKind::kStep:
      return make_state({{"step_size", options.step.step_size}, {"gamma", options.step.gamma}});
    case LrScheduleKind::kCosine:
      return make_state({{"T_max", options.cosine.t_max}, {"eta_min", options.cosine.eta_min}});
    case LrScheduleKind::kOneCycle:
      return one_cycle_state(options.one_cycle, optimizer);
    case LrScheduleKind::kPlateau:
      return make_state({{"factor", plateau.factor},
                         {"default_min_lr", plateau.min_lr},
                         {"min_lrs", to_list(Lrs(optimizer.param_groups().size(), plateau.min_lr))},
                         {"patience", plateau.patience},
                         {"cooldown", plateau.cooldown},
                         {"eps", plateau.eps},
                         {"mode_worse", worst_value<double>(plateau.mode)},
                         {"mode", mode_name(plateau.mode)},
                         {"threshold", plateau.threshold},
                         {"threshold_mode", plateau.absolute ? "abs" : "rel"}});
    case LrScheduleKind::kNone:
      break;
  }
  return make_state();
}

/// initial_lrs  null: without what all classes but ReduceLROnPlateau and SequentialLR have
void add_position(c10::impl::GenericDict state, std::int64_t last_epoch, const Lrs& last_lrs,
                  const Lrs* initial_lrs = nullptr) {
  if (initial_lrs != nullptr) {
    state.insert("base_lrs", to_list(*initial_lrs));
    state.insert("_step_count", std::max<std::int64_t>(0, last_epoch) + 1);
    state.insert("_is_initial", false);
    state.insert("_get_lr_called_within_step", false);
  }
  state.insert("last_epoch", last_epoch);
  state.insert("_last_lr", to_list(last_lrs));
}

void read_arguments(const c10::IValue& state, LrScheduleOptions& options) {
  const DictReader reader(state, kOwner);
  if (reader.has("start_factor")) options.warmup_start_factor = reader.number("start_factor");
  if (reader.has("eta_min")) options.cosine.eta_min = reader.number("eta_min");
  if (!reader.has("_schedulers")) return;
  for (const auto& each : reader.list("_schedulers")) read_arguments(each, options);
}

}  // namespace

LrSchedule::LrSchedule(Optimizer& optimizer, const LrScheduleOptions& options)
    : optimizer_(&optimizer), first_lrs_(lrs_of(optimizer)) {
  begin(options);
}

void LrSchedule::begin(const LrScheduleOptions& options) {
  options_ = options;
  // After a warm-up the rate stays constant.
  if (options.kind == LrScheduleKind::kNone && options.warmup_steps > 0)
    options_.kind = LrScheduleKind::kStep, options_.step = {1, 1.0};
  check_schedule(options_, *optimizer_);
  steps_ = ticks_ = cooldown_ = bad_epochs_ = 0;
  best_ = worst_value<double>(options_.plateau.mode);
  initial_lrs_ = first_lrs_;
  for (std::size_t i = 0; i < initial_lrs_.size() && options_.kind == LrScheduleKind::kOneCycle; ++i)
    initial_lrs_[i] = value_named(options_.one_cycle, "initial_lr", i);
  const bool warms_up = in_warmup();
  // With a warm-up torch's SequentialLR makes both schedules, then begins again with the schedule's first
  // rates.
  last_lrs_ =
      next_lrs(options_, 0, warms_up ? warmup_lrs(options_, 0, first_lrs_) : first_lrs_, initial_lrs_);
  cycle_momentum(options_, 0, *optimizer_);
  if (warms_up) warmup_lrs_ = warmup_lrs(options_, 0, initial_lrs_);
  set_lrs(*optimizer_, warms_up ? warmup_lrs_ : last_lrs_);
}

void LrSchedule::after_step() {
  ++steps_;
  if (in_warmup() || counts_steps()) advance(std::nullopt);
}

void LrSchedule::after_epoch(std::optional<double> metric) {
  if (counts_steps() || (options_.warmup_steps > 0 && steps_ <= options_.warmup_steps)) return;
  advance(metric);
}

void LrSchedule::advance(std::optional<double> metric) {
  ++ticks_;
  if (options_.kind == LrScheduleKind::kNone) return;
  auto lrs = lrs_of(*optimizer_);
  if (in_warmup()) return set_lrs(*optimizer_, warmup_lrs_ = warmup_lrs(options_, ticks_, lrs));
  const auto& plateau = options_.plateau;
  if (unit() == 0) {
    lrs = lrs_after_warmup(options_, initial_lrs_);
  } else if (options_.kind != LrScheduleKind::kPlateau) {
    lrs = next_lrs(options_, unit(), lrs, initial_lrs_);
  } else if (plateau_falls(metric)) {
    for (double& lr : lrs)
      if (const double lower = std::max(lr * plateau.factor, plateau.min_lr); lr - lower > plateau.eps)
        lr = lower;
  }
  cycle_momentum(options_, unit(), *optimizer_);
  set_lrs(*optimizer_, last_lrs_ = lrs);
}

/// ReduceLROnPlateau: whether the rates fall now.
bool LrSchedule::plateau_falls(std::optional<double> metric) {
  if (!metric) throw std::invalid_argument("plateau: expected the value of the metric to watch, got none");
  const auto& options = options_.plateau;
  const double change = options.mode == MonitorMode::kMin ? -options.threshold : options.threshold;
  const bool improves =
      is_better(options.mode, *metric, options.absolute ? best_ + change : best_ * (1.0 + change));
  if (improves) best_ = *metric;
  bad_epochs_ = improves || cooldown_ > 0 ? 0 : bad_epochs_ + 1;
  if (cooldown_ > 0) --cooldown_;
  const bool falls = bad_epochs_ > options.patience;
  if (falls) cooldown_ = options.cooldown, bad_epochs_ = 0;
  return falls;
}

c10::impl::GenericDict LrSchedule::state_dict() const {
  auto state = arguments_state(options_, *optimizer_);
  if (options_.kind == LrScheduleKind::kNone) return state;
  const auto last_epoch = in_warmup() ? -1 : unit();
  const bool plateau = options_.kind == LrScheduleKind::kPlateau;
  if (plateau) {
    state.insert("best", best_);
    state.insert("cooldown_counter", cooldown_);
    state.insert("num_bad_epochs", bad_epochs_);
    if (const auto& monitor = options_.plateau.monitor; !monitor.empty()) state.insert("monitor", monitor);
  }
  add_position(state, last_epoch, last_lrs_, plateau ? nullptr : &initial_lrs_);
  const auto warmup_steps = options_.warmup_steps;
  if (warmup_steps == 0) return state;
  auto warmup = make_state(
      {{"start_factor", options_.warmup_start_factor}, {"end_factor", 1.0}, {"total_iters", warmup_steps}});
  add_position(warmup, std::min(ticks_, warmup_steps - 1), warmup_lrs_, &first_lrs_);
  auto both =
      make_state({{"_milestones", make_list({warmup_steps})},
                  {"_schedulers", make_list({warmup, state})},
                  {"optimizer_steps", steps_}});  // not in Python: decides in which epoch the warm-up ended
  add_position(both, ticks_, in_warmup() ? warmup_lrs_ : last_lrs_);
  return both;
}

void LrSchedule::load_state_dict(const c10::impl::GenericDict& state) {
  if (options_.kind == LrScheduleKind::kNone) return;
  const DictReader reader(state, kOwner);
  const auto ticks = reader.integer("last_epoch");
  auto own = state;
  auto steps = ticks;
  if (options_.warmup_steps > 0) {
    const auto schedulers = reader.list("_schedulers");
    if (schedulers.size() != 2 || !schedulers[0].isGenericDict() || !schedulers[1].isGenericDict())
      reader.fail("'_schedulers': expected the states of two schedules, got something else");
    if (reader.has("optimizer_steps")) steps = reader.integer("optimizer_steps");
    warmup_lrs_ = read_lrs(DictReader(schedulers[0].toGenericDict(), kOwner), "_last_lr");
    own = schedulers[1].toGenericDict();
  }
  const DictReader schedule(own, kOwner);
  const auto& plateau = options_.plateau;
  const auto is_other = [&](const char* key, const std::string& ours) {
    return schedule.has(key) && schedule.text(key) != ours;
  };
  if (options_.kind == LrScheduleKind::kPlateau) {
    const double best = schedule.number("best");
    const auto cooldown = schedule.integer("cooldown_counter"),
               bad_epochs = schedule.integer("num_bad_epochs");
    if (!is_other("monitor", plateau.monitor) && !is_other("mode", mode_name(plateau.mode)))
      best_ = best, cooldown_ = cooldown, bad_epochs_ = bad_epochs;
  } else {
    initial_lrs_ = read_lrs(schedule, "base_lrs");
  }
  last_lrs_ = read_lrs(schedule, "_last_lr");
  ticks_ = ticks;
  steps_ = steps;
}

std::vector<double> LrSchedule::read_lrs(const DictReader& state, const char* key) const {
  auto lrs = state.numbers(key);
  if (lrs.size() != first_lrs_.size())
    state.fail(c10::str("expected learning rates of ", first_lrs_.size(), " groups, got ", lrs.size()));
  return lrs;
}

void LrSchedule::add_to_groups(const c10::impl::GenericList& groups) const {
  const auto& cycle = options_.one_cycle;
  for (std::size_t i = 0; i < groups.size() && options_.kind != LrScheduleKind::kNone; ++i) {
    const auto group = groups.get(i).toGenericDict();
    group.insert_or_assign("initial_lr", initial_lrs_[i]);
    if (options_.kind != LrScheduleKind::kOneCycle) continue;
    for (const char* name : {"max_lr", "min_lr", "max_momentum", "base_momentum"})
      if (cycle.cycle_momentum || std::string_view(name).ends_with("_lr"))
        group.insert_or_assign(name, value_named(cycle, name, i));
  }
}

void LrSchedule::go_to(LrScheduleOptions options, const RunProgress& at, const c10::IValue& state,
                       double lr_ratio) {
  if (state.isGenericDict()) read_arguments(state, options);
  begin(options);
  const auto warmup = options_.warmup_steps;
  const auto units = counts_steps() ? at.step - warmup : at.epoch - warmup / at.steps_per_epoch;
  const auto ticks = at.step < warmup ? at.step : warmup + std::max<std::int64_t>(0, units);
  const bool plateau = options_.kind == LrScheduleKind::kPlateau;
  while (ticks_ < (plateau ? std::min(ticks, warmup) : ticks)) advance(std::nullopt);
  if (plateau && state.isGenericDict()) {
    const auto warmed = warmup_lrs_;
    load_state_dict(state.toGenericDict());
    warmup_lrs_ = warmed;
    for (double& lr : last_lrs_) lr *= lr_ratio;
    if (at.step >= warmup) set_lrs(*optimizer_, last_lrs_);
  }
  ticks_ = ticks;
  steps_ = at.step;
}

}  // namespace ddprun::train
