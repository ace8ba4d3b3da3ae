#include "launcher/host/topology.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include <ddprun/common/worker_env.h>
#include "launcher/host/cgroup.h"
#include "launcher/host/sysfs_gpus.h"

namespace ddprun::launcher {

namespace fs = std::filesystem;

CpuList allowed_cpus() {
  // The kernel rejects a set smaller than its own: grow until it fits.
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(bits),
                                                               [](cpu_set_t* p) { CPU_FREE(p); });
    const std::size_t size = CPU_ALLOC_SIZE(bits);
    if (set && ::sched_getaffinity(0, size, set.get()) == 0) {
      CpuList cpus;
      for (int cpu = 0; cpu < bits; ++cpu)
        if (CPU_ISSET_S(static_cast<std::size_t>(cpu), size, set.get())) cpus.push_back(cpu);
      return cpus;
    }
    if (errno != EINVAL) break;
  }
  return {};
}

int usable_cpus(const CpuList& allowed, const std::optional<double>& quota) {
  const int cpus = std::max(1, static_cast<int>(allowed.size()));
  if (!quota || *quota >= cpus) return cpus;
  const int whole = static_cast<int>(*quota);
  return std::max(1, whole < *quota ? whole + 1 : whole);
}

Topology detect_topology(WantedGpus wanted, const fs::path& sysfs) {
  Topology topology;
  topology.allowed_cpus = allowed_cpus();
  topology.cpus = usable_cpus(topology.allowed_cpus, cpu_quota());
  if (wanted == WantedGpus::kNone) return topology;
  if (wanted == WantedGpus::kAny) {
    GpuReading reading = read_gpus(sysfs);
    topology.host_gpus = std::move(reading.gpus);
    topology.gpu_problem = std::move(reading.problem);
    topology.visible = visible_gpus(topology.host_gpus, process_env("CUDA_VISIBLE_DEVICES"));
    topology.gpus = static_cast<int>(gpus_of_one_process(topology.visible).size());
    if (!topology.host_gpus.empty()) return topology;
  }
  SysfsGpus found = wanted == WantedGpus::kAny ? amd_gpus(sysfs) : SysfsGpus();
  if (found.entries.empty()) found = intel_gpus(sysfs);
  if (found.entries.empty()) return topology;
  topology.gpu_variable = found.variable;
  topology.gpus = static_cast<int>(found.entries.size());
  for (std::string& entry : found.entries) topology.visible.push_back({std::move(entry), -1});
  return topology;
}

}  // namespace ddprun::launcher
