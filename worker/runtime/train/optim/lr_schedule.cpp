#include <ddprun/train/optim/lr_schedule.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <string>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/optim/lr_rules.h>

namespace ddprun::train {
namespace {

/// The state of a torch.optim.lr_scheduler's class beside its arguments.
void add_position(c10::impl::GenericDict state, std::int64_t last_epoch,
                  const std::vector<double>& last_lrs) {
  state.insert("last_epoch", last_epoch);
  state.insert("_last_lr", to_list(last_lrs));
}

/// What all classes but ReduceLROnPlateau have.
void add_counts(c10::impl::GenericDict state, std::int64_t last_epoch,
                const std::vector<double>& initial_lrs) {
  state.insert("base_lrs", to_list(initial_lrs));
  state.insert("_step_count", std::max<std::int64_t>(0, last_epoch) + 1);
  state.insert("_is_initial", false);
  state.insert("_get_lr_called_within_step", false);
}

void read_arguments(const c10::IValue& state, LrScheduleOptions& options) {
  const DictReader reader(state, "the learning rate schedule");
  if (reader.has("start_factor")) options.warmup_start_factor = reader.number("start_factor");
  if (reader.has("eta_min")) options.cosine.eta_min = reader.number("eta_min");
  if (!reader.has("_schedulers")) return;
  for (const auto& each : reader.list("_schedulers")) read_arguments(each, options);
}

}  // namespace

double scaled_lr(double lr, int world_size) { return lr * world_size; }

LrSchedule::LrSchedule(torch::optim::Optimizer& optimizer, const LrScheduleOptions& options)
    : optimizer_(&optimizer), first_lrs_(lrs_of(optimizer)) {
  begin(options);
}

void LrSchedule::begin(const LrScheduleOptions& options) {
  options_ = options;
  // After a warm-up the rate stays constant.
  if (options.kind == LrScheduleKind::kNone && options.warmup_steps > 0)
    options_.kind = LrScheduleKind::kStep, options_.step = {1, 1.0};
  check_schedule(options_, *optimizer_);
  steps_ = ticks_ = 0;
  plateau_ = {worst_value<double>(options_.plateau.mode)};
  initial_lrs_ = initial_lrs(options_, first_lrs_);
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
  if (in_warmup()) {
    lrs = warmup_lrs_ = warmup_lrs(options_, ticks_, lrs);
  } else {
    if (unit() == 0)
      lrs = lrs_after_warmup(options_, initial_lrs_);
    else if (options_.kind != LrScheduleKind::kPlateau)
      lrs = next_lrs(options_, unit(), lrs, initial_lrs_);
    else if (plateau_.observe(options_.plateau, metric))
      for (double& lr : lrs) lr = lowered_lr(options_.plateau, lr);
    cycle_momentum(options_, unit(), *optimizer_);
    last_lrs_ = lrs;
  }
  set_lrs(*optimizer_, lrs);
}

c10::impl::GenericDict LrSchedule::state_dict() const {
  auto state = arguments_state(options_, *optimizer_);
  if (options_.kind == LrScheduleKind::kNone) return state;
  const auto last_epoch = in_warmup() ? -1 : unit();
  if (options_.kind == LrScheduleKind::kPlateau)
    plateau_.add_to(state);
  else
    add_counts(state, last_epoch, initial_lrs_);
  add_position(state, last_epoch, last_lrs_);
  const auto warmup_steps = options_.warmup_steps;
  if (warmup_steps == 0) return state;
  auto warmup = make_state(
      {{"start_factor", options_.warmup_start_factor}, {"end_factor", 1.0}, {"total_iters", warmup_steps}});
  const auto warmed = std::min(ticks_, warmup_steps - 1);
  add_counts(warmup, warmed, first_lrs_);
  add_position(warmup, warmed, warmup_lrs_);
  auto both =
      make_state({{"_milestones", make_list({warmup_steps})},
                  {"_schedulers", make_list({warmup, state})},
                  {"optimizer_steps", steps_}});  // not in Python: decides in which epoch the warm-up ended
  add_position(both, ticks_, in_warmup() ? warmup_lrs_ : last_lrs_);
  return both;
}

void LrSchedule::load_state_dict(const c10::impl::GenericDict& state) {
  if (options_.kind == LrScheduleKind::kNone) return;
  const char* owner = "the learning rate schedule";
  const DictReader reader(state, owner);
  const auto ticks = reader.integer("last_epoch");
  auto own = state;
  auto steps = ticks;
  if (options_.warmup_steps > 0) {
    const auto schedulers = reader.list("_schedulers");
    if (schedulers.size() != 2 || !schedulers[0].isGenericDict() || !schedulers[1].isGenericDict())
      reader.fail("'_schedulers': expected the states of two schedules, got another");
    if (reader.has("optimizer_steps")) steps = reader.integer("optimizer_steps");
    warmup_lrs_ = read_lrs(DictReader(schedulers[0].toGenericDict(), owner), "_last_lr");
    own = schedulers[1].toGenericDict();
  }
  const DictReader schedule(own, owner);
  if (options_.kind == LrScheduleKind::kPlateau)
    plateau_.load(schedule);
  else
    initial_lrs_ = read_lrs(schedule, "base_lrs");
  last_lrs_ = read_lrs(schedule, "_last_lr");
  ticks_ = ticks;
  steps_ = steps;
}

std::vector<double> LrSchedule::read_lrs(const DictReader& state, const char* key) const {
  auto lrs = state.numbers(key);
  if (lrs.size() != first_lrs_.size())
    state.fail("expected learning rates of " + std::to_string(first_lrs_.size()) + " groups, got " +
               std::to_string(lrs.size()));
  return lrs;
}

void LrSchedule::add_to_groups(const c10::impl::GenericList& groups) const {
  if (options_.kind == LrScheduleKind::kNone) return;
  for (std::size_t i = 0; i < groups.size(); ++i)
    add_to_group(options_, groups.get(i).toGenericDict(), i, initial_lrs_[i]);
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
