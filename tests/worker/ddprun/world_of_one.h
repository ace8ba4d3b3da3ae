#pragma once

// One rank that exchanges gradients and parameters with itself (DDPRUN_WORLD_OF_ONE), over a backend that
// shows whether anything reads a result before it is there.
#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/utils/convert_parameters.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/ddp/comm_hooks.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/process_group.h>
#include <ddprun/sharding/fully_sharded.h>

namespace ddprun::test {

/// Reductions are those of two ranks with equal values: twice this rank's. On a GPU they begin late, on
/// another stream, so that whoever does not wait for them reads something else.
class LateTwin final : public c10d::Backend {
  using Started = c10::intrusive_ptr<c10d::Work>;

 public:
  /// side  of the matrices whose products delay a collective on a GPU
  LateTwin(c10::intrusive_ptr<c10d::Backend> inner, std::int64_t side)
      : Backend(0, 1), inner_(std::move(inner)), side_(side) {}
  const std::string getBackendName() const override { return inner_->getBackendName(); }

  Started allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return late(tensors[0], [&] {
      tensors[0].mul_(2);
      return inner_->allreduce(tensors, options);
    });
  }
  Started _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return late(input, [&] { return inner_->_allgather_base(output, input, options); });
  }
  Started _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return late(input, [&] {
      input.mul_(2);
      return inner_->_reduce_scatter_base(output, input, options);
    });
  }
  Started broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return inner_->broadcast(tensors, options);
  }

 private:
  template <typename Start>
  Started late(const at::Tensor& of, Start start) {
    const at::NoGradGuard no_grad;
    const auto device = of.device();
    if (device.is_cpu()) return start();
    const c10::impl::VirtualGuardImpl gpu(device.type());
    const auto other = gpu.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
    c10::Event ready(device.type());
    ready.record(gpu.getStream(device));
    ready.block(other);
    const c10::StreamGuard on_other(other);
    auto product = at::ones({side_, side_}, of.options().dtype(at::kFloat));
    for (int i = 0; i < 10; ++i) product = product.mm(product).div_(static_cast<double>(side_));
    return start();
  }

  const c10::intrusive_ptr<c10d::Backend> inner_;
  const std::int64_t side_;
};

/// The weights after four steps, on the CPU.
///
/// group  of one rank; null: plain training
/// kind   "ddp", "powersgd" or "fsdp"
inline at::Tensor weights_of_one(const ddp::ProcessGroup* group, const std::string& kind, double lr,
                                 std::int64_t side = 0) {
  if (group != nullptr) {
    ::setenv("DDPRUN_WORLD_OF_ONE", "1", 1);
    const auto type = group->device().type();
    group->handle()->setBackend(type, c10d::ProcessGroup::BackendType::CUSTOM,
                                c10::intrusive_ptr<c10d::Backend>(
                                    c10::make_intrusive<LateTwin>(group->handle()->getBackend(type), side)));
  }
  torch::manual_seed(5);
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::Tanh(), torch::nn::Linear(16, 16),
                              torch::nn::Tanh(), torch::nn::Linear(16, 4));
  const auto input = torch::randn({4, 12, 8});
  const auto device = group == nullptr ? at::Device(at::kCPU) : group->device();
  model->to(device);
  std::optional<ddp::DistributedDataParallel> replicated;
  std::optional<ddp::FullyShardedDataParallel> sharded;
  if (group != nullptr && kind == "fsdp")
    sharded.emplace(*model, *group, ddp::FullyShardedDataParallel::Options{.unit_bytes = 1});
  if (group != nullptr && kind != "fsdp")
    replicated.emplace(*model, *group, ddp::DistributedDataParallel::Options{.bucket_bytes = 256});
  if (replicated && kind == "powersgd")
    replicated->register_comm_hook(ddp::powersgd_hook(
        std::make_shared<ddp::PowerSgd>(*group, ddp::PowerSgd::Options{.start_iteration = 0})));
  torch::optim::SGD optimizer(sharded ? sharded->shards() : model->parameters(), lr);
  for (int step = 0; step < 4; ++step) {
    const auto loss = [&] { return model->forward(input[step].to(device)).square().mean(); };
    optimizer.zero_grad();
    (sharded ? sharded->forward(loss) : replicated ? replicated->forward(loss) : loss()).backward();
    optimizer.step();
  }
  const auto weights = [&] {
    return torch::nn::utils::parameters_to_vector(model->parameters()).detach().cpu();
  };
  if (!sharded) return weights();
  const auto whole = sharded->full_parameters();
  return weights();
}

/// On a GPU, every kind's reductions are used only once they are there.
inline void check_world_of_one(const ddp::ProcessGroup& group, std::int64_t side, const std::string& kind) {
  at::Tensor expected;
  if (kind == "powersgd") {
    auto alone = WorkerEnv{};
    auto cpu = ddp::ProcessGroup::connect(alone, {});
    expected = weights_of_one(&cpu, kind, 0.05);
    cpu.close();
  } else {
    expected = weights_of_one(nullptr, kind, 0.1);
  }
  const auto got = weights_of_one(&group, kind, 0.05, side);
  if (!at::allclose(got, expected, 1e-4, 1e-5))
    throw std::runtime_error(kind + ": weights differ by " +
                             std::to_string((got - expected).abs().max().item<double>()));
}

}  // namespace ddprun::test
