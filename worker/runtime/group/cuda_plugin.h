#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace ddprun::ddp {

/// The interface of libddprun_cuda.so, which links libtorch_cuda, as the programs do not: loading it
/// registers CUDA with LibTorch.
struct CudaPlugin {
  const char* build;  ///< must be kCudaPluginBuild of the program that loads it
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                 int size, std::chrono::milliseconds timeout,
                                                 c10::Device device);
  void (*set_device)(c10::Device device);   ///< for this thread's CUDA calls that name no device
  std::string (*dump_nccl_trace)();         ///< the flight recorder's ring, as JSON
  std::string (*versions)();                ///< "CUDA 13.0, NCCL 2.28.9"
  void (*synchronize)(c10::Device device);  ///< waits for all its work
};

/// The only symbol that programs look up in it.
constexpr const char* kCudaPluginSymbol = "ddprun_cuda_plugin";
using CudaPluginGetter = const CudaPlugin* (*)();

#ifdef DDPRUN_CUDA_PLUGIN_BUILD
constexpr const char* kCudaPluginBuild = DDPRUN_CUDA_PLUGIN_BUILD;
#endif

}  // namespace ddprun::ddp
