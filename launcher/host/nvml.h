#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/host/gpu_list.h"

namespace ddprun::launcher {

/// What NVIDIA's management library (NVML) reports of this host.
struct GpuReading {
  std::vector<Gpu> gpus;
  std::string problem;  ///< why an installed driver fails: "Driver/library version mismatch"; else empty
};

/// Loads libnvidia-ml.so.1, which takes tens of milliseconds with a driver, and asks it. Without the library
/// there are no GPUs and no problem.
///
/// sysfs    for a PCI device's NUMA node; another one for tests
GpuReading read_gpus(const std::filesystem::path& sysfs = "/sys");

}  // namespace ddprun::launcher
