// Tests that need an NVIDIA GPU (ctest -L gpu, scripts/gpu_check.sh); skipped without one. All that touches
// CUDA runs in forked ranks: a process that has used CUDA cannot fork, and LibTorch decides once whether it
// has CUDA.
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/device_copy.h>
#include <ddprun/data/loader.h>
#include <ddprun/ddp/distributed_data_parallel.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/spawn.h>
#include <ddprun/group/step_graph.h>
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace ddprun::ddp;
using ddprun::test::ContainsSubstring;
using ddprun::test::skip_without_a_gpu;

namespace {

const ProcessGroup::Options kOnGpu = {.timeout = std::chrono::minutes(2), .device = DeviceChoice::kCuda};

ProcessGroup::Options on_gpu(BackendChoice backend) {
  auto options = kOnGpu;
  options.backend = backend;
  return options;
}

torch::nn::Linear make_model() {
  torch::manual_seed(0);
  return torch::nn::Linear(16, 4);
}

/// Weights after three steps of SGD, each rank on its own rows, computed on the device.
torch::Tensor train(const ProcessGroup* group, at::Device device) {
  auto model = make_model();
  model->to(device);
  const int size = group == nullptr ? 1 : group->size(), rank = group == nullptr ? 0 : group->rank();
  std::optional<DistributedDataParallel> ddp;
  if (group != nullptr) ddp.emplace(*model, *group);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto generator = at::detail::createCPUGenerator(1);
  for (int step = 0; step < 3; ++step) {
    const auto all = torch::randn({8, 16}, generator);
    const auto own = all.chunk(size)[static_cast<std::size_t>(rank)].to(device);
    const auto loss = [&] { return model->forward(own).square().mean(); };
    optimizer.zero_grad();
    (ddp ? ddp->forward(loss) : loss()).backward();
    optimizer.step();
  }
  return model->weight.detach().cpu();
}

void check_close_to_cpu(const torch::Tensor& got, const torch::Tensor& expected) {
  if (!torch::allclose(got, expected, 1e-4, 1e-5))
    throw std::runtime_error("differ by " + std::to_string((got - expected).abs().max().item<double>()));
}

}  // namespace

TEST_CASE("NCCL serves a single process on one GPU", "[gpu]") {
  skip_without_a_gpu();
  spawn(1, [](const WorkerEnv& env) {
    ::setenv("TORCH_FR_BUFFER_SIZE", "100", 1);
    auto group = ProcessGroup::connect(env, on_gpu(BackendChoice::kNccl));
    ensure(group.device().is_cuda() && group.backend() == "nccl", "on the GPU");
    std::vector<at::Tensor> tensors = {torch::full({1000}, 3.0, group.device())};
    group.handle()->allreduce(tensors)->wait();
    ensure(tensors[0].eq(3).all().item<bool>(), "the sum over one rank");
    ensure(cuda_plugin().dump_nccl_trace().find("all_reduce") != std::string::npos,
           "the flight recorder has it");
    group.close();
  });
}

TEST_CASE("training in a single process on one GPU equals training on the CPU", "[gpu]") {
  skip_without_a_gpu();
  spawn(1, [](const WorkerEnv& env) {
    auto group = ProcessGroup::connect(env, on_gpu(BackendChoice::kNccl));
    check_close_to_cpu(train(&group, group.device()), train(nullptr, at::kCPU));
    group.close();
  });
}

TEST_CASE("two ranks share one GPU over Gloo, and equal one rank on the CPU", "[gpu]") {
  skip_without_a_gpu();
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  spawn(2, [](const WorkerEnv& env) {
    auto group = ProcessGroup::connect(env, kOnGpu);
    ensure(group.device().is_cuda() && group.backend() == "gloo", "Gloo, since they share the GPU");
    std::vector<at::Tensor> tensors = {torch::full({1000}, group.rank() + 1.0, group.device())};
    group.handle()->allreduce(tensors)->wait();
    ensure(tensors[0].eq(3).all().item<bool>(), "the sum over ranks");
    check_close_to_cpu(train(&group, group.device()), train(nullptr, at::kCPU));
    group.close();
  });
}

