#include <ddprun/ddp/distributed_data_parallel.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include <torch/nn/module.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/distributed/c10d/debug.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <ddprun/common/logging.h>
#include <ddprun/ddp/model_tensors.h>
#include <ddprun/flight/flight_analysis.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/rounds.h>

namespace ddprun::ddp {
namespace {

/// Size limits of buckets, in bytes.
struct BucketLimits {
  std::int64_t first, cap;           ///< of the buckets made after the first backward
  std::vector<std::size_t> initial;  ///< of those before, in turn; the last for all further ones
};

constexpr std::int64_t kDefaultFirstBucketBytes = 1 << 20;
constexpr int kSampleRate = 10;  // a step in this many is timed

/// As chosen by Python's DistributedDataParallel. Where buckets are rebuilt after the first backward, in the
/// order in which gradients arrive, there is only one before.
BucketLimits bucket_limits(const DistributedDataParallel::Options& options) {
  const auto& list = options.bucket_bytes_list;
  auto sizes = list;
  sizes.insert(sizes.end(), {options.bucket_bytes, options.first_bucket_bytes.value_or(1)});
  if (const auto least = *std::ranges::min_element(sizes); least < 1)
    throw std::invalid_argument("DistributedDataParallel: expected buckets of at least 1 byte, got " +
                                std::to_string(least));
  BucketLimits limits{};
  limits.cap = list.empty() ? options.bucket_bytes : *std::ranges::max_element(list);
  const bool is_default = list.empty() && limits.cap == DistributedDataParallel::Options{}.bucket_bytes;
  limits.first = is_default ? kDefaultFirstBucketBytes : limits.cap;
  if (list.empty()) limits.first = options.first_bucket_bytes.value_or(limits.first);
  if (!list.empty())
    limits.initial.assign(list.begin(), list.end());
  else if (options.static_graph || !options.find_unused_parameters)
    limits.initial = {std::numeric_limits<std::size_t>::max() >> 1};
  else
    limits.initial = {static_cast<std::size_t>(limits.first), static_cast<std::size_t>(limits.cap)};
  return limits;
}

/// An element-wise sum over all ranks that runs in the background. Every rank passes the same number of
/// values; they travel as doubles on the device.
class PendingSum {
 public:
  PendingSum(const ProcessGroup& group, c10::Device device, const std::vector<double>& values)
      : values_{on_device(values, device)}, work_(group.handle()->allreduce(values_)) {}

  /// On the device; the host need not wait for it.
  at::Tensor sum() const {
    work_->wait();
    return values_[0];
  }
  std::vector<double> wait() const {
    const auto values = sum().cpu();
    return {values.data_ptr<double>(), values.data_ptr<double>() + values.numel()};
  }
  const c10::intrusive_ptr<c10d::Work>& work() const { return work_; }

 private:
  /// Without a copy from the CPU, which would wait for the device.
  static at::Tensor on_device(const std::vector<double>& values, c10::Device device) {
    std::vector<at::Tensor> each;
    for (const double value : values)
      each.push_back(torch::full({1}, value, torch::dtype(torch::kFloat64).device(device)));
    return torch::cat(each);
  }

  std::vector<at::Tensor> values_;
  c10::intrusive_ptr<c10d::Work> work_;
};

/// A reducer created while this lives names parameters in its errors; otherwise it gives only indices.
class NamesInErrors {
 public:
  NamesInErrors() : before_(c10d::debug_level()) {
    if (before_ == c10d::DebugLevel::Off) c10d::setDebugLevel(c10d::DebugLevel::Info);
  }
  ~NamesInErrors() { c10d::setDebugLevel(before_); }

 private:
  c10d::DebugLevel before_;
};

class Reducer : public c10d::Reducer {
 public:
  using c10d::Reducer::Reducer;

