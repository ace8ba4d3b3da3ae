#pragma once

#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/group/collectives.h>
#include <ddprun/sharding/flat_parameter.h>
#include <ddprun/sharding/fully_sharded.h>
#include <ddprun/sharding/gather_schedule.h>
#include <ddprun/sharding/operator_watch.h>
#include <ddprun/sharding/shard_units.h>

namespace ddprun::ddp {

/// For work on the units from within operators and backward: neither recorded by autograd nor watched.
struct Unobserved {
  at::DisableRecordFunctionGuard no_record;
  torch::NoGradGuard no_grad;
};

// What a watched storage is: a unit's full tensor or this rank's shard of it.
inline std::size_t full_label(std::size_t unit) { return 2 * unit; }
inline std::size_t shard_label(std::size_t unit) { return 2 * unit + 1; }
inline std::size_t unit_of(std::size_t label) { return label / 2; }
inline bool is_full(std::size_t label) { return label % 2 == 0; }

/// What FullyShardedDataParallel is made of; for fully_sharded.cpp alone.
struct FullyShardedDataParallel::Engine final : OperatorListener {
  Engine(torch::nn::Module& module, const ProcessGroup& group, const Options& options)
      : group(group), buffers(module.buffers()), options(options), schedule(options.prefetch) {
    const Unobserved unobserved;
    // The units keep a pointer: to what lives as long as they do, not to the caller's.
    auto made = make_units(module, this->group, options.unit_bytes, options.units);
    units = std::move(made.units);
    names = std::move(made.names);
    pins.assign(units.size(), 0);
    synchronize_buffers();
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      set_hooks(unit, [&](std::size_t parameter) { return new Hook(*this, unit, parameter); });
      if (!units[unit].is_sharded()) continue;
      watch_storage(units[unit].storage(), *this, full_label(unit));
      watch_storage(units[unit].shard().storage().unsafeGetStorageImpl(), *this, shard_label(unit));
    }
  }

