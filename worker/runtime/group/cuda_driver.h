#pragma once

#include <string>
#include <vector>

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

}  // namespace ddprun::ddp