  /// reset_state(), without making the buckets anew: that would wait for the device.
  void abandon_step() {
    const bool rebuilt = has_rebuilt_bucket_;
    reset_state();
    has_rebuilt_bucket_ = rebuilt;
  }
};

std::shared_ptr<Reducer> make_reducer(const std::vector<torch::Tensor>& parameters,
                                      const std::vector<std::string>& names,
                                      const std::vector<bool>& expect_sparse, const ProcessGroup& group,
                                      const DistributedDataParallel::Options& options,
                                      const BucketLimits& limits) {
  auto buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits.initial, expect_sparse));
  std::ranges::reverse(buckets);
  std::unordered_map<std::size_t, std::string> names_by_index;
  for (const auto& name : names) names_by_index.emplace(names_by_index.size(), name);
  const NamesInErrors names_in_errors;
  return std::make_shared<Reducer>(parameters, std::move(buckets), group.handle(), expect_sparse, limits.cap,
                                   options.find_unused_parameters, options.gradient_as_bucket_view,
                                   std::move(names_by_index), limits.first,
                                   options.skip_all_reduce_unused_parameters,
                                   /*use_python_reducer=*/false, options.bucket_bytes_list);
}

/// Makes a mean gradient in a bucket the parameter's own.
///
/// mean  of the parameter's shape, but laid out in memory as the parameter
void take_gradient(const at::Tensor& parameter, const at::Tensor& mean) {
  parameter.mutable_grad() =
      parameter.is_non_overlapping_and_dense()
          ? mean.as_strided(parameter.sizes(), parameter.strides(), mean.storage_offset())
          : mean;
}

}  // namespace

/// A rank alone has no reducer (ProcessGroup::communicates()).
struct DistributedDataParallel::Engine {
  Engine(const ModelTensors& model, const ProcessGroup& group, const Options& options)
      : model(model), group(group), options(options) {
    const auto limits = bucket_limits(options);
    const auto state = replicated_state(model, options.ignore);
    if (group.size() > 1 && options.init_sync) check_same_module(group, state);
    check_suitable(state);
    if (!group.communicates()) return;
    if (options.init_sync)
      broadcast_from_rank_0(group, state.tensors(/*with_buffers=*/options.broadcast_buffers));

    broadcasts_buffers = broadcasts_buffers_next = options.broadcast_buffers && !state.buffers.empty();
    for (const auto& [name, tensor] : state.parameters) {
      if (!tensor.requires_grad()) continue;
      parameters.push_back(tensor);
      names.push_back(name);
    }
    const auto expect_sparse = expect_sparse_gradients(model, parameters);
    has_sparse_gradients = std::ranges::find(expect_sparse, true) != expect_sparse.end();
    reducer = make_reducer(parameters, names, expect_sparse, group, options, limits);
    logger = std::make_shared<c10d::Logger>(reducer);
    reducer->set_logger(logger);
    if (!group.device().is_cuda()) reducer->set_ddp_runtime_logging_sample_rate(kSampleRate);
    logger->set_construction_data_and_log(model.name, {}, -1, options.broadcast_buffers,
                                          /*has_sync_bn=*/false, options.static_graph);
    seen_in_forward.resize(parameters.size());
    for (std::size_t i = 0; i < parameters.size(); ++i)
      hooks.push_back(parameters[i].register_hook([this, i](const at::Tensor&) { gradient_computed(i); }));
  }

  ~Engine() {
    for (std::size_t i = 0; i < hooks.size(); ++i) parameters[i].remove_hook(hooks[i]);
  }

  /// Runs in backward, before the parameter's gradient is accumulated; each device has a thread.
  void gradient_computed(std::size_t parameter) {
    if (reduces_at_end.exchange(false))
      torch::autograd::Engine::get_default_engine().queue_callback([this] { reducer->delay_all_reduce(); });
    const auto* only = torch::autograd::get_current_graph_task_exec_info();
    if (only != nullptr && !only->empty()) return;  // from autograd::grad(), as for gradient checkpointing
    if (std::exchange(seen_in_forward[parameter], forwards) != forwards) {
      if (++gradients == parameters.size()) LeaveAtOnce::end();
      return;
    }
    // No forward() of this led to it: the ranks would silently drift apart.
    if (std::exchange(warned, true)) return;
    log_warning(
        "DistributedDataParallel: the gradient of " + names[parameter] +
        " comes from a forward pass that the other ranks do not share: call the DistributedDataParallel, "
        "not its module");
  }

