#pragma once
// The rules of torch.optim.lr_scheduler: the same formulas on the same doubles in the same order. Each rate
// follows from the one before.

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

#include <ddprun/train/optim/lr_schedule.h>

namespace torch::optim {
class Optimizer;
}

namespace ddprun::train {

c10::impl::GenericList to_list(const std::vector<double>& values);

/// The learning rates of the optimizer's groups.
std::vector<double> lrs_of(torch::optim::Optimizer& optimizer);
void set_lrs(torch::optim::Optimizer& optimizer, const std::vector<double>& lrs);

/// throws  std::invalid_argument for an option out of range, or if an optimizer without momentum should cycle
/// it
void check_schedule(const LrScheduleOptions& options, torch::optim::Optimizer& optimizer);

/// What PyTorch's schedule keeps as initial_lr of groups that had these rates before it.
std::vector<double> initial_lrs(const LrScheduleOptions& options, std::vector<double> lrs);

/// LinearLR: the rates of this step of the warm-up, 0 at first.
///
/// lrs  of the step before; at first those that the schedule begins with
std::vector<double> warmup_lrs(const LrScheduleOptions& options, std::int64_t step, std::vector<double> lrs);

/// The schedule's rates in this unit, 0 at first. lrs  of the unit before
std::vector<double> next_lrs(const LrScheduleOptions& options, std::int64_t unit, std::vector<double> lrs,
                             const std::vector<double>& initial);

/// The schedule's first rates if it begins after a warm-up, whose last ones do not matter.
std::vector<double> lrs_after_warmup(const LrScheduleOptions& options, std::vector<double> initial);

/// One-cycle: sets SGD's momentum, or Adam's and AdamW's beta1, for this unit.
void cycle_momentum(const LrScheduleOptions& options, std::int64_t unit, torch::optim::Optimizer& optimizer);

/// The arguments in the state_dict() of the schedule's class.
c10::impl::GenericDict arguments_state(const LrScheduleOptions& options, torch::optim::Optimizer& optimizer);

/// Adds to a group of the optimizer's state_dict() what the schedule keeps there.
void add_to_group(const LrScheduleOptions& options, c10::impl::GenericDict group, std::size_t index,
                  double initial_lr);

/// ReduceLROnPlateau's reduction.
double lowered_lr(const LrScheduleOptions::Plateau& options, double lr);

}  // namespace ddprun::train
