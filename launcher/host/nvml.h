#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "launcher/host/gpu_list.h"

namespace ddprun::launcher {

/// What NVIDIA's management library says of this host.
struct GpuReading {
  std::vector<Gpu> gpus;
  std::string
      problem;  ///< why a driver that is there tells nothing: "Driver/library version mismatch"; or empty
};

/// Loads libnvidia-ml.so.1 where the dynamic linker finds it, and asks. No GPUs and no problem if it is not
/// there. Takes tens of milliseconds with a driver.
///
/// sysfs    where the kernel tells a PCI device's NUMA node, for tests
GpuReading read_gpus(const std::filesystem::path& sysfs = "/sys");

}  // namespace ddprun::launcher
