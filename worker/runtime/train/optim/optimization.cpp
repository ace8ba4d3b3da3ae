#include <ddprun/train/optim/optimization.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include <ATen/core/Dict.h>
#include <torch/types.h>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/optim/gradients.h>

namespace ddprun::train {
namespace {

std::vector<at::Tensor> parameters_of(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups())
    all.insert(all.end(), group.params().begin(), group.params().end());
  return all;
}

c10::IValue none_if_empty(const c10::impl::GenericDict& dict) {
  return dict.empty() ? c10::IValue() : c10::IValue(dict);
}

/// Null if the device cannot hold back its step.
HeldBack* held_back(torch::optim::Optimizer& optimizer) {
  auto* zero = dynamic_cast<ddp::ZeroOptimizer*>(&optimizer);
  return dynamic_cast<HeldBack*>(zero != nullptr ? &zero->local() : &optimizer);
}

}  // namespace

bool same_schedule(const OptimOptions& a, const OptimOptions& b) {
  const auto all = [](const OptimOptions& options) {
    const bool plateau = options.schedule == LrScheduleKind::kPlateau;
    return std::tuple(options.schedule, options.schedule_per_step, options.t_max, options.step_size,
                      plateau ? 0.0 : options.gamma, options.warmup_steps);
  };
  return all(a) == all(b);
}

LrScheduleOptions schedule_options(const OptimOptions& options, double lr, const RunLength& length,
                                   MonitorMode mode) {
  const auto steps_now = [&](std::int64_t steps) {
    if (steps == 0 || length.steps_meant == 0) return steps;
    const double ratio =
        static_cast<double>(length.steps_per_epoch) / static_cast<double>(length.steps_meant);
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(steps) * ratio));
  };
  LrScheduleOptions schedule;
  const auto units_now = [&](std::int64_t units) { return schedule.per_step ? steps_now(units) : units; };
  schedule.kind = options.schedule;
  schedule.per_step = options.schedule == LrScheduleKind::kOneCycle ||
                      (options.schedule_per_step && options.schedule != LrScheduleKind::kPlateau);
  schedule.warmup_steps = steps_now(options.warmup_steps);
  schedule.step = {units_now(options.step_size), options.gamma};
  const auto whole =
      schedule.per_step ? std::max<std::int64_t>(1, length.steps() - schedule.warmup_steps) : length.epochs;
  schedule.cosine.t_max = options.t_max > 0 ? units_now(options.t_max) : whole;
  schedule.one_cycle.max_lr = lr;
  schedule.one_cycle.total_steps = whole;
  schedule.one_cycle.cycle_momentum = options.optimizer.kind != OptimizerKind::kAdadelta;
  schedule.plateau.mode = mode;
  schedule.plateau.factor = options.gamma;
  schedule.plateau.patience = options.plateau_patience;
  return schedule;
}

Optimization::Optimization(Parts parts, const OptimOptions& options, Precision precision, at::Device device,
                           const LrScheduleOptions& schedule)
    : options_(options),
      optimizer_(std::move(parts.optimizer)),
      ema_(std::move(parts.ema)),
      sum_over_ranks_(std::move(parts.sum_over_ranks)),
      device_(device),
      scaler_(device, {.enabled = precision == Precision::k16Mixed}),
      schedule_(*optimizer_, schedule) {}

Optimization::~Optimization() = default;
Optimization::Optimization(Optimization&&) noexcept = default;

void Optimization::clip() {
  if (options_.clip_norm <= 0 && options_.clip_value <= 0) return;
  const auto parameters = parameters_of(*optimizer_);
  ClipNormOptions clip;
  clip.reduce = sum_over_ranks_;
  if (options_.clip_norm > 0) clip_grad_norm(parameters, options_.clip_norm, clip);
  if (options_.clip_value > 0) clip_grad_value(parameters, options_.clip_value);
}

void Optimization::keep_on_device() {
  const auto options = torch::dtype(torch::kFloat32).device(device_);
  for (const auto& group : optimizer_->param_groups())
    rates_.push_back(torch::full({}, brought_.emplace_back(group.options().get_lr()), options));
  never_skipped_ = torch::zeros({}, options);
  held_back(*optimizer_)->read_rates(rates_);
}

void Optimization::bring_rates() {
  for (std::size_t i = 0; i < rates_.size(); ++i)
    if (const double lr = optimizer_->param_groups()[i].options().get_lr(); lr != brought_[i])
      rates_[i].fill_(brought_[i] = lr);
}

void Optimization::update() {
  if (scaler_.enabled()) {
    scaler_.unscale(*optimizer_, sum_over_ranks_);
    clip();
    auto* held = device_.is_cpu() ? nullptr : held_back(*optimizer_);
    if (held != nullptr) {
      const auto& skipped = scaler_.step_on_device(*optimizer_, *held);
      if (ema_) ema_->update(skipped);
    } else if (scaler_.step(*optimizer_) && ema_) {
      ema_->update();
    }
    scaler_.update();
  } else {
    clip();
    optimizer_->step();
    if (ema_) ema_->update(never_skipped_);
  }
}

void Optimization::settle() {
  if (auto* held = held_back(*optimizer_)) held->settle(optimizer_.get());
}

void Optimization::end_epoch(std::optional<double> metric) { schedule_.after_epoch(metric); }

double Optimization::learning_rate() const { return optimizer_->param_groups().front().options().get_lr(); }

c10::IValue Optimization::scaler_state() const {
  auto state = scaler_.state_dict();
  if (scaler_.enabled()) state.insert("skipped_steps", skipped_steps());
  return none_if_empty(state);
}
c10::IValue Optimization::schedule_state() const { return none_if_empty(schedule_.state_dict()); }

void Optimization::load_scaler_state(const c10::IValue& state) {
  if (!state.isGenericDict()) return;
  scaler_.load_state_dict(state.toGenericDict());
  const DictReader reader(state.toGenericDict(), "the gradient scaler");
  if (reader.has("skipped_steps")) skipped_before_ = reader.integer("skipped_steps");
}
void Optimization::complete(const c10::IValue& optimizer_state) const {
  if (optimizer_state.isGenericDict())
    schedule_.add_to_groups(optimizer_state.toGenericDict().at("param_groups").toList());
}

}  // namespace ddprun::train