  ~Engine() {
    unwatch_storages(*this);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      set_hooks(unit, [](std::size_t) { return nullptr; });
      if (units[unit].is_sharded())
        units[unit].fail("parameters " + units[unit].name() +
                         " are gone: their FullyShardedDataParallel has ended");
    }
  }

  /// Runs when a parameter has got its gradient.
  struct Hook final : torch::autograd::PostAccumulateGradHook {
    Hook(Engine& engine, std::size_t unit, std::size_t parameter)
        : engine(engine), unit(unit), parameter(parameter) {}
    void operator()(const torch::autograd::Variable&) override { engine.gradient_arrived(unit, parameter); }
    Engine& engine;
    std::size_t unit, parameter;
  };

  template <typename MakeHook>
  void set_hooks(std::size_t unit, MakeHook&& make_hook) {
    const auto& parameters = units[unit].parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].requires_grad())
        torch::autograd::impl::set_post_acc_grad_hooks(
            parameters[i], std::unique_ptr<torch::autograd::PostAccumulateGradHook>(make_hook(i)));
  }

  void before_operator(std::span<const std::size_t> labels) noexcept override {
    const std::lock_guard lock(mutex);
    for (const std::size_t label : labels)
      if (is_full(label)) ++pins[unit_of(label)];
    const bool all_there = std::all_of(labels.begin(), labels.end(), [&](std::size_t label) {
      return is_full(label) && schedule.is_current(unit_of(label)) && units[unit_of(label)].is_gathered();
    });
    if (all_there || failed || full_scopes > 0) return;
    const Unobserved unobserved;
    for (const std::size_t label : labels) touch(label);
  }

  void after_operator(std::span<const std::size_t> labels) noexcept override {
    const std::lock_guard lock(mutex);
    for (const std::size_t label : labels)
      if (is_full(label)) --pins[unit_of(label)];
  }

  void touch(std::size_t label) noexcept {
    const std::size_t unit = unit_of(label);
    try {
      if (is_full(label))
        run(schedule.touch(unit, [this](std::size_t other) { return pins[other] > 0; }));
      else if (pins[unit] == 0)
        free(unit);  // the optimizer is about to change the shard
    } catch (const std::exception& error) {
      // LibTorch would swallow an error here; this way the operator's kernel throws it.
      failed = true;
      for (auto& each : units)
        each.fail(
            "rank " + std::to_string(group.rank()) + ": parameters " + units[unit].name() +
            " could not be gathered; all ranks must use the parameters in the same order: " + error.what());
    }
  }

  void run(const std::vector<GatherSchedule::Action>& actions) {
    for (const auto& action : actions) {
      FlatParameter& unit = units[action.unit];
      switch (action.kind) {
        case GatherSchedule::Action::Kind::kFree:
          if (pins[action.unit] == 0) unit.free();
          break;
        case GatherSchedule::Action::Kind::kFetch:
          unit.start_gather();
          break;
        case GatherSchedule::Action::Kind::kUse:
          unit.start_gather();
          unit.finish_gather();
          break;
      }
    }
  }

  void free(std::size_t unit, bool keep = false) {
    units[unit].free(keep);
    schedule.freed(unit);
  }

  void gradient_arrived(std::size_t unit, std::size_t parameter) {
    const std::lock_guard lock(mutex);
    const Unobserved unobserved;
    const int backward = torch::autograd::get_current_graph_task_id();
    if (open_backwards.insert(backward).second)
      torch::autograd::Engine::get_default_engine().queue_callback(
          [this, backward] { backward_done(backward); });
    if (units[unit].take_gradient(parameter) && synchronize) reduce(unit);
  }

  void reduce(std::size_t unit) {
    if (pins[unit] == 0) free(unit);
    finish_reduce();  // two flat gradients at a time, not more
    units[unit].start_reduce();
    reducing = unit;
  }

  void finish_reduce() {
    if (reducing) units[*std::exchange(reducing, std::nullopt)].finish_reduce();
  }

  void backward_done(int backward) {
    const std::lock_guard lock(mutex);
    const Unobserved unobserved;
    for (std::size_t unit = units.size(); unit-- > 0;) {
      if (synchronize && units[unit].has_gradients()) reduce(unit);  // some of its parameters were not used
      units[unit].end_backward();
    }
    finish_reduce();
    free_all();
    open_backwards.erase(backward);
  }

  void free_all() {
    for (std::size_t unit = 0; unit < units.size(); ++unit)
      if (pins[unit] == 0) free(unit);
  }

  void before_forward() {
    const std::lock_guard lock(mutex);
    const bool training = torch::GradMode::is_enabled();
    const Unobserved unobserved;
    if (!open_backwards.empty()) {  // the last one threw
      if (reducing) units[*std::exchange(reducing, std::nullopt)].abandon_reduce();
      for (auto& unit : units) unit.drop_gradients();
      open_backwards.clear();
    }
    if (group.size() > 1) run(schedule.begin_step(training));
    if (synchronize && options.broadcast_buffers) synchronize_buffers();
  }

  void synchronize_buffers() {
    if (group.size() > 1) broadcast_from_rank_0(group, buffers);
  }

  const ProcessGroup group;
  std::vector<torch::Tensor> buffers;
  Options options;
  std::vector<FlatParameter> units;
  std::vector<std::vector<std::string>> names;  ///< of each unit's parameters
  std::mutex mutex;                             ///< autograd calls from its own threads; guards what follows
  GatherSchedule schedule;
  std::vector<int> pins;  ///< running operators that use the unit, and FullParameters
  std::set<int> open_backwards;
  std::optional<std::size_t> reducing;
  bool synchronize = true;
  bool failed = false;
  int full_scopes = 0;  ///< one rank alone may use parameters in them: they must not change the schedule
};

}  // namespace ddprun::ddp
