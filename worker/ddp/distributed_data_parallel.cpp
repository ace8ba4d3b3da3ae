#include "worker/ddp/distributed_data_parallel.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include <torch/nn/module.h>

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "worker/ddp/collectives.h"
#include "worker/ddp/module_check.h"

namespace ddprun::ddp {
namespace {

struct Trainable {
  std::vector<torch::Tensor> parameters;
  std::unordered_map<std::size_t, std::string> names;
};

Trainable trainable_parameters(const torch::nn::Module& module) {
  Trainable result;
  for (const auto& item : module.named_parameters()) {
    if (!item.value().requires_grad()) continue;
    result.names[result.parameters.size()] = item.key();
    result.parameters.push_back(item.value());
  }
  if (result.parameters.empty())
    throw std::invalid_argument(
        "DistributedDataParallel: expected a module with a parameter that requires a gradient");
  return result;
}

std::shared_ptr<c10d::Reducer> make_reducer(const Trainable& trainable, const ProcessGroup& group,
                                            const DistributedDataParallel::Options& options) {
  const std::vector<bool> expect_sparse(trainable.parameters.size(), false);
  // One bucket for the first step: its gradients' order of arrival gives the buckets of the later ones.
  auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(
      trainable.parameters, {std::numeric_limits<std::size_t>::max() >> 1}, expect_sparse);
  std::reverse(buckets.begin(), buckets.end());
  return std::make_shared<c10d::Reducer>(
      trainable.parameters, std::move(buckets), group.handle(), expect_sparse, options.bucket_bytes,
      /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, trainable.names,
      options.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
}

}  // namespace

struct DistributedDataParallel::Engine {
  Engine(torch::nn::Module& module, const ProcessGroup& group, const Options& options)
      : group(group),
        buffers(module.buffers()),
        broadcast_buffers(options.broadcast_buffers && !buffers.empty()) {
    const auto trainable = trainable_parameters(module);
    check_same_module(group, module);
    torch::NoGradGuard no_grad;
    auto state = module.parameters();
    for (auto& tensor : state) tensor = tensor.detach();
    state.insert(state.end(), buffers.begin(), buffers.end());
    broadcast_from_rank_0(group, state);

    reducer = make_reducer(trainable, group, options);
    logger = std::make_shared<c10d::Logger>(reducer);
    reducer->set_logger(logger);
    logger->set_construction_data_and_log(module.name(), {}, -1, options.broadcast_buffers,
                                          /*has_sync_bn=*/false, /*static_graph=*/false);
  }

  ProcessGroup group;
  std::vector<torch::Tensor> buffers;
  bool broadcast_buffers;
  bool has_comm_hook = false;
  bool has_run_forward = false;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  // holds the reducer; goes first
};

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, const ProcessGroup& group,
                                                 const Options& options)
    : engine_(std::make_unique<Engine>(module, group, options)) {}
DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, const ProcessGroup& group)
    : DistributedDataParallel(module, group, Options{}) {}
DistributedDataParallel::DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::register_comm_hook(std::unique_ptr<c10d::CommHookInterface> hook) {
  if (hook == nullptr) throw std::invalid_argument("register_comm_hook: expected a hook, got nullptr");
  if (engine_->has_comm_hook)
    throw std::invalid_argument("register_comm_hook: expected to be called once, there is a hook already");
  if (engine_->has_run_forward)
    throw std::invalid_argument("register_comm_hook: expected to be called before the first forward");
  engine_->reducer->register_comm_hook(std::move(hook));
  engine_->has_comm_hook = true;
}

void DistributedDataParallel::before_forward() {
  const bool training = torch::GradMode::is_enabled();
  engine_->has_run_forward |= training;
  if (training && synchronize_) {
    engine_->logger->set_runtime_stats_and_log();
    engine_->reducer->prepare_for_forward();
  }
  if (training && engine_->reducer->should_rebuild_buckets()) engine_->reducer->rebuild_buckets();
  if (synchronize_ && engine_->broadcast_buffers) synchronize_buffers();
}

void DistributedDataParallel::after_forward() {
  // Without this call the gradients of the coming backward stay local: that is all of no_sync.
  if (torch::GradMode::is_enabled() && synchronize_) engine_->reducer->prepare_for_backward({});
}

void DistributedDataParallel::synchronize_buffers() {
  torch::NoGradGuard no_grad;
  broadcast_from_rank_0(engine_->group, engine_->buffers);
}

DistributedDataParallel::Statistics DistributedDataParallel::statistics() const {
  const auto data = engine_->logger->get_ddp_logging_data();
  const auto integer = [&](const char* key) {
    const auto found = data.ints_map.find(key);
    return found == data.ints_map.end() ? 0 : found->second;
  };
  Statistics result;
  result.bucket_bytes = engine_->logger->get_bucket_sizes();
  result.buckets_rebuilt = !engine_->reducer->should_rebuild_buckets();
  result.backward_ns = integer("avg_backward_compute_time");
  result.communication_ns = integer("avg_backward_comm_time");
  result.overlap_ns = integer("avg_backward_compute_comm_overlap_time");
  return result;
}

}  // namespace ddprun::ddp
