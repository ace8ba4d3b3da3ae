#pragma once

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>

namespace c10d {
class Backend;
class Store;
}  // namespace c10d

namespace ddprun::ddp {

/// A GPU that CUDA_VISIBLE_DEVICES leaves to this process.
struct Gpu {
  std::string uuid;        ///< 32 hexadecimal digits; differs between all GPUs and MIG instances
  std::string whole_uuid;  ///< of a MIG instance, the divided GPU's; else the same
  std::string name;
  std::size_t memory_bytes = 0;
  int capability = 0;       ///< compute capability, 10 * major + minor; 0: unknown
  bool prohibited = false;  ///< its compute mode lets no process use it
};

/// The NVIDIA driver's answers.
struct CudaDriver {
  std::vector<Gpu> gpus;
  std::string problem;  ///< one line: why there are no answers
  int version = 0;      ///< the newest CUDA it can run, 1000 * major + 10 * minor; 0 without a driver
  bool broken = false;  ///< the driver is there but fails: problem is not just a missing GPU
};

/// Whether the driver (libcuda.so.1) exists. Does not call it.
bool has_cuda_driver();

/// Asks the driver (libcuda.so.1): asking LibTorch too early would make it decide that it has no CUDA.
/// Processes forked later cannot use CUDA.
CudaDriver query_cuda_driver();

/// Why a program built for that CUDA cannot compute on the GPU with that index: one line; empty if it can.
///
/// built_for  as CudaDriver's version; 0: unknown, so only the GPU's mode counts
std::string gpu_problem(const CudaDriver& driver, std::size_t index, int built_for);

/// Why this process sees none of the host's GPUs: one line; empty if there are none, or the user hides them.
///
/// dev  where the kernel's device files are
std::string unseen_gpu(const CudaDriver& driver, const std::filesystem::path& dev = "/dev");

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

/// Loads the plug-in once; a program that never calls it loads nothing of CUDA.
///
/// Looks at $DDPRUN_CUDA_PLUGIN, then in ../lib and in the program's folder, then where the loader looks.
/// Call it before the process first uses autograd, a random generator or torch::cuda: there LibTorch decides
/// for good whether it has CUDA.
///
/// throws  UsageError saying how to get the plug-in if it is missing, cannot be loaded or is from another
///         build; std::logic_error if it comes too late
const CudaPlugin& cuda_plugin();

struct RankDevice {
  c10::Device device = c10::kCPU;
  std::string id = "cpu";         ///< "cpu", or Gpu::uuid
  std::string whole_gpu = "cpu";  ///< "cpu", or Gpu::whole_uuid: two ranks with the same cannot use NCCL
  std::string name = {};          ///< the GPU's, such as "NVIDIA H100"
};

/// Chooses this rank's device, and loads the plug-in for a GPU: number LOCAL_RANK modulo this host's GPUs.
/// kAuto takes the CPU if there is no GPU and, with a warning, if the GPU, its driver or the plug-in cannot
/// be used.
///
/// throws  as cuda_plugin(), and UsageError saying why a requested GPU is unavailable
///
/// local_world_size  the first rank here says how many GPUs these ranks leave idle; 0: unknown
RankDevice choose_device(DeviceChoice wanted, int local_rank, int local_world_size = 0);

/// While it lives, an operation that makes the process wait for the GPU causes a warning or an error, as
/// DDPRUN_SYNC_DEBUG_MODE says: torch.cuda.set_sync_debug_mode(). Does nothing without the variable or on a
/// CPU.
class SyncDebugScope {
 public:
  /// throws  UsageError if the variable is neither default, warn nor error
  explicit SyncDebugScope(c10::Device device);
  ~SyncDebugScope();
  SyncDebugScope(const SyncDebugScope&) = delete;
  SyncDebugScope& operator=(const SyncDebugScope&) = delete;

 private:
  int mode_;
};

/// True for NCCL, false for Gloo.
///
/// gpus    what each rank computes on, by rank: RankDevice::whole_gpu
/// throws  UsageError naming the ranks if only some have a GPU, or if NCCL is requested and some have none or
///         share one
bool use_nccl(BackendChoice wanted, const std::vector<std::string>& gpus);

/// "ranks 0 and 8 share GPU 3f...": the first GPU that several ranks compute on; empty if there is none.
std::string shared_gpu(const std::vector<std::string>& gpus);

}  // namespace ddprun::ddp
