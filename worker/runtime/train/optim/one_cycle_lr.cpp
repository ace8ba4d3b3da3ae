#include <ddprun/train/optim/lr_schedulers.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>
#include <tuple>

#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

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

class OneCycleLr : public LrScheduler {
 public:
  OneCycleLr(torch::optim::Optimizer& optimizer, const LrScheduleOptions::OneCycle& options)
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
    for (std::size_t i = 0; i < base_lrs_.size(); ++i) base_lrs_[i] = lr_at(Level::kInitial, i);
  }
  std::int64_t* length() override { return &options_.total_steps; }

  void add_to_group(c10::impl::GenericDict group, std::size_t index) const override {
    LrScheduler::add_to_group(group, index);
    group.insert_or_assign("max_lr", lr_at(Level::kMax, index));
    group.insert_or_assign("min_lr", lr_at(Level::kMin, index));
    if (!options_.cycle_momentum) return;
    group.insert_or_assign("max_momentum", options_.max_momentum);
    group.insert_or_assign("base_momentum", options_.base_momentum);
  }

 private:
  enum class Level { kInitial, kMax, kMin };
  struct Phase {
    double end_step;
    Level start_lr, end_lr;
    bool starts_at_max_momentum, ends_at_max_momentum;
  };

  std::vector<Phase> phases() const {
    const auto total = static_cast<double>(options_.total_steps);
    const Phase rise = {options_.pct_start * total - 1, Level::kInitial, Level::kMax, true, false};
    if (!options_.three_phase) return {rise, {total - 1, Level::kMax, Level::kMin, false, true}};
    return {rise,
            {2 * options_.pct_start * total - 2, Level::kMax, Level::kInitial, false, true},
            {total - 1, Level::kInitial, Level::kMin, true, true}};
  }

  double lr_at(Level level, std::size_t group) const {
    const double max = options_.max_lr * (options_.lr_factors.empty() ? 1 : options_.lr_factors.at(group));
    if (level == Level::kMax) return max;
    const double initial = max / options_.div_factor;
    return level == Level::kInitial ? initial : initial / options_.final_div_factor;
  }

  double anneal(double start, double end, double part) const {
    if (options_.linear) return (end - start) * part + start;
    return end + (start - end) / 2.0 * (std::cos(std::numbers::pi * part) + 1);
  }

  std::vector<double> next_lrs() override {
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
    std::vector<double> lrs;
    for (std::size_t group = 0; group < base_lrs_.size(); ++group)
      lrs.push_back(anneal(lr_at(all[i].start_lr, group), lr_at(all[i].end_lr, group), part));
    return lrs;
  }
  std::vector<double> lrs_of_unit() override { return next_lrs(); }

  c10::impl::GenericDict own_state() const override {
    const auto name = [](Level level) {
      return level == Level::kInitial ? "initial_lr" : level == Level::kMax ? "max_lr" : "min_lr";
    };
    const auto momentum = [](bool max) { return max ? "max_momentum" : "base_momentum"; };
    auto list = make_list();
    for (const auto& phase : phases())
      list.push_back(make_state({{"end_step", phase.end_step},
                                 {"start_lr", name(phase.start_lr)},
                                 {"end_lr", name(phase.end_lr)},
                                 {"start_momentum", momentum(phase.starts_at_max_momentum)},
                                 {"end_momentum", momentum(phase.ends_at_max_momentum)}}));
    auto state = make_state({{"total_steps", options_.total_steps},
                             {"_schedule_phases", list},
                             {"_anneal_func_type", options_.linear ? "linear" : "cos"},
                             {"cycle_momentum", options_.cycle_momentum}});
    if (options_.cycle_momentum)
      state.insert("use_beta1", has_beta1(optimizer_.param_groups().front().options()));
    return state;
  }

  /// The options define the cycle except for its length.
  void read_state(const DictReader& state) override { options_.total_steps = state.positive("total_steps"); }

  LrScheduleOptions::OneCycle options_;
};

}  // namespace

std::unique_ptr<LrScheduler> make_one_cycle(torch::optim::Optimizer& optimizer,
                                            const LrScheduleOptions::OneCycle& options) {
  return std::make_unique<OneCycleLr>(optimizer, options);
}

}  // namespace ddprun::train
