// libddprun_cuda.so: host code only, no kernels.
#include <ddprun/group/cuda_backend.h>

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <utility>

#include <torch/csrc/cuda/nccl.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace ddprun::ddp {
namespace {

/// Connects now, to this device: otherwise the first collective would, and a wrong set-up fails here.
c10::intrusive_ptr<c10d::Backend> make_nccl(const NcclGroup& group) {
  c10::cuda::set_device(group.device.index());
  auto options = c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  options->timeout = group.timeout;
  options->group_name = group.name;
  options->global_ranks_in_group.assign(group.world_ranks.begin(), group.world_ranks.end());
  if (group.split_from) {
    options->split_from = c10::dynamic_intrusive_pointer_cast<c10d::ProcessGroupNCCL>(group.split_from);
    // Must be the same on all its ranks, and differ from other groups split at the same time: there are none.
    options->split_color = static_cast<int>(std::hash<std::string>()(group.name) & 0x7fffffff);
  }
  auto nccl =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(group.store, group.rank, group.size, std::move(options));
  nccl->setGroupUid(group.name);
  nccl->setBoundDeviceId(group.device);
  nccl->eagerConnectSingleDevice(group.device);
  return nccl;
}

std::string versions() {
  const auto nccl = torch::cuda::nccl::version();  // major << 32 | minor << 16 | patch
  const auto number = [](std::uint64_t value) { return std::to_string(value & 0xffff); };
  return "CUDA " + std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10) +
         ", NCCL " + number(nccl >> 32) + "." + number(nccl >> 16) + "." + number(nccl);
}

template <typename Call>
void ignoring_errors(Call call) {
  try {
    call();
  } catch (const c10::Error&) {
  }
}

/// Only this thread must not make unsafe calls meanwhile: NCCL's watchdog queries events, and loader threads
/// allocate memory.
std::function<void()> capture(c10::Device device, const std::function<void()>& work) {
  const auto pool = at::cuda::graph_pool_handle();
  const auto generator = at::cuda::detail::getDefaultCUDAGenerator(device.index()),
             before = generator.clone();
  const auto graph = std::make_shared<at::cuda::CUDAGraph>();
  c10::cuda::device_synchronize();
  bool ended = false;
  try {
    graph->capture_begin(pool, cudaStreamCaptureModeThreadLocal);
    work();
    ended = true;
    graph->capture_end();
  } catch (...) {
    // Otherwise the allocator would continue as in a capture, and the generator would refuse random numbers.
    if (!ended) ignoring_errors([&] { graph->capture_end(); });
    ignoring_errors([&] { c10::cuda::CUDACachingAllocator::endAllocateToPool(device.index(), pool); });
    at::Generator(generator).graphsafe_set_state(before);
    throw;
  }
  return [graph] { graph->replay(); };
}

const CudaPlugin kPlugin = {
    kCudaPluginBuild,
    make_nccl,
    [](c10d::Backend& of, c10::Device device) {
      dynamic_cast<c10d::ProcessGroupNCCL&>(of).performNocolorSplit(device);
    },
    [](c10::Device device) { c10::cuda::set_device(device.index()); },
    [] { return c10d::dump_nccl_trace_json(/*includeCollectives=*/true, /*onlyActive=*/false); },
    versions,
    [](c10::Device device) {
      c10::cuda::set_device(device.index());
      c10::cuda::device_synchronize();
    },
    [](int mode) {
      c10::cuda::warning_state().set_sync_debug_mode(static_cast<c10::cuda::SyncDebugMode>(mode));
    },
    capture};

}  // namespace
}  // namespace ddprun::ddp

extern "C" __attribute__((visibility("default"))) const ddprun::ddp::CudaPlugin* ddprun_cuda_plugin() {
  return &ddprun::ddp::kPlugin;
}
