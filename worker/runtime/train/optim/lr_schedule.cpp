#include <ddprun/train/optim/lr_schedule.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/optim/lr_schedulers.h>

namespace ddprun::train {
namespace {

std::int64_t stretched(std::int64_t units, double ratio, std::int64_t least = 1) {
  return std::max<std::int64_t>(least, std::llround(static_cast<double>(units) * ratio));
}

std::int64_t whole_run(const LrScheduleOptions& options) {
  if (options.kind == LrScheduleKind::kOneCycle) return options.one_cycle.total_steps;
  return options.kind == LrScheduleKind::kCosine && options.cosine.whole_run ? options.cosine.t_max : 0;
}

}  // namespace

double scaled_lr(double lr, int world_size) { return lr * world_size; }

LrSchedule::LrSchedule(torch::optim::Optimizer& optimizer, const LrScheduleOptions& options)
    : optimizer_(&optimizer), first_lrs_(lrs_of(optimizer)), options_(options), whole_(whole_run(options)) {
  if (whole_ > 0 && counts_steps()) whole_ += options.warmup_steps;
  expect(options.warmup_steps >= 0, "0 warm-up steps or more", static_cast<double>(options.warmup_steps));
  if (options.warmup_steps > 0) {
    warmup_ = make_warmup(optimizer, options.warmup_start_factor, options.warmup_steps);
    warmup_->take_first_step();
  }
  const auto base_lrs = warmup_ ? warmup_->base_lrs() : std::vector<double>();
  schedule_ = make_scheduler(optimizer, options);
  if (schedule_) schedule_->take_first_step();
  if (!warmup_) return;
  // SequentialLR starts with the schedule's first rates, with only the warm-up's first step taken.
  if (options.kind != LrScheduleKind::kOneCycle) schedule_->set_base_lrs(base_lrs);
  set_lrs(optimizer, schedule_->base_lrs());
  schedule_->undo_first_step();
  warmup_->undo_first_step();
  warmup_->take_first_step();
}

LrSchedule::~LrSchedule() = default;
LrSchedule::LrSchedule(LrSchedule&&) noexcept = default;

bool LrSchedule::in_warmup() const { return warmup_ && ticks_ < options_.warmup_steps; }

void LrSchedule::after_step() {
  ++steps_;
  if (in_warmup() || counts_steps()) advance(std::nullopt);
}

void LrSchedule::after_epoch(std::optional<double> metric) {
  if (counts_steps() || (warmup_ && steps_ <= options_.warmup_steps)) return;
  advance(metric);
}

void LrSchedule::advance(std::optional<double> metric) {
  ++ticks_;
  if (in_warmup())
    warmup_->tick(metric);
  else if (warmup_ && ticks_ == options_.warmup_steps)
    schedule_->begin();
  else if (schedule_)
    schedule_->tick(metric);
}

c10::impl::GenericDict LrSchedule::state_dict() const {
  if (!warmup_) return schedule_ ? schedule_->state_dict() : make_state();
  return make_state(
      {{"_milestones", make_list({options_.warmup_steps})},
       {"last_epoch", ticks_},
       {"_last_lr", to_list((in_warmup() ? warmup_ : schedule_)->last_lrs())},
       {"_schedulers", make_list({warmup_->state_dict(), schedule_->state_dict()})},
       {"optimizer_steps", steps_}});  // not in Python: decides in which epoch the warm-up ended
}

void LrSchedule::load_state_dict(const c10::impl::GenericDict& state) {
  const DictReader reader(state, "the learning rate schedule");
  if (!warmup_) {
    if (schedule_) schedule_->load_state_dict(state);
    return;
  }
  const auto ticks = reader.integer("last_epoch");
  const auto milestones = reader.numbers("_milestones");
  if (milestones.size() != 1 || milestones[0] < 1)
    reader.fail("'_milestones': expected the steps of a warm-up, got another");
  const auto schedulers = reader.list("_schedulers");
  if (schedulers.size() != 2 || !schedulers[0].isGenericDict() || !schedulers[1].isGenericDict())
    reader.fail("'_schedulers': expected the states of two schedules, got another");
  const auto steps = reader.has("optimizer_steps") ? reader.integer("optimizer_steps") : ticks;
  warmup_->load_state_dict(schedulers[0].toGenericDict());
  schedule_->load_state_dict(schedulers[1].toGenericDict());
  options_.warmup_steps = static_cast<std::int64_t>(milestones[0]);
  ticks_ = ticks;
  steps_ = steps;
}

void LrSchedule::add_to_groups(const c10::impl::GenericList& groups) const {
  for (std::size_t i = 0; schedule_ && i < groups.size(); ++i)
    schedule_->add_to_group(groups.get(i).toGenericDict(), i);
}

void LrSchedule::stretch_warmup(double ratio) {
  const auto before = options_.warmup_steps;
  const bool warming = in_warmup();
  options_.warmup_steps = stretched(before, ratio);
  *warmup_->length() = options_.warmup_steps;
  if (warming) {
    steps_ = ticks_ = std::min(options_.warmup_steps - 1, stretched(ticks_, ratio, 0));
    move_warmup();
  } else {
    ticks_ += options_.warmup_steps - before;
    steps_ = options_.warmup_steps +
             static_cast<std::int64_t>(std::ceil(static_cast<double>(steps_ - before) * ratio));
  }
}

/// LinearLR's closed form counts from the rates before the schedule; one-cycle starts below them.
void LrSchedule::move_warmup() {
  warmup_->move_to(ticks_);
  if (options_.kind != LrScheduleKind::kOneCycle) return;
  const auto from = warmup_->base_lrs(), to = schedule_->base_lrs();
  auto lrs = lrs_of(*optimizer_);
  for (std::size_t i = 0; i < lrs.size(); ++i)
    if (from[i] != 0) lrs[i] *= to[i] / from[i];
  set_lrs(*optimizer_, lrs);
}

void LrSchedule::translate(const ResumedAt& at) {
  const bool other_steps = at.step_ratio != 1;
  if (warmup_ && other_steps) stretch_warmup(at.step_ratio);
  auto* length = schedule_ ? schedule_->length() : nullptr;
  if (length == nullptr) return;
  const auto warmup = counts_steps() ? options_.warmup_steps : 0;
  const bool same_length = whole_ == 0 || *length == std::max<std::int64_t>(1, whole_ - warmup);
  if (same_length && !(counts_steps() && other_steps)) return;
  auto unit = schedule_->unit();
  if (counts_steps()) unit = whole_ > 0 ? at.step - warmup : stretched(unit, at.step_ratio, 0);
  *length = whole_ > 0 ? std::max<std::int64_t>(1, whole_ - warmup) : stretched(*length, at.step_ratio);
  if (in_warmup()) return;
  unit = std::max<std::int64_t>(0, whole_ > 0 ? std::min(unit, *length) : unit);
  ticks_ = options_.warmup_steps + unit;
  schedule_->move_to(unit);
}

void LrSchedule::start_at(const ResumedAt& at) {
  const auto warmup = options_.warmup_steps;
  steps_ = ticks_ = at.step;
  if (in_warmup()) {
    move_warmup();
  } else if (schedule_) {
    const auto unit = counts_steps() ? at.step - warmup : at.epoch - warmup / at.steps_per_epoch;
    ticks_ = warmup + unit;
    schedule_->move_to(std::max<std::int64_t>(0, unit));
  } else {
    set_lrs(*optimizer_, first_lrs_);
  }
}

void LrSchedule::scale_lrs(double from, double to) {
  auto lrs = lrs_of(*optimizer_);
  for (double& lr : lrs) lr = scaled_rate(lr, from, to);
  set_lrs(*optimizer_, lrs);
  for (auto* schedule : {warmup_.get(), schedule_.get()})
    if (schedule != nullptr) schedule->scale_lrs(from, to);
}

}  // namespace ddprun::train
