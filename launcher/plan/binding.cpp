#include "launcher/plan/binding.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <ddprun/common/errors.h>

namespace ddprun::launcher {
namespace {

std::string flag(NumaBinding mode) {
  return std::string("--numa-binding=") + kNumaBindings.at(static_cast<std::size_t>(mode));
}

CpuList common_cpus(const CpuList& a, const CpuList& b) {
  CpuList both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

/// The non-empty intersections of the groups with cpus.
std::vector<CpuList> within(const CpuList& cpus, const std::vector<CpuList>& groups) {
  std::vector<CpuList> parts;
  for (const CpuList& group : groups)
    if (CpuList part = common_cpus(group, cpus); !part.empty()) parts.push_back(std::move(part));
  return parts;
}

/// Part i of n of the cores: neighbours, with one core more for the first parts if they do not divide evenly.
CpuList share(const std::vector<CpuList>& cores, std::size_t i, std::size_t n) {
  const std::size_t each = cores.size() / n, rest = cores.size() % n;
  const std::size_t begin = i * each + std::min(i, rest);
  const std::size_t end = begin + each + (i < rest ? 1 : 0);
  CpuList cpus;
  for (std::size_t core = begin; core < end; ++core)
    cpus.insert(cpus.end(), cores[core].begin(), cores[core].end());
  std::sort(cpus.begin(), cpus.end());
  return cpus;
}

// -- near a GPU --

int node_or_0(int node) { return std::max(node, 0); }

CpuList exclusive_near(const CpuMap& map, const NumaNode& node, std::size_t i, std::size_t n) {
  const auto cores = within(node.cpus, map.cores);
  if (cores.size() < n)
    throw UsageError(flag(NumaBinding::kExclusive) + ": expected a physical core for each of the " +
                     std::to_string(n) + " GPUs on NUMA node " + std::to_string(node.index) + ", got " +
                     std::to_string(cores.size()) + " allowed there");
  return share(cores, i, n);
}

CpuList cache_near(const CpuMap& map, const NumaNode& node, std::size_t i) {
  auto caches = within(node.cpus, map.caches);
  std::sort(caches.begin(), caches.end(), [](const CpuList& a, const CpuList& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  return caches.empty() ? CpuList() : caches[i % caches.size()];
}

CpuList near_gpu(const CpuMap& map, const std::vector<int>& gpu_nodes, NumaBinding mode, std::size_t gpu) {
  const int index = node_or_0(gpu_nodes[gpu]);
  const auto node = std::find_if(map.nodes.begin(), map.nodes.end(),
                                 [&](const NumaNode& candidate) { return candidate.index == index; });
  // Its position among the GPUs of the node, and their number.
  const auto same = [&](int other) { return node_or_0(other) == index; };
  const auto place = gpu_nodes.begin() + static_cast<std::ptrdiff_t>(gpu);
  const auto i = static_cast<std::size_t>(std::count_if(gpu_nodes.begin(), place, same));
  const auto n = static_cast<std::size_t>(std::count_if(gpu_nodes.begin(), gpu_nodes.end(), same));

  CpuList cpus;
  if (node != map.nodes.end()) {
    if (mode == NumaBinding::kNode) cpus = node->cpus;
    if (mode == NumaBinding::kSocket) cpus = node->package_cpus;
    if (mode == NumaBinding::kExclusive) cpus = exclusive_near(map, *node, i, n);
    if (mode == NumaBinding::kCoreComplex) cpus = cache_near(map, *node, i);
  }
  if (cpus.empty())
    throw UsageError(flag(mode) + ": expected CPUs near the GPU of local rank " + std::to_string(gpu) +
                     ", got none that this process may use on NUMA node " + std::to_string(index));
  return cpus;
}

// -- without GPUs --

std::vector<CpuList> units(const CpuMap& map, NumaBinding mode) {
  if (mode == NumaBinding::kSocket) return map.packages;
  if (mode == NumaBinding::kCoreComplex) return map.caches;
  if (mode == NumaBinding::kExclusive) return map.cores;
  std::vector<CpuList> nodes;
  for (const NumaNode& node : map.nodes)
    if (!node.cpus.empty()) nodes.push_back(node.cpus);
  return nodes;
}

std::vector<CpuList> spread(const CpuMap& map, NumaBinding mode, std::size_t workers) {
  const auto all = units(map, mode);
  if (all.empty())
    throw UsageError(flag(mode) + ": hwloc reports none of the CPUs that this process may use");
  if (mode == NumaBinding::kExclusive && all.size() < workers)
    throw UsageError(flag(mode) + ": expected a physical core for each of " + std::to_string(workers) +
                     " workers, got " + std::to_string(all.size()) + " that this process may use");
  std::vector<CpuList> lists;
  for (std::size_t i = 0; i < workers; ++i)
    lists.push_back(mode == NumaBinding::kExclusive ? share(all, i, workers) : all[i * all.size() / workers]);
  return lists;
}

}  // namespace

std::vector<CpuList> bind_workers(const CpuMap& map, const std::vector<int>& gpu_nodes, NumaBinding mode,
                                  int workers) {
  ensure(workers > 0, "there are workers to bind");
  const auto count = static_cast<std::size_t>(workers);
  if (gpu_nodes.size() < count) return spread(map, mode, count);
  std::vector<CpuList> lists;
  for (std::size_t gpu = 0; gpu < count; ++gpu) lists.push_back(near_gpu(map, gpu_nodes, mode, gpu));
  return lists;
}

}  // namespace ddprun::launcher
