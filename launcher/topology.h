#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddprun {

/// What this host offers the job.
struct Topology {
  int cpus = 1;  ///< CPUs this process may use
  int gpus = 0;  ///< GPUs that CUDA_VISIBLE_DEVICES leaves; 0 also if nobody asked
};

/// How many of the GPUs a CUDA program would see.
///
/// uuids         the host's GPUs in NVML's order, "GPU-..."
/// visible       value of CUDA_VISIBLE_DEVICES, if set: indices or (beginnings of) UUIDs
/// returns       the entries before the first one that names no GPU, as CUDA counts them; 0 if one is there
///               twice. A MIG instance ends the list: CUDA shows a process one of them and nothing else.
int visible_gpus(const std::vector<std::string>& uuids, const std::optional<std::string>& visible);

/// Looks at this host. GPUs only if wanted: loading NVIDIA's library takes longer than starting a job.
Topology detect_topology(bool want_gpus);

}  // namespace ddprun
