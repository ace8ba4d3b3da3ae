#include <ddprun/train/model/parallel_model.h>

#include <ATen/core/Dict.h>
#include <ATen/core/jit_type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/ddp/checks.h>
#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/model_tensors.h>
#include <ddprun/ddp/sync_batch_norm.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/rounds.h>
#include <ddprun/group/step_graph.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/sharding/zero_optimizer.h>
#include <ddprun/train/model/sharded_state.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/optimizer_state.h>
#include <ddprun/train/state/shard_index.h>
#include <ddprun/train/state/state_dict_file.h>

namespace ddprun::train {
namespace {

constexpr const char* kPowerSgd = "PowerSGD";
constexpr const char* kStepsMeant = "steps_per_epoch";  // in the schedule's state; not in Python's

void synchronise_batch_norm(const Run& run) {
  if (ddp::has_batch_norm(*run.task.module))
    ddp::convert_sync_batchnorm(*run.task.module, run.group);
  else if (run.on_rank_0())
    log_warning("--sync-bn: the model has no BatchNorm, so there is nothing to synchronise");
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer_over(
    std::vector<torch::optim::OptimizerParamGroup> groups, const OptimizerSettings& settings,
    const ddp::ProcessGroup& group, bool zero1) {
  if (!zero1 || group.size() == 1) return make_optimizer(settings, groups);
  return std::make_unique<ddp::ZeroOptimizer>(
      std::move(groups),
      [settings](std::vector<torch::optim::OptimizerParamGroup> part) {
        return make_optimizer(settings, part);
      },
      group);
}

double lr_of(const OptimOptions& options, std::int64_t ranks) {
  return options.scale_lr ? scaled_lr(options.optimizer.lr, static_cast<int>(ranks)) : options.optimizer.lr;
}

ddp::DistributedDataParallel::Options ddp_options(const Run& run) {
  const auto& parallel = run.options.parallel;
  ddp::DistributedDataParallel::Options options;
  options.bucket_bytes = parallel.bucket_mb << 20;
  options.find_unused_parameters = parallel.find_unused;
  options.static_graph = parallel.static_graph;
  options.gradient_as_bucket_view = parallel.bucket_view;
  options.init_sync = !run.in_memory.state;  // every rank will load it
  return options;
}

/// Except for tensors without memory so far.
void move_to(at::Device device, torch::nn::Module& module) {
  auto tensors = module.parameters();
  for (const auto& buffer : module.buffers()) tensors.push_back(buffer);
  for (auto& tensor : tensors)
    if (!tensor.is_meta()) tensor.set_data(tensor.to(device));
}

Ema::NamedTensors to_vector(const torch::OrderedDict<std::string, torch::Tensor>& tensors) {
  Ema::NamedTensors result;
  for (const auto& item : tensors) result.emplace_back(item.key(), item.value());
  return result;
}

}  // namespace

StateDict named_tensors(const c10::IValue& dict, const std::string& prefix) {
  StateDict named;
  const DictReader reader(dict, "the weights");
  for (const auto& name : reader.names())
    if (name.starts_with(prefix)) named.emplace_back(name.substr(prefix.size()), reader.tensor(name));
  return named;
}

StateDict weights_to_evaluate(const TrainingState& state) {
  return state.ema.isGenericDict() ? named_tensors(state.ema, "module.") : named_tensors(state.model);
}

bool ParallelModel::has_shards() const { return fsdp_ && run_.group.communicates(); }

ddp::CommHook ParallelModel::make_hook() {
  const auto& parallel = run_.options.parallel;
  if (parallel.comm_hook != "powersgd") return ddp::make_comm_hook(parallel.comm_hook, run_.group);
  power_sgd_ = std::make_shared<ddp::PowerSgd>(
      run_.group, ddp::PowerSgd::Options{.start_iteration = parallel.powersgd_start});
  return ddp::powersgd_hook(power_sgd_);
}

/// Before the optimizer, which updates what ranks then have.
void ParallelModel::share_module() {
  auto& module = *run_.task.module;
  move_to(run_.group.device(), module);
  set_matmul_precision(run_.options.precision.matmul, run_.options.precision.cudnn_benchmark);
  if (run_.options.precision.channels_last) to_channels_last(module);
  if (run_.options.parallel.sync_batch_norm) synchronise_batch_norm(run_);
  if (run_.options.parallel.fsdp) {
    fsdp_.emplace(module, run_.group, sharding_options(run_));
    return;
  }
  auto hook = make_hook();
  ddp_.emplace(module, run_.group, ddp_options(run_));
  if (run_.in_memory.state) ddp::check_same_module(run_.group, ddp::replicated_state(module, {}));
  if (hook) ddp_->register_comm_hook(std::move(hook));
}

/// What the optimizer updates; shared parameters only once, as in Python.
std::vector<torch::Tensor> ParallelModel::parameters() const {
  if (fsdp_) return fsdp_->shards();
  std::vector<torch::Tensor> parameters;
  for (const auto& each : ddp::replicated_state(*run_.task.module, {}).parameters)
    parameters.push_back(each.tensor);
  return parameters;
}

template <typename Use>
void ParallelModel::with_whole_parameters(const Use& use) {
  if (!fsdp_) return use();
  const auto whole = fsdp_->full_parameters();
  use();
}

Optimization ParallelModel::make_optimization() {
  const auto& options = run_.options;
  auto settings = options.optim.optimizer;
  settings.lr = lr_of(options.optim, run_.group.size());
  Optimization::Parts parts;
  auto groups = run_.task.parameter_groups;
  if (groups.empty() && options.optim.grouping.any())
    groups = group_parameters(*run_.task.module, options.optim.grouping);
  parts.optimizer =
      make_optimizer_over(groups.empty() ? std::vector{torch::optim::OptimizerParamGroup(parameters())}
                                         : optimizer_groups(*run_.task.module, groups, settings),
                          settings, run_.group, options.parallel.zero1);
  for (const auto& group : parts.optimizer->param_groups())
    lr_factors_.push_back(group.options().get_lr() / settings.lr);
  if (options.optim.ema > 0)
    parts.ema = std::make_unique<Ema>(
        has_shards() ? named_shards(*fsdp_) : to_vector(run_.task.module->named_parameters()),
        to_vector(run_.task.module->named_buffers()), Ema::Options{.decay = options.optim.ema});
  if (fsdp_ && run_.group.size() > 1)
    parts.sum_over_ranks = [this](at::Tensor& value) {
      std::vector<at::Tensor> sum = {value.to(at::kDouble)};
      run_.group.handle()->allreduce(sum)->wait();
      value.copy_(sum[0]);
    };
  return Optimization(std::move(parts), options.optim, options.precision.precision, run_.group.device(),
                      schedule());
}

LrScheduleOptions ParallelModel::schedule() const {
  const auto& options = run_.options.optim;
  auto length = run_.length();
  length.steps_meant = steps_meant_;
  auto schedule = schedule_options(options, lr_of(options, run_.group.size()), length, run_.mode);
  schedule.one_cycle.lr_factors = lr_factors_;
  schedule.plateau.monitor = run_.monitor;
  return schedule;
}

std::unique_ptr<ddp::StepGraph> ParallelModel::make_graph() const {
  const bool required = run_.options.cuda_graph == GraphChoice::kOn;
  if (run_.options.cuda_graph == GraphChoice::kOff) return nullptr;
  const auto obstacle = graph_obstacle(run_);
  if (obstacle.empty()) return std::make_unique<ddp::StepGraph>(run_.group, required);
  if (required) throw UsageError("--cuda-graph=on: not possible with " + obstacle);
  if (run_.on_rank_0()) log_info("--cuda-graph=auto: no graph with " + obstacle);
  return nullptr;
}

ParallelModel::ParallelModel(const Run& run)
    : run_(run),
      graph_(make_graph()),
      steps_meant_(std::max<std::int64_t>(1, run.length().steps_per_epoch)),
      optimization_((share_module(), make_optimization())) {
  if (run.options.parallel.nan_check)
    nan_check_ = std::make_unique<ddp::NanCheck>(*run.task.module, run.group);
  if (graph_) optimization_.keep_on_device();
}

ParallelModel::~ParallelModel() {
  if (run_.options.parallel.sync_batch_norm) ddp::forget_group(*run_.task.module);
  if (run_.options.memory == nullptr || !has_shards()) return;
  fsdp_.reset();
  forget_parameters(*run_.task.module);  // if another rank is lost, the next round gives them memory again
}

data::Batch ParallelModel::to_device(const data::Batch& batch) const {
  auto here = batch.mapped(
      [&](const at::Tensor& tensor) { return tensor.to(run_.group.device(), /*non_blocking=*/true); });
  if (run_.options.precision.channels_last) here.input = channels_last(here.input);
  return here;
}

ParallelModel::Pass ParallelModel::train(const data::Batch& batch, bool last) {
  const auto here = to_device(batch);
  const auto step = [&](const data::Batch& data) {
    auto pass = forward_backward(data, last);
    if (last) optimization_.update();
    return pass;
  };
  const auto reset = [&] {
    if (ddp_) ddp_->abandon_step();
    optimization_.abandon_update();
  };
  optimization_.bring_rates();
  auto pass = graph_ ? graph_->run(
                           here.tensors(), [&](const auto& inputs) { return step(here.with(inputs)); }, reset)
                     : step(here);
  if (last) optimization_.after_update();
  return pass;
}

ParallelModel::Pass ParallelModel::forward_backward(const data::Batch& here, bool last) {
  const auto samples = run_.options.parallel.join ? std::optional(here.size()) : std::nullopt;
  Pass pass;
  const auto both = [&] {
    const ddp::LeaveAtOnce at_once;
    {
      const AutocastScope precision(run_.options.precision.precision, run_.group.device().type());
      const auto compute = [&] { return run_.task.compute_loss(here); };
      pass.result = fsdp_ ? fsdp_->forward(compute) : ddp_->forward(compute, samples);
    }
    const auto mean = pass.result.losses.mean();
    const auto batches = static_cast<double>(run_.options.accumulate);
    optimization_.scaled(batches > 1 ? mean / batches : mean).backward();
    pass.loss = mean.detach();
  };
  if (last) {
    both();
  } else if (fsdp_) {
    const auto no_sync = fsdp_->no_sync();
    both();
  } else {
    const auto no_sync = ddp_->no_sync();
    both();
  }
  if (last && nan_check_) nan_check_->check();
  return pass;
}

void ParallelModel::zero_grad() { ddp_ ? ddp_->zero_grad() : optimization_.optimizer().zero_grad(); }

BatchResult ParallelModel::evaluate(const data::Batch& batch) {
  const torch::NoGradGuard no_grad;
  const AutocastScope precision(run_.options.precision.precision, run_.group.device().type());
  const auto here = to_device(batch);
  const auto compute = [&] { return run_.task.compute_loss(here); };
  return fsdp_ ? fsdp_->forward(compute) : compute();
}

std::optional<ddp::Join> ParallelModel::join() {
  if (!run_.options.parallel.join) return std::nullopt;
  return std::optional<ddp::Join>(std::in_place, *ddp_, ddp::JoinOptions{});
}

void ParallelModel::check_replicas(std::int64_t step) {
  optimization_.settle();
  ddp::check_replicas(run_.group, replicated_tensors(*run_.task.module, optimization_.optimizer()), step);
}

void ParallelModel::synchronize_buffers() {
  fsdp_ ? fsdp_->synchronize_buffers() : ddp_->synchronize_buffers();
}

std::optional<Shards> ParallelModel::save(TrainingState& state) {
  auto shards = save_own(state, run_.on_rank_0());
  if (power_sgd_) state.callbacks[kPowerSgd] = powersgd_state(*power_sgd_, *run_.task.module, run_.group);
  return shards;
}

std::optional<Shards> ParallelModel::save_own(TrainingState& state, bool here) {
  optimization_.settle();
  std::optional<Shards> shards;
  auto& module = *run_.task.module;
  auto& optimizer = optimization_.optimizer();
  const auto* ema = optimization_.ema();
  if (has_shards()) {
    shards = save_shards(state, *fsdp_, module, optimizer, ema);
  } else {
    if (here || fsdp_) state.model = state_dict(module);
    if (fsdp_)
      state.optimizer = sharded_optimizer_state_dict(optimizer, *fsdp_, module, 0);
    else if (here || run_.options.parallel.zero1)
      state.optimizer = optimizer_state_dict(optimizer);
    if (ema != nullptr) state.ema = ema->state_dict();
  }
  complete(state);
  return shards;
}

void ParallelModel::complete(TrainingState& state) {
  optimization_.complete(state.optimizer);
  state.model_config = run_.task.model_config;
  state.lr_schedule = optimization_.schedule_state();
  if (state.lr_schedule.isGenericDict()) state.lr_schedule.toGenericDict().insert(kStepsMeant, steps_meant_);
  state.scaler = optimization_.scaler_state();
}

void ParallelModel::save_part(TrainingState& state) {
  optimization_.settle();
  state.model = own_model();
  state.optimizer = optimizer_state_dict(optimization_.optimizer(), /*own=*/true);
  if (const auto* ema = optimization_.ema()) state.ema = ema->state_dict();
  if (power_sgd_)
    state.callbacks[kPowerSgd] = powersgd_state(*power_sgd_, *run_.task.module, run_.group, /*alone=*/true);
  complete(state);
}

/// The model tensors that this rank has, by name, including its own shards. Shares memory.
c10::impl::GenericDict ParallelModel::own_model() const {
  if (!fsdp_) return state_dict(*run_.task.module);
  auto own = make_state();
  for (const auto& [name, shard] : named_shards(*fsdp_)) own.insert(name, shard.detach());
  for (const auto& item : run_.task.module->named_buffers()) own.insert(item.key(), item.value());
  return own;
}

void ParallelModel::load_part(const TrainingState& state) {
  const torch::NoGradGuard no_grad;
  optimization_.settle();
  const auto kept = state.model.toGenericDict();
  for (const auto& item : own_model()) item.value().toTensor().copy_(kept.at(item.key()).toTensor());
  load_optimizer_state(optimization_.optimizer(), state.optimizer, kInMemory);
  if (auto* ema = optimization_.ema()) ema->load_state_dict(state.ema.toGenericDict());
  load_power_sgd(state, kInMemory);
  load_schedule(state, kInMemory);
}

void ParallelModel::load(const TrainingState& state, const std::filesystem::path& source) try {
  optimization_.settle();
  if (!state.shards.empty() && !has_shards()) {
    auto whole = state;
    gather_shards(whole, source, {"model", "ema", "optimizer"});
    return load(whole, source);
  }
  if (!state.shards.empty())
    load_shards(state, source, *fsdp_, *run_.task.module, run_.group.rank(), optimization_.optimizer(),
                optimization_.ema());
  else
    load_whole(state, source);
  load_schedule(state, source);
} catch (const std::invalid_argument& error) {
  throw IoError(source, error.what());
}

void ParallelModel::load_schedule(const TrainingState& state, const std::filesystem::path& source) {
  try {
    resume_schedule(state);
    optimization_.load_scaler_state(state.scaler);
  } catch (const std::invalid_argument& error) {
    throw IoError(source, error.what());
  }
}

/// The rate follows from the options and the progress; only plateau's is in the state.
void ParallelModel::resume_schedule(const TrainingState& state) {
  const auto& now = run_.options.optim;
  const auto& before = run_.options.optim_before;
  const double lr = lr_of(now, run_.group.size());
  const bool same = !before || same_schedule(*before, now);
  const double kept_rate = learning_rate();
  const double ratio = before ? lr / lr_of(*before, state.world_size) : 1;
  if (before) change_settings(optimization_.optimizer(), before->optimizer, now.optimizer);
  if (const auto& kept = state.lr_schedule;
      same && kept.isGenericDict() && kept.toGenericDict().contains(kStepsMeant))
    steps_meant_ = DictReader(kept, "the learning rate schedule").positive(kStepsMeant);
  optimization_.go_to(schedule(), run_.progress_of(state), same ? state.lr_schedule : c10::IValue(), ratio);
  const bool lasts_for_run = now.schedule == LrScheduleKind::kOneCycle ||
                             (now.schedule == LrScheduleKind::kCosine && now.t_max == 0);
  if (lasts_for_run && same && learning_rate() > 2 * ratio * kept_rate && run_.on_rank_0())
    log_info(c10::str("the learning rate goes back up, from ", kept_rate, " to ", learning_rate(),
                      ": the schedule is for the whole run, whose length has changed"));
}

void ParallelModel::load_whole(const TrainingState& state, const std::filesystem::path& source) {
  with_whole_parameters([&] { load_weights(*run_.task.module, named_tensors(state.model), source); });
  load_power_sgd(state, source);
  if (auto& optimizer = optimization_.optimizer(); fsdp_)
    load_sharded_optimizer_state(optimizer, *fsdp_, *run_.task.module, state.optimizer, source);
  else
    load_optimizer_state(optimizer, state.optimizer, source);
  auto* ema = optimization_.ema();
  if (ema == nullptr || !state.ema.isGenericDict()) return;
  has_shards() ? load_averages_of_shards(*ema, state.ema, *fsdp_)
               : ema->load_state_dict(state.ema.toGenericDict());
}

void ParallelModel::load_power_sgd(const TrainingState& state, const std::filesystem::path& source) {
  if (const auto kept = state.callbacks.find(kPowerSgd); power_sgd_ && kept != state.callbacks.end())
    load_powersgd_state(*power_sgd_, *run_.task.module, run_.group, kept->second, source);
}

c10::IValue ParallelModel::whole_weights() {
  c10::IValue weights;
  with_whole_parameters([&] {
    if (run_.on_rank_0()) weights = copied(state_dict(*run_.task.module));
  });
  return weights;
}

std::string ParallelModel::load_weights_of(const std::filesystem::path& checkpoint) {
  const c10::NoGradGuard no_grad;
  const auto problem_of = [&](const auto& read) {  // that of the first rank that has one
    std::string own;
    try {
      read();
    } catch (const IoError& error) {
      if (error.error_number != 0 && error.error_number != ENOENT) throw;  // the disk may give it back later
      own = error.what();
      if (run_.group.rank() > 0)
        own += " (on the disk of rank " + std::to_string(run_.group.rank()) + ", host " + host_name() + ")";
    }
    for (const auto& problem : ddp::all_gather(run_.group, own))
      if (!problem.empty()) return problem;
    return std::string();
  };
  std::optional<TrainingState> state;
  auto problem = problem_of([&] {
    if (run_.on_rank_0())
      state = has_shards() ? read_checkpoint(checkpoint) : read_weights_of_checkpoint(checkpoint);
  });
  if (!problem.empty()) return problem;
  if (has_shards()) {
    state = broadcast_state(run_.group, state);
    if (!state->shards.empty()) {
      std::function<void()> copy;
      problem = problem_of([&] {
        copy = read_shard_weights(*state, checkpoint, *fsdp_, *run_.task.module, run_.group.rank(),
                                  state->ema.isGenericDict() ? "ema" : "model");
      });
      if (problem.empty()) copy();
      return problem;
    }
    if (!run_.on_rank_0()) state.reset();  // of a run that was not sharded then
  }
  with_whole_parameters([&] {
    if (run_.on_rank_0()) load_weights(*run_.task.module, weights_to_evaluate(*state), checkpoint);
    auto tensors = run_.task.module->parameters();
    for (const auto& buffer : run_.task.module->buffers()) tensors.push_back(buffer);
    ddp::broadcast_from_rank_0(run_.group, tensors);
  });
  return "";
}

ddp::DistributedDataParallel::Statistics ParallelModel::statistics() const {
  return ddp_ ? ddp_->statistics() : ddp::DistributedDataParallel::Statistics();
}

}  // namespace ddprun::train
