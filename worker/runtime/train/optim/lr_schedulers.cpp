#include <ddprun/train/optim/lr_schedulers.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <sstream>
#include <stdexcept>
#include <string>

#include <ddprun/serialize/dict_reader.h>
#include <ddprun/train/optim/lr_arguments.h>

namespace ddprun::train {

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

void LrScheduler::step(std::optional<double> /*metric*/) {
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

}  // namespace ddprun::train
