#include <ddprun/train/optim/optimization.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include <ATen/ops/_foreach_lerp.h>
#include <torch/nn/module.h>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/sharding/zero_optimizer.h>

namespace ddprun::train {
namespace {

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
                      plateau ? 0.0 : options.gamma, options.warmup_steps, options.pct_start, options.linear,
                      options.cycle_momentum);
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
  schedule.one_cycle.pct_start = options.pct_start;
  schedule.one_cycle.linear = options.linear;
  schedule.one_cycle.cycle_momentum = options.changes_momentum();
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

void Optimization::clip() {
  if (options_.clip_norm <= 0 && options_.clip_value <= 0) return;
  const auto parameters = parameters_of(*optimizer_);
  if (options_.clip_norm > 0) clip_grad_norm(parameters, options_.clip_norm, {.reduce = sum_over_ranks_});
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

Ema::Ema(const torch::nn::Module& module, const Options& options)
    : Ema(module.named_parameters().pairs(), module.named_buffers().pairs(), options) {}

Ema::Ema(NamedTensors parameters, NamedTensors buffers, const Options& options) : options_(options) {
  if (!(options.decay >= 0 && options.decay <= 1))
    throw std::invalid_argument("weight average: expected a decay in [0, 1], got " +
                                std::to_string(options.decay));
  add(std::move(parameters), true);
  add(std::move(buffers), options.average_buffers);
}

void Ema::add(NamedTensors tensors, bool averaged) {
  const torch::NoGradGuard no_grad;
  for (auto& [name, tensor] : tensors) {
    const auto same = std::find_if(entries_.begin(), entries_.end(),
                                   [&](const Entry& entry) { return entry.source.is_same(tensor); });
    const bool alias = same != entries_.end();
    auto average = alias ? same->average : tensor.detach().clone();
    entries_.push_back({std::move(name), tensor, std::move(average), averaged, alias});
  }
}

void Ema::update_unless(const at::Tensor& skipped) {
  if (!updates_on_device_.defined())
    updates_on_device_ = torch::full({}, updates_, skipped.options().dtype(torch::kInt64));
  const auto taken = skipped == 0;
  const auto first = (updates_on_device_ == 0).to(torch::kDouble);  // makes lerp copy: its weight is 1
  const auto weight = taken.to(torch::kDouble) * (first * options_.decay + (1 - options_.decay));
  for (auto& entry : entries_) {
    if (entry.alias) continue;
    if (entry.averaged && at::isFloatingType(entry.average.scalar_type()))
      entry.average.lerp_(entry.source, weight.to(entry.average.scalar_type()));
    else if (entry.averaged)
      entry.average.copy_(
          torch::lerp(entry.average.to(torch::kDouble), entry.source.to(torch::kDouble), weight));
    else
      entry.average.copy_(torch::where(taken, entry.source, entry.average));
  }
  updates_on_device_ += taken;
}

void Ema::update(const at::Tensor& skipped) {
  if (swapped_) throw std::logic_error("weight average: update() while the weights are swapped");
  const torch::NoGradGuard no_grad;
  if (skipped.defined() || updates_on_device_.defined())
    return update_unless(
        skipped.defined() ? skipped : torch::zeros({}, updates_on_device_.options().dtype(torch::kFloat32)));
  std::vector<at::Tensor> averages, sources;
  for (auto& entry : entries_) {
    if (entry.alias) continue;
    if (updates_ == 0 || !entry.averaged) {
      entry.average.copy_(entry.source);
    } else if (at::isFloatingType(entry.average.scalar_type())) {
      averages.push_back(entry.average);
      sources.push_back(entry.source);
    } else {
      entry.average.copy_(entry.average * options_.decay + entry.source * (1 - options_.decay));
    }
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, sources, 1 - options_.decay);
  ++updates_;
}

void Ema::set_swapped(bool swapped) {
  if (swapped && swapped_) throw std::logic_error("weight average: the weights are already swapped");
  if (swapped ? updates() == 0 : !swapped_) return;
  const torch::NoGradGuard no_grad;
  for (auto& entry : entries_) {
    if (entry.alias) continue;
    const auto weights = entry.source.clone();
    entry.source.copy_(entry.average);
    entry.average.copy_(weights);
  }
  swapped_ = swapped;
}

Ema::NamedTensors Ema::averages() const {
  NamedTensors result;
  for (const auto& entry : entries_)
    result.emplace_back(entry.name, swapped_ ? entry.source.detach() : entry.average);
  return result;
}

c10::impl::GenericDict Ema::state_dict() const {
  auto state = make_state();
  state.insert("n_averaged", torch::full({}, updates(), torch::kInt64));
  for (const auto& [name, average] : averages()) state.insert("module." + name, average);
  return state;
}

void Ema::load_state_dict(const c10::impl::GenericDict& state) {
  const torch::NoGradGuard no_grad;
  const DictReader reader(state, "the weight average");
  const auto updates = static_cast<std::int64_t>(reader.number("n_averaged"));
  for (const auto& entry : entries_) {
    const auto key = "module." + entry.name;
    const auto value = reader.tensor(key);
    if (value.sizes() != entry.average.sizes())
      reader.fail(c10::str("'", key, "': expected shape ", entry.average.sizes(), ", got ", value.sizes()));
  }
  for (auto& entry : entries_) entry.average.copy_(reader.tensor("module." + entry.name));
  updates_ = updates;
  updates_on_device_.reset();
}

}  // namespace ddprun::train
