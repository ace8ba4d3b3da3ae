#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace ddprun::ddp {

/// The ingredients of an NCCL communicator.
struct NcclGroup {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::string name;
  std::vector<int> world_ranks;  ///< the members' ranks in the whole job
  std::chrono::milliseconds timeout{};
  c10::Device device = c10::kCPU;
  /// The backend of a group with all these ranks, whose connections the new one shares; null: none. The ranks
  /// of that group that are not in the new one call CudaPlugin::stay_out_of_split() meanwhile.
  c10::intrusive_ptr<c10d::Backend> split_from;
};

/// The interface of libddprun_cuda.so, which links libtorch_cuda; the programs do not. Loading it registers
/// CUDA with LibTorch.
struct CudaPlugin {
  const char* build;  ///< must be kCudaPluginBuild of the program that loads it
  c10::intrusive_ptr<c10d::Backend> (*make_nccl)(const NcclGroup& group);
  void (*stay_out_of_split)(c10d::Backend& of, c10::Device device);
  void (*set_device)(c10::Device device);   ///< for this thread's CUDA calls that do not name a device
  std::string (*dump_nccl_trace)();         ///< the flight recorder's ring, as JSON
  std::string (*versions)();                ///< "CUDA 13.0, NCCL 2.28.9"
  void (*synchronize)(c10::Device device);  ///< waits for all its work
  void (*set_sync_debug_mode)(int mode);    ///< torch.cuda's: 0 nothing, 1 a warning, 2 an error
  /// Records as a CUDA graph, without computing, work's calls on the current stream and everything that waits
  /// for them. Returns a function that computes them, as often as it is called. throws  what work threw, or
  /// why it cannot be captured
  std::function<void()> (*capture)(c10::Device device, const std::function<void()>& work);
};

/// The only symbol that programs look up in it.
constexpr const char* kCudaPluginSymbol = "ddprun_cuda_plugin";
using CudaPluginGetter = const CudaPlugin* (*)();

#ifdef DDPRUN_CUDA_PLUGIN_BUILD
constexpr const char* kCudaPluginBuild = DDPRUN_CUDA_PLUGIN_BUILD;
#endif

}  // namespace ddprun::ddp