  void before_forward(bool synchronize, std::optional<std::int64_t> samples_here) {
    const bool training = torch::GradMode::is_enabled(), reduces = training && synchronize;
    forwards += training ? 1 : 0;
    gradients = 0;
    if (reduces) {
      if (options.static_graph && iterations == 0) start_static_graph();
      logger->set_runtime_stats_and_log();
      reducer->prepare_for_forward();
      ++iterations;
    }
    samples = training && samples_here ? std::optional<double>(*samples_here) : std::nullopt;
    if (join) {
      announce_step(reduces, training, samples.value_or(0));
      reducer->set_forward_pass_work_handle(active_ranks->work(), join->divide_by_initial_world_size);
    } else if (samples) {
      samples_of_all.emplace(group, device(), std::vector<double>{*samples});
    }
    if (training) rebuild_buckets();
    if (broadcasts_buffers_next) broadcast_buffers(join ? common_rank(true) : 0);
  }

  void after_forward(bool synchronize, const OutputVisitor& visit_output) {
    const bool training = torch::GradMode::is_enabled(), reduces = training && synchronize;
    broadcasts_buffers_next = reduces && broadcasts_buffers;
    if (!training) return;
    const auto scale = samples ? gradient_scale() : at::Tensor();
    const bool look_for_unused = reduces && finds_unused();
    std::vector<torch::Tensor*> outputs;
    if (look_for_unused || samples) {
      visit_output([&](torch::Tensor& tensor) {
        if (tensor.defined() && tensor.grad_fn()) outputs.push_back(&tensor);
      });
      if (outputs.empty())
        throw std::invalid_argument(
            std::string("DistributedDataParallel: ") + (samples ? "samples" : "find_unused_parameters") +
            ": expected a tensor with a gradient in the result of forward's function, "
            "got none; your own types need a visit_tensors()");
    }
    std::vector<torch::Tensor> used_by;
    if (look_for_unused)
      for (const auto* output : outputs) used_by.push_back(*output);
    // Without this call the next backward's gradients stay local, which is how no_sync() works.
    if (reduces) {
      reducer->prepare_for_backward(used_by);
      expect_buckets(*group.handle(), logger->get_bucket_sizes());
    }
    if (look_for_unused || scale.defined()) scale_gradients(outputs, scale);
  }

  /// Only right before the first forward whose gradients are reduced: until the first reduction ends, the
  /// reducer counts how often each gradient arrives, to expect as many in every step. It must not count
  /// earlier ones from no_sync().
  void start_static_graph() {
    reducer->set_static_graph();
    logger->set_static_graph();
    reduces_at_end = true;
  }

  void rebuild_buckets() { has_rebuilt_buckets |= reducer->rebuild_buckets(); }

  void begin_join(const JoinOptions& join_options) {
    if (join) throw std::invalid_argument("join: called again before the first call has ended");
    if (has_sparse_gradients || options.skip_all_reduce_unused_parameters)
      throw std::invalid_argument(
          "join: not possible with sparse gradients, nor with skip_all_reduce_unused_parameters");
    if (!reducer) return;
    join = join_options;
    logger->set_uneven_input_join();
  }

  /// False once no rank has input.
  bool shadow_step(const std::function<void()>& after_step) {
    if (!reducer) return false;
    if (options.static_graph && iterations == 0)
      throw std::invalid_argument("join: with static_graph every rank needs input for at least one step");
    if (PendingSum(group, device(), {0}).wait()[0] == 0) return false;
    const auto step = PendingSum(group, device(), {0, 0, 0}).wait();
    const bool reduces = step[0] != 0, training = step[1] != 0;
    if (join->throw_on_early_termination) throw_if_any_ended(true);
    if (training) rebuild_buckets();
    if (broadcasts_buffers_next) broadcast_buffers(common_rank(false));
    broadcasts_buffers_next = reduces && broadcasts_buffers;
    if (reduces) reduce_zeros(/*take=*/after_step != nullptr);
    if (reduces && after_step) after_step();
    return true;
  }

  void take_final_state(bool made_most_steps) {
    if (!reducer) return;
    const int source = common_rank(made_most_steps);
    torch::NoGradGuard no_grad;
    broadcast_from(group, replicated_state(model, options.ignore).tensors(options.broadcast_buffers), source);
  }

