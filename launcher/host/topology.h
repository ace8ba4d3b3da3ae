#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/host/cpus.h"
#include "launcher/host/gpu_list.h"

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

/// The CPUs that this process may use according to its affinity and its cgroup's cpuset. Empty if unknown.
CpuList allowed_cpus();

/// How many processes can compute at once: the allowed CPUs, limited by the quota (rounded up); at least 1.
int usable_cpus(const CpuList& allowed, const std::optional<double>& quota);

/// What this host offers the job. The GPU fields are empty unless GPUs are wanted.
struct Topology {
  int cpus = 1;                                       ///< usable_cpus()
  int gpus = 0;                                       ///< visible to a process with our environment
  CpuList allowed_cpus = {};                          ///< by our affinity, regardless of the quota
  std::vector<Gpu> host_gpus = {};                    ///< all of the host, if they are NVIDIA's
  std::vector<VisibleGpu> visible = {};               ///< to ddprun, each MIG instance separately
  std::string gpu_problem = {};                       ///< why an installed NVIDIA driver fails, or empty
  std::string gpu_variable = "CUDA_VISIBLE_DEVICES";  ///< which takes the names in `visible`
};

enum class WantedGpus { kNone, kAny, kIntel };

/// Inspects this host, and its GPUs only if wanted: loading NVIDIA's library takes longer than starting a
/// job. Uses NVIDIA's GPUs if there are any, else AMD's, else Intel's.
///
/// sysfs    its root, for tests
/// throws   UsageError if CUDA_VISIBLE_DEVICES names an NVIDIA GPU twice
Topology detect_topology(WantedGpus wanted, const std::filesystem::path& sysfs = "/sys");

}  // namespace ddprun::launcher
