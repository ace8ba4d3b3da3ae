#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include <ddprun/group/cuda_plugin.h>
#include <ddprun/group/device_choice.h>

namespace ddprun::ddp {

/// A GPU that CUDA_VISIBLE_DEVICES leaves this process.
struct Gpu {
  std::string uuid;  ///< 32 hexadecimal digits; differs between all GPUs and MIG instances
  std::string name;
  std::size_t memory_bytes = 0;
};

/// The NVIDIA driver's answers.
struct CudaDriver {
  std::vector<Gpu> gpus;
  std::string problem;  ///< why there are none: one line
  int version = 0;      ///< the newest CUDA it can run, 1000 * major + 10 * minor; 0 without a driver
};

/// Asks the driver (libcuda.so.1), because asking LibTorch too early would decide that it has no CUDA. Forked
/// processes cannot use CUDA after this.
CudaDriver query_cuda_driver();

/// Loads the plug-in once. Programs that never call it load nothing of CUDA.
///
/// Looks at $DDPRUN_CUDA_PLUGIN, then in ../lib and in the folder of the program, then where the loader
/// looks. Must come before the process first uses autograd, a random generator or torch::cuda: LibTorch then
/// decides for good whether it has CUDA.
///
/// throws  UsageError saying how to get the plug-in if it is missing, cannot be loaded or is of another
///         build; std::logic_error if it comes too late
const CudaPlugin& cuda_plugin();

struct RankDevice {
  c10::Device device = c10::kCPU;
  std::string id = "cpu";  ///< "cpu", or the GPU's UUID
};

/// Chooses this rank's device, and loads the plug-in for a GPU: number LOCAL_RANK modulo this host's GPUs.
/// Without a GPU kAuto takes the CPU; with a GPU but no plug-in too, with a warning.
///
/// throws  as cuda_plugin(), and UsageError if a GPU is asked for and there is none
RankDevice choose_device(DeviceChoice wanted, int local_rank);

}  // namespace ddprun::ddp