  void end_join() {
    if (!join) return;
    join.reset();
    // Divide by the number of all ranks again.
    reducer->set_forward_pass_work_handle({}, /*useStaticWorldSize=*/true);
  }

  at::Device device() const { return parameters[0].device(); }

  void announce_step(double reduces, double training, double samples_here) {
    active_ranks.emplace(group, device(), std::vector<double>{1});
    samples_of_all.emplace(group, device(), std::vector<double>{reduces, training, samples_here});
    if (join->throw_on_early_termination) throw_if_any_ended(false);
  }

  /// A scalar on the device, in double.
  at::Tensor gradient_scale() {
    const auto all = samples_of_all->sum().select(0, -1);
    if (join && !join->divide_by_initial_world_size) return *samples * active_ranks->sum().select(0, 0) / all;
    return torch::full({}, *samples * group.size(), all.options()) / all;
  }

  void broadcast_buffers(int source) {
    torch::NoGradGuard no_grad;
    broadcast_from(group, replicated_buffers(model, options.ignore), source);
  }

  void throw_if_any_ended(bool this_one) {
    const auto ended = all_gather(group, this_one ? 1.0 : 0.0);
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < ended.size(); ++rank)
      if (ended[rank] != 0) ranks.push_back(static_cast<int>(rank));
    if (!ranks.empty())
      throw UnevenInputs("no more input on " + describe_ranks(ranks) + ", while other ranks have some");
  }

  /// Takes part in the other ranks' backward.
  ///
  /// take  with the mean gradients as this rank's; parameters that no rank used have none
  void reduce_zeros(bool take) {
    std::vector<c10::intrusive_ptr<c10::ivalue::Future>> pending;
    auto buckets = reducer->get_grad_buckets(/*return_zero_tensors=*/true);
    for (auto& bucket : buckets) pending.push_back(reducer->run_comm_hook(bucket));
    for (const auto& future : pending) future->waitAndThrow();
    std::vector<torch::Tensor> used;
    if (finds_unused()) {
      used = {torch::zeros_like(reducer->get_local_used_map_on_device())};
      group.handle()->allreduce(used)->wait();
      used[0] = used[0].cpu();
    }
    if (take) {
      const auto indices = logger->get_per_bucket_variable_indices();
      for (const auto& parameter : parameters) parameter.mutable_grad().reset();
      for (std::size_t i = 0; i < buckets.size(); ++i) {
        auto mean = c10d::detail::parseCppCommHookResult(pending[i]->value());
        buckets[i].setBuffer(mean);
        const auto gradients = buckets[i].getGradients();
        for (std::size_t j = 0; j < gradients.size(); ++j)
          if (const auto index = indices[i][j];
              used.empty() || used[0][static_cast<std::int64_t>(index)].item<int>() > 0)
            take_gradient(parameters[index], gradients[j]);
      }
    }
    reducer->push_rebuilt_params_for_all_indices();
  }

  /// The highest candidate.
  int common_rank(bool candidate) const {
    return static_cast<int>(all_reduce_max(group, {candidate ? static_cast<double>(group.rank()) : -1.0})[0]);
  }
  bool finds_unused() const { return options.find_unused_parameters && !options.static_graph; }

  const ModelTensors model;
  const ProcessGroup group;
  const Options options;
  std::vector<at::Tensor> parameters;  // the reducer's
  std::vector<std::string> names;
  std::vector<unsigned> hooks;                // of the parameters
  std::vector<std::int64_t> seen_in_forward;  // by parameter: the forward that produced its last gradient
  std::int64_t forwards = 0;                  // with gradient, including those in no_sync()
  std::size_t gradients = 0;                  // computed since the last of them
  bool warned = false;
  bool has_sparse_gradients = false;

  bool has_comm_hook = false, has_run_forward = false, has_rebuilt_buckets = false;
  bool broadcasts_buffers = false, broadcasts_buffers_next = false;
  std::int64_t iterations = 0;  // the reducer's own count
  std::optional<double> samples;
  std::optional<PendingSum> samples_of_all;  // its last value; in a join others precede it
  std::optional<PendingSum> active_ranks;    // during a join
  std::optional<JoinOptions> join;

  std::shared_ptr<Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;      // refers to the reducer, so is destroyed first
  std::atomic<bool> reduces_at_end = false;  // of the next backward: the first of a static graph
};

