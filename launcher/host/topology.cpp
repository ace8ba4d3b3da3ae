#include "launcher/host/topology.h"

#include <utility>

#include <ddprun/common/worker_env.h>
#include "launcher/host/cpu_limits.h"
#include "launcher/host/nvml.h"

namespace ddprun::launcher {

Topology detect_topology(bool want_gpus) {
  Topology topology;
  topology.allowed_cpus = allowed_cpus();
  topology.cpus = usable_cpus(topology.allowed_cpus, cpu_quota());
  if (!want_gpus) return topology;
  GpuReading reading = read_gpus();
  topology.host_gpus = std::move(reading.gpus);
  topology.gpu_problem = std::move(reading.problem);
  topology.visible = visible_gpus(topology.host_gpus, process_env("CUDA_VISIBLE_DEVICES"));
  topology.gpus = static_cast<int>(gpus_of_one_process(topology.visible).size());
  return topology;
}

}  // namespace ddprun::launcher
