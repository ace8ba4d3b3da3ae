#include <ddprun/train/optim/lr_schedule.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/optim/optimizer.h>

#include <stdexcept>
#include <string>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/optim/lr_schedulers.h>

namespace ddprun::train {
namespace {

std::unique_ptr<LrScheduler> make_scheduler(torch::optim::Optimizer& optimizer,
                                            const LrScheduleOptions& options) {
  switch (options.kind) {
    case LrScheduleKind::kStep:
      return std::make_unique<StepLr>(optimizer, options.step);
    case LrScheduleKind::kCosine:
      return std::make_unique<CosineAnnealingLr>(optimizer, options.cosine);
    case LrScheduleKind::kOneCycle:
      return std::make_unique<OneCycleLr>(optimizer, options.one_cycle);
    case LrScheduleKind::kPlateau:
      return std::make_unique<ReduceLrOnPlateau>(optimizer, options.plateau);
    case LrScheduleKind::kNone:
      break;
  }
  // After a warm-up the rate stays constant.
  if (options.warmup_steps > 0) return std::make_unique<StepLr>(optimizer, LrScheduleOptions::Step{1, 1.0});
  return nullptr;
}

void set_lrs(torch::optim::Optimizer& optimizer, const std::vector<double>& lrs) {
  for (std::size_t i = 0; i < lrs.size(); ++i) optimizer.param_groups()[i].options().set_lr(lrs[i]);
}

}  // namespace

double scaled_lr(double lr, int world_size) { return lr * world_size; }

LrSchedule::LrSchedule(torch::optim::Optimizer& optimizer, const LrScheduleOptions& options)
    : options_(options) {
  expect(options.warmup_steps >= 0, "0 warm-up steps or more", static_cast<double>(options.warmup_steps));
  if (options.warmup_steps > 0)
    warmup_ = std::make_unique<LinearLr>(optimizer, options.warmup_start_factor, options.warmup_steps);
  const auto base_lrs = warmup_ ? warmup_->base_lrs() : std::vector<double>();
  schedule_ = make_scheduler(optimizer, options);
  if (!warmup_) return;
  // SequentialLR starts with the schedule's first rates and only the warm-up's first step taken.
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
  const bool per_step = options_.per_step && options_.kind != LrScheduleKind::kPlateau;
  if (in_warmup() || per_step) advance(std::nullopt);
}

void LrSchedule::after_epoch(std::optional<double> metric) {
  const bool per_step = options_.per_step && options_.kind != LrScheduleKind::kPlateau;
  if (per_step || (warmup_ && steps_ <= options_.warmup_steps)) return;
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
  c10::impl::GenericList milestones(c10::AnyType::get()), schedulers(c10::AnyType::get());
  milestones.push_back(options_.warmup_steps);
  schedulers.push_back(warmup_->state_dict());
  schedulers.push_back(schedule_->state_dict());
  auto state = make_state();
  state.insert("_milestones", milestones);
  state.insert("last_epoch", ticks_);
  state.insert("_last_lr", to_list((in_warmup() ? warmup_ : schedule_)->last_lrs()));
  state.insert("_schedulers", schedulers);
  state.insert("optimizer_steps", steps_);  // not Python's: decides in which epoch the warm-up ended
  return state;
}

void LrSchedule::load_state_dict(const c10::impl::GenericDict& state) {
  const DictReader reader(state, "the learning rate schedule");
  if (!warmup_) {
    if (schedule_) schedule_->load_state_dict(state);
    return;
  }
  const auto ticks = reader.integer("last_epoch");
  const auto milestones = reader.numbers("_milestones");
  if (milestones.size() != 1 || milestones[0] != static_cast<double>(options_.warmup_steps))
    reader.fail("'_milestones': expected a warm-up of " + std::to_string(options_.warmup_steps) +
                " steps, got another");
  const auto schedulers = reader.list("_schedulers");
  if (schedulers.size() != 2 || !schedulers[0].isGenericDict() || !schedulers[1].isGenericDict())
    reader.fail("'_schedulers': expected the states of two schedules, got another");
  const auto steps = reader.has("optimizer_steps") ? reader.integer("optimizer_steps") : ticks;
  warmup_->load_state_dict(schedulers[0].toGenericDict());
  schedule_->load_state_dict(schedulers[1].toGenericDict());
  ticks_ = ticks;
  steps_ = steps;
}

}  // namespace ddprun::train