DistributedDataParallel::DistributedDataParallel(const ModelTensors& model, const ProcessGroup& group,
                                                 const Options& options)
    : engine_(std::make_unique<Engine>(model, group, options)) {}
DistributedDataParallel::DistributedDataParallel(const ModelTensors& model, const ProcessGroup& group)
    : DistributedDataParallel(model, group, Options{}) {}
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
  if (hook == nullptr) throw std::invalid_argument("register_comm_hook: expected a hook, got nullptr");
  if (engine_->has_comm_hook) throw std::invalid_argument("register_comm_hook: there is a hook already");
  if (engine_->has_run_forward)
    throw std::invalid_argument("register_comm_hook: call it before the first forward");
  if (engine_->reducer) engine_->reducer->register_comm_hook(std::move(hook));
  engine_->has_comm_hook = true;
}

void DistributedDataParallel::before_forward(std::optional<std::int64_t> samples) {
  if (samples && *samples < 1)
    throw std::invalid_argument("DistributedDataParallel: expected at least 1 sample, got " +
                                std::to_string(*samples));
  engine_->has_run_forward |= torch::GradMode::is_enabled();
  if (engine_->reducer) engine_->before_forward(synchronize_, samples);
}

void DistributedDataParallel::after_forward(const OutputVisitor& visit_output) {
  if (engine_->reducer) engine_->after_forward(synchronize_, visit_output);
}

void DistributedDataParallel::zero_grad() {
  for (const auto& each : engine_->model.parameters()) each.tensor.mutable_grad().reset();
}

void DistributedDataParallel::abandon_step() {
  if (engine_->reducer) engine_->reducer->abandon_step();
  zero_grad();
}

void DistributedDataParallel::synchronize_buffers() {
  if (engine_->reducer) engine_->broadcast_buffers(0);
}

DistributedDataParallel::Statistics DistributedDataParallel::statistics() const {
  Statistics result;
  if (!engine_->reducer) return result;
  auto data = engine_->logger->get_ddp_logging_data();
  result.backend = data.strs_map["backend_name"];
  result.bucket_bytes = engine_->logger->get_bucket_sizes();
  for (const auto& bucket : engine_->logger->get_per_bucket_variable_indices()) {
    auto& names = result.bucket_parameters.emplace_back();
    for (const auto index : bucket) names.push_back(engine_->names[index]);
  }
  result.buckets_rebuilt = engine_->has_rebuilt_buckets;
  result.iteration = engine_->iterations;
  result.buckets_reduced = data.ints_map["num_buckets_reduced"];
  result.unused_bytes = data.ints_map["unused_parameter_size"];
  result.forward_ns = data.ints_map["avg_forward_compute_time"];
  result.backward_ns = data.ints_map["avg_backward_compute_time"];
  result.communication_ns = data.ints_map["avg_backward_comm_time"];
  result.overlap_ns = data.ints_map["avg_backward_compute_comm_overlap_time"];
  return result;
}

// Join: every collective of a rank's forward and backward has its counterpart in shadow_step(), in the same
// order: announce_step(), the buckets' new order, buffers, gradients.

Join::Join(DistributedDataParallel& ddp, const JoinOptions& options) : ddp_(ddp) {
  ddp_.engine_->begin_join(options);
}

Join::~Join() {
  if (!ended_) ddp_.engine_->end_join();
}

void Join::finish(const std::function<void()>& after_step) {
  if (ended_) throw std::invalid_argument("Join::finish: called a second time");
  constexpr int kManySteps = 1000;
  int steps = 0;
  while (ddp_.engine_->shadow_step(after_step)) {
    if (++steps == kManySteps)
      log_warning("this rank has had no input for " + std::to_string(kManySteps) +
                  " steps of the others: the inputs are divided very unevenly");
  }
  ddp_.engine_->take_final_state(/*made_most_steps=*/steps == 0);
  ddp_.engine_->end_join();
  ended_ = true;
}

}  // namespace ddprun::ddp
