#include "launcher/plan/placement.h"

#include <ddprun/common/errors.h>
#include <ddprun/common/worker_env.h>
#include "launcher/host/cpu_map.h"
#include "launcher/plan/binding.h"
#include "launcher/plan/display_map.h"

namespace ddprun::launcher {

bool needs_gpus(const Options& options) {
  using Kind = WorkersWanted::Kind;
  const Kind kind = options.nproc_per_node.kind;
  return kind == Kind::kGpu || kind == Kind::kAuto || !options.numa_binding.empty() ||
         options.virtual_local_rank || options.display_map;
}

Placement place_workers(const Options& options, const Topology& topology, int workers) {
  Placement placement;
  if (!options.numa_binding.empty())
    placement.cpus = bind_workers(
        read_cpu_map(topology.allowed_cpus),
        numa_nodes(topology.host_gpus,
                   options.virtual_local_rank ? topology.visible : gpus_of_one_process(topology.visible)),
        parse_numa_binding(options.numa_binding), workers);
  if (options.virtual_local_rank)
    placement.visible_gpus = one_gpu_each(topology.host_gpus, process_env("CUDA_VISIBLE_DEVICES"), workers);
  return placement;
}

std::string placement_map(const Topology& topology, const Placement& placement, int first_rank, int workers) {
  std::vector<PlacedWorker> placed;
  for (int i = 0; i < workers; ++i) {
    const auto local = static_cast<std::size_t>(i);
    PlacedWorker& worker = placed.emplace_back();
    worker.rank = first_rank + i;
    worker.local_rank = i;
    if (local < topology.visible.size()) worker.gpu = topology.visible[local].name;
    worker.cpus = placement.cpus.empty() ? topology.allowed_cpus : placement.cpus[local];
  }
  std::vector<NumaNode> nodes;
  try {
    nodes = read_cpu_map(topology.allowed_cpus).nodes;
  } catch (const UsageError&) {
    // Without hwloc the map lacks the column of the nodes.
  }
  return display_map(placed, nodes);
}

}  // namespace ddprun::launcher
