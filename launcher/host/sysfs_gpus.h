#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace ddprun::launcher {

/// The visible GPUs of a vendor whose driver describes them in sysfs.
struct SysfsGpus {
  std::string variable;              ///< tells the vendor's runtime which GPUs to use
  std::vector<std::string> entries;  ///< one per GPU, for that variable
};

/// AMD's, by ROCR_VISIBLE_DEVICES and, among those, HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES. Lists end at
/// the first entry that names no GPU.
///
/// sysfs    its root, for tests
SysfsGpus amd_gpus(const std::filesystem::path& sysfs = "/sys");

/// Intel's, without those inside the CPU, by ZE_AFFINITY_MASK. Every tile counts, unless
/// ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE.
SysfsGpus intel_gpus(const std::filesystem::path& sysfs = "/sys");

}  // namespace ddprun::launcher