TEST_CASE("NCCL for two ranks on one GPU is refused, by rank", "[gpu]") {
  skip_without_a_gpu();
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  CHECK_THROWS_WITH(
      spawn(2, [](const WorkerEnv& env) { ProcessGroup::connect(env, on_gpu(BackendChoice::kNccl)); }),
      ContainsSubstring("--backend=nccl: expected a separate GPU for every rank, got ranks 0 and 1 on GPU "));
}

TEST_CASE("with a GPU the device chosen by itself is the GPU", "[gpu]") {
  skip_without_a_gpu();
  spawn(1, [](const WorkerEnv& env) {
    auto options = kOnGpu;
    options.device = DeviceChoice::kAuto;
    auto group = ProcessGroup::connect(env, options);
    ensure(group.device() == at::Device(at::kCUDA, 0) && group.backend() == "nccl",
           "the first GPU, over NCCL");
    group.close();
  });
}

TEST_CASE("a GPU that is asked for after the first use of autograd is refused", "[gpu]") {
  skip_without_a_gpu();
  CHECK_THROWS_WITH(spawn(1,
                          [](const WorkerEnv& env) {
                            torch::ones({1}, torch::requires_grad()).sum().backward();
                            ProcessGroup::connect(env, kOnGpu);
                          }),
                    ContainsSubstring("the CUDA plug-in was loaded too late"));
}

TEST_CASE("a loader's batches are in page-locked memory when that is asked for", "[gpu]") {
  skip_without_a_gpu();
  spawn(1, [](const WorkerEnv& env) {
    auto group = ProcessGroup::connect(env, kOnGpu);
    struct WithExtra : data::TensorDataset {
      using TensorDataset::TensorDataset;
      data::Batch get_batch(const std::vector<std::int64_t>& indices) const override {
        auto batch = TensorDataset::get_batch(indices);
        batch.extra = {torch::ones({2}), torch::ones({3}, torch::kUInt8), torch::Tensor()};
        return batch;
      }
    };
    const WithExtra set(torch::rand({10, 3}), torch::rand({10, 1}));
    for (const int threads : {0, 2}) {
      data::Loader loader(set, {.batch_size = 4, .threads = threads, .pin_memory = true});
      loader.start_epoch({9, 8, 7, 6, 5, 4});
      while (const auto batch = loader.next()) {
        ensure(batch->input.is_pinned() && batch->target.is_pinned(), "pinned");
        ensure(batch->extra.at(0).is_pinned() && batch->extra.at(1).is_pinned(), "the rest is too");
        ensure(!batch->extra.at(2).defined(), "what is undefined stays so");
      }
      data::Loader sender(
          set, {.batch_size = 4, .threads = threads, .pin_memory = true, .device = group.device()});
      sender.start_epoch({9, 8, 7, 6, 5, 4});
      while (const auto batch = sender.next()) {
        ensure(batch->input.is_cuda() && batch->extra.at(1).is_cuda(), "on the GPU");
        ensure(!batch->extra.at(2).defined(), "what is undefined stays so on the GPU");
      }
    }
    group.close();
  });
}

TEST_CASE("no thread of a loader copies on the stream on which a step is captured", "[gpu][step_graph]") {
  skip_without_a_gpu();
  spawn(1, [](const WorkerEnv& env) {
    auto group = ProcessGroup::connect(env, kOnGpu);
    const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
    const StepGraph graph(group);
    const auto captured = gpu.getStream(group.device());
    std::vector<std::thread> threads;  // more than the 32 streams that CUDA's pool gives out in turn
    std::atomic<int> same = 0;
    for (int i = 0; i < 40; ++i) {
      threads.emplace_back([&] {
        data::Loaded<std::vector<at::Tensor>> loaded{{torch::ones({8}), torch::Tensor()}};
        const auto visit = [](std::vector<at::Tensor>& batch, const auto& change) { change(batch[0]); };
        loaded.send(group.device(), /*pin=*/true, visit,
                    [&] { same += gpu.getStream(group.device()) == captured; });
      });
    }
    for (auto& thread : threads) thread.join();
    ensure(same == 0, "copies on the stream of the step graph");
    group.close();
  });
}
