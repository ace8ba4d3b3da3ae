#pragma once

#include <string>
#include <vector>

#include "launcher/host/cpu_list.h"
#include "launcher/host/gpu_list.h"

namespace ddprun::launcher {

/// What this host offers the job. All that regards GPUs is empty if nobody asked.
struct Topology {
  int cpus = 1;                     ///< how many may compute at once: affinity and cgroup's quota, at least 1
  int gpus = 0;                     ///< GPUs that a process which is left with the whole list sees
  CpuList allowed_cpus = {};        ///< those of our affinity, whatever the quota
  std::vector<Gpu> host_gpus = {};  ///< all of the host
  std::vector<VisibleGpu> visible = {};  ///< those that CUDA_VISIBLE_DEVICES leaves, MIG instances one by one
  std::string gpu_problem = {};          ///< why NVIDIA's driver told nothing though it is there, or empty
};

/// Looks at this host. GPUs only if wanted: loading NVIDIA's library takes longer than starting a job.
/// throws UsageError if CUDA_VISIBLE_DEVICES names a GPU twice
Topology detect_topology(bool want_gpus);

}  // namespace ddprun::launcher
