#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "launcher/host/cpu_map.h"
#include "launcher/host/gpu_list.h"

namespace ddprun::launcher {

/// The CPUs that this process may use by its affinity and its cgroup's cpuset. Empty if unknown.
CpuList allowed_cpus();

/// How many processes can compute at once: the allowed CPUs, limited by the quota (rounded up); at least 1.
int usable_cpus(const CpuList& allowed, const std::optional<double>& quota);

/// What this host offers the job. The GPU fields are empty unless GPUs are wanted.
struct Topology {
  int cpus = 1;                                       ///< usable_cpus()
  int gpus = 0;                                       ///< that a process with our environment sees
  CpuList allowed_cpus = {};                          ///< by our affinity, whatever the quota
  std::vector<Gpu> host_gpus = {};                    ///< all of the host, if they are NVIDIA's
  std::vector<VisibleGpu> visible = {};               ///< to ddprun, each MIG instance separately
  std::string gpu_problem = {};                       ///< why an installed NVIDIA driver fails, or empty
  std::string gpu_variable = "CUDA_VISIBLE_DEVICES";  ///< where the names of `visible` belong
};

enum class WantedGpus { kNone, kAny, kIntel };

/// Looks at this host, at its GPUs only if wanted: loading NVIDIA's library takes longer than starting a job.
/// Any GPUs are NVIDIA's if there are some, else AMD's, else Intel's.
///
/// sysfs    its root, for tests
/// throws   UsageError if CUDA_VISIBLE_DEVICES names an NVIDIA GPU twice
Topology detect_topology(WantedGpus wanted, const std::filesystem::path& sysfs = "/sys");

}  // namespace ddprun::launcher
