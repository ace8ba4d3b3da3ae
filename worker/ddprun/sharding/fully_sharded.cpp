#include <ddprun/sharding/fully_sharded.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/group/collectives.h>
#include <ddprun/sharding/gather_schedule.h>
#include <ddprun/sharding/shard_units.h>

namespace ddprun::ddp {
namespace {

/// For work on the units within operators and backward: hidden from autograd and from watch_storage().
struct Unobserved {
  at::DisableRecordFunctionGuard no_record;
  torch::NoGradGuard no_grad;
};

// The label of a watched storage: 2 * unit for a unit's full tensor, 2 * unit + 1 for this rank's shard of
// it.
std::size_t unit_of(std::size_t label) { return label / 2; }
bool is_full(std::size_t label) { return label % 2 == 0; }

}  // namespace

struct FullyShardedDataParallel::Engine final : OperatorListener {
  Engine(torch::nn::Module& module, const ProcessGroup& group, const Options& options)
      : group(group), buffers(module.buffers()), options(options), schedule(options.prefetch) {
    const Unobserved unobserved;
    // The units keep a pointer to this copy, not to the caller's group.
    units = make_units(module, this->group, options);
    pins.assign(units.size(), 0);
    synchronize_buffers();
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      set_hooks(unit, [&](std::size_t parameter) { return new Hook(*this, unit, parameter); });
      if (!units[unit].is_sharded()) continue;
      watch_storage(units[unit].storage(), *this, 2 * unit);
      watch_storage(units[unit].shard().storage().unsafeGetStorageImpl(), *this, 2 * unit + 1);
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

  /// Runs when a parameter has received its gradient.
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
      // LibTorch would swallow an error here, so make the operator's kernel throw it.
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
    finish_reduce();  // at most two flat gradients at a time
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
      if (synchronize && units[unit].has_gradients()) reduce(unit);  // some of its parameters were unused
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
    if (group.communicates()) run(schedule.begin_step(training));
    if (synchronize && options.broadcast_buffers) synchronize_buffers();
  }

  void synchronize_buffers() {
    if (group.size() > 1) broadcast_from_rank_0(group, buffers);
  }

  const ProcessGroup group;
  std::vector<torch::Tensor> buffers;
  Options options;
  std::vector<FlatParameter> units;
  std::mutex mutex;  ///< guards what follows against autograd's threads
  GatherSchedule schedule;
  std::vector<int> pins;  ///< running operators that use the unit, and full_parameters()
  std::set<int> open_backwards;
  std::optional<std::size_t> reducing;
  bool synchronize = true;
  bool failed = false;
  int full_scopes = 0;  ///< within them a single rank may use parameters, without changing the schedule
};

FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group,
                                                   const Options& options)
    : engine_(std::make_unique<Engine>(module, group, options)) {}
FullyShardedDataParallel::FullyShardedDataParallel(torch::nn::Module& module, const ProcessGroup& group)
    : FullyShardedDataParallel(module, group, Options{}) {}
FullyShardedDataParallel::FullyShardedDataParallel(FullyShardedDataParallel&&) noexcept = default;
FullyShardedDataParallel::~FullyShardedDataParallel() = default;

void FullyShardedDataParallel::before_forward() { engine_->before_forward(); }

void FullyShardedDataParallel::after_forward() {
  if (torch::GradMode::is_enabled()) return;
  const std::lock_guard lock(engine_->mutex);
  const Unobserved unobserved;
  engine_->free_all();
}

std::optional<at::ScalarType> FullyShardedDataParallel::output_dtype() const {
  return engine_->options.mixed_precision.output_dtype;
}

std::vector<at::Tensor> FullyShardedDataParallel::shards() const {
  std::vector<at::Tensor> result;
  for (const auto& unit : engine_->units)
    if (unit.shard().requires_grad()) result.push_back(unit.shard());
  return result;
}

at::Tensor FullyShardedDataParallel::clip_grad_norm(double max_norm) {
  const torch::NoGradGuard no_grad;
  const auto& group = engine_->group;
  std::vector<at::Tensor> gradients;
  for (const auto& shard : shards())
    if (shard.grad().defined()) gradients.push_back(shard.grad());
  std::vector<at::Tensor> squares = {at::zeros({}, at::dtype(at::kDouble).device(group.device()))};
  for (const auto& gradient : gradients)
    squares[0].add_(at::linalg_vector_norm(gradient).to(group.device(), at::kDouble).square());
  if (group.size() > 1) group.handle()->allreduce(squares)->wait();
  const auto norm = squares[0].sqrt();
  const auto scale = (max_norm / (norm + 1e-6)).clamp_max(1);  // NaN stays NaN, and shows
  for (auto& gradient : gradients) gradient.mul_(scale.to(gradient.device()));
  return norm;
}

bool FullyShardedDataParallel::set_synchronize(bool synchronize) {
  return std::exchange(engine_->synchronize, synchronize);
}

void FullyShardedDataParallel::gather_all() {
  const std::lock_guard lock(engine_->mutex);
  const Unobserved unobserved;
  ++engine_->full_scopes;
  for (std::size_t unit = 0; unit < engine_->units.size(); ++unit) {
    engine_->units[unit].gather_whole();
    ++engine_->pins[unit];
  }
}

void FullyShardedDataParallel::release_all() {
  const std::lock_guard lock(engine_->mutex);
  const Unobserved unobserved;
  --engine_->full_scopes;
  for (std::size_t unit = 0; unit < engine_->units.size(); ++unit)
    if (--engine_->pins[unit] == 0) engine_->free(unit, /*keep=*/true);
}

std::map<std::string, at::Tensor> FullyShardedDataParallel::consolidate(
    const std::vector<at::Tensor>& per_shard) const {
  const torch::NoGradGuard no_grad;
  if (const auto count = shards().size(); per_shard.size() != count)
    throw std::invalid_argument("consolidate: expected a tensor for each of " + std::to_string(count) +
                                " shards, got " + std::to_string(per_shard.size()));
  std::map<std::string, at::Tensor> result;
  std::size_t next = 0;
  for (const auto& unit : engine_->units) {
    if (!unit.shard().requires_grad()) continue;
    const at::Tensor& shard = per_shard[next++];
    if (shard.defined()) result.merge(unit.gather(shard));
  }
  return result;
}

std::vector<at::Tensor> FullyShardedDataParallel::share_out(
    const std::map<std::string, at::Tensor>& by_name) const {
  const torch::NoGradGuard no_grad;
  std::vector<at::Tensor> result;
  for (const auto& unit : engine_->units)
    if (unit.shard().requires_grad()) result.push_back(unit.shard_of(by_name));
  return result;
}

std::vector<FullyShardedDataParallel::Unit> FullyShardedDataParallel::units() const {
  std::vector<Unit> result;
  for (const auto& unit : engine_->units) result.push_back({unit.places(), unit.shard()});
  return result;
}

void FullyShardedDataParallel::synchronize_buffers() {
  const torch::NoGradGuard no_grad;
  engine_->synchronize_buffers();
}

}  // namespace ddprun::ddp
