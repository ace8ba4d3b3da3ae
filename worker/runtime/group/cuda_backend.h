#pragma once

#include <string>
#include <vector>

#include <c10/core/Device.h>

#include <ddprun/group/cuda_plugin.h>
#include <ddprun/group/device_choice.h>

namespace ddprun::ddp {

/// A GPU that CUDA_VISIBLE_DEVICES leaves this process.
struct Gpu {
  std::string uuid;  ///< 32 hexadecimal digits; differs between all GPUs and MIG instances there are
  std::string name;
  std::size_t memory_bytes = 0;
};

/// What the NVIDIA driver says.
struct CudaDriver {
  std::vector<Gpu> gpus;
  std::string problem;  ///< why there are none: one line
  int version = 0;      ///< the newest CUDA that it can run, 1000 * major + 10 * minor; 0 without a driver
};

/// Asks the driver itself (libcuda.so.1, loaded for it), since LibTorch must not be asked before it is known
/// whether the plug-in is to be loaded. After this a forked process cannot use CUDA.
CudaDriver query_cuda_driver();

/// Loads the plug-in, once; later calls give the same. Programs that never call it load nothing of CUDA.
///
/// Looked for at $DDPRUN_CUDA_PLUGIN, then in ../lib and in the folder of the program, then where the loader
/// looks. Must come before the first use of autograd, of a random generator or of torch::cuda in the process:
/// LibTorch decides then, for good, whether it has CUDA.
///
/// throws  UsageError saying how to get the plug-in if it is not there, cannot be loaded or is of another
///         build; std::logic_error if it comes too late
const CudaPlugin& cuda_plugin();

/// A rank's device and what tells it from others.
struct RankDevice {
  c10::Device device = c10::kCPU;
  std::string id = "cpu";  ///< "cpu", or the GPU's UUID
};

/// Chooses this rank's device, and loads the plug-in if it is a GPU. Of this host's GPUs it is the one
/// numbered LOCAL_RANK, counted round where there are more ranks.
///
/// Without a GPU kAuto takes the CPU; with one, but no plug-in, too, with a warning.
///
/// throws  as cuda_plugin(), and UsageError if a GPU is asked for and there is none
RankDevice choose_device(DeviceChoice wanted, int local_rank);

}  // namespace ddprun::ddp
