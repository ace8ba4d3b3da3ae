#include "launcher/plan/placement.h"

#include <algorithm>
#include <array>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace {

// -- binding --

std::string flag(NumaBinding mode) {
  return std::string("--numa-binding=") + kNumaBindings.at(static_cast<std::size_t>(mode));
}

/// The non-empty intersections of the groups with cpus.
std::vector<CpuList> within(const CpuList& cpus, const std::vector<CpuList>& groups) {
  std::vector<CpuList> parts;
  for (const CpuList& group : groups)
    if (CpuList part = common_cpus(group, cpus); !part.empty()) parts.push_back(std::move(part));
  return parts;
}

/// Part i of n of the cores: adjacent ones; the first parts get one more if they do not divide evenly.
CpuList share(const std::vector<CpuList>& cores, std::size_t i, std::size_t n) {
  const std::size_t each = cores.size() / n, rest = cores.size() % n;
  const std::size_t begin = i * each + std::min(i, rest);
  const std::size_t end = begin + each + (i < rest ? 1 : 0);
  CpuList cpus;
  for (std::size_t core = begin; core < end; ++core)
    cpus.insert(cpus.end(), cores[core].begin(), cores[core].end());
  std::ranges::sort(cpus);
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
  std::ranges::sort(caches, [](const CpuList& a, const CpuList& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  return caches.empty() ? CpuList() : caches[i % caches.size()];
}

CpuList near_gpu(const CpuMap& map, const std::vector<int>& gpu_nodes, NumaBinding mode, std::size_t gpu) {
  const int index = node_or_0(gpu_nodes[gpu]);
  const auto node =
      std::ranges::find_if(map.nodes, [&](const NumaNode& candidate) { return candidate.index == index; });
  // Its position among the node's GPUs, and their number.
  const auto same = [&](int other) { return node_or_0(other) == index; };
  const auto place = gpu_nodes.begin() + static_cast<std::ptrdiff_t>(gpu);
  const auto i = static_cast<std::size_t>(std::count_if(gpu_nodes.begin(), place, same));
  const auto n = static_cast<std::size_t>(std::ranges::count_if(gpu_nodes, same));

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

// -- the table --

constexpr std::size_t kTableWidth = 100;
constexpr std::size_t kGpuWidth = 28;
constexpr std::size_t kNodesWidth = 16;
constexpr std::size_t kGap = 2;

enum Column { kRank, kLocalRank, kGpu, kNodes, kCpus, kColumns };
using Row = std::array<std::string, kColumns>;

std::string cut(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

/// The numbers of the NUMA nodes of the CPUs.
std::string nodes_of(const CpuList& cpus, const std::vector<NumaNode>& nodes) {
  CpuList indices;
  for (const NumaNode& node : nodes)
    if (std::ranges::find_first_of(node.cpus, cpus) != node.cpus.end()) indices.push_back(node.index);
  std::ranges::sort(indices);
  return indices.empty() ? "-" : describe_cpus(indices);
}

/// The list cut to fit the width, at a comma.
std::string fitting_cpus(const CpuList& cpus, std::size_t width) {
  std::string text = describe_cpus(cpus);
  if (text.size() <= width) return text;
  const std::string end = "... (" + std::to_string(cpus.size()) + " CPUs)";
  const auto comma = text.rfind(',', width - end.size() - 1);
  return (comma == std::string::npos ? "" : text.substr(0, comma + 1)) + end;
}

std::string line(const Row& row, const std::array<std::size_t, kColumns>& widths) {
  std::string text;
  for (std::size_t column = 0; column < kColumns; ++column) {
    if (widths[column] == 0) continue;  // no GPUs
    const std::string padding(widths[column] - std::min(widths[column], row[column].size()), ' ');
    if (!text.empty()) text.append(kGap, ' ');
    text += column <= kLocalRank ? padding + row[column] : row[column] + padding;
  }
  return text.substr(0, text.find_last_not_of(' ') + 1) + '\n';
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

WantedGpus wanted_gpus(const Options& options) {
  using Kind = WorkersWanted::Kind;
  const Kind kind = options.nproc_per_node.kind;
  if (kind == Kind::kXpu) return WantedGpus::kIntel;
  const bool any = kind == Kind::kGpu || kind == Kind::kAuto || options.numa_binding ||
                   options.virtual_local_rank || options.dry_run || !options.gpus.empty();
  return any ? WantedGpus::kAny : WantedGpus::kNone;
}

void choose_gpus(const Options& options, Topology& topology) {
  if (options.gpus.empty()) return;
  topology.visible = chosen_gpus(topology.host_gpus, topology.visible, options.gpus);
  topology.gpus = static_cast<int>(gpus_of_one_process(topology.visible).size());
}

Placement place_workers(const Options& options, const Topology& topology, int workers) {
  Placement placement;
  if (options.numa_binding)
    placement.cpus = bind_workers(
        read_cpu_map(topology.allowed_cpus),
        numa_nodes(topology.host_gpus,
                   options.virtual_local_rank ? topology.visible : gpus_of_one_process(topology.visible)),
        *options.numa_binding, workers);
  if (options.virtual_local_rank)
    placement.visible_gpus =
        topology.gpu_variable == "CUDA_VISIBLE_DEVICES" && options.gpus.empty()
            ? one_gpu_each(topology.host_gpus, process_env("CUDA_VISIBLE_DEVICES"), workers)
            : one_gpu_each(topology.visible, workers, options.gpus.empty() ? "" : " (--gpus)");
  return placement;
}

std::string cpu_table(const std::vector<PlacedWorker>& workers, const std::vector<NumaNode>& nodes) {
  std::vector<Row> rows = {{"rank", "local rank", "GPU", "NUMA", "CPUs"}};
  for (const PlacedWorker& worker : workers)
    rows.push_back({std::to_string(worker.rank), std::to_string(worker.local_rank),
                    worker.gpu.empty() ? "-" : cut(worker.gpu, kGpuWidth),
                    cut(nodes_of(worker.cpus, nodes), kNodesWidth), ""});
  std::array<std::size_t, kColumns> widths{};
  for (const Row& row : rows)
    for (std::size_t column = 0; column < kCpus; ++column)
      widths[column] = std::max(widths[column], row[column].size());
  if (std::ranges::all_of(workers, [](const PlacedWorker& w) { return w.gpu.empty(); })) widths[kGpu] = 0;
  std::size_t left = kTableWidth;
  for (std::size_t column = 0; column < kCpus; ++column)
    left -= widths[column] > 0 ? widths[column] + kGap : 0;
  widths[kCpus] = left;

  std::string text;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i > 0) rows[i][kCpus] = fitting_cpus(workers[i - 1].cpus, left);
    text += line(rows[i], widths);
  }
  return text;
}

std::string cpu_table(const Topology& topology, const Placement& placement, const Round& round) {
  std::vector<PlacedWorker> placed;
  for (int i = 0; i < round.workers; ++i) {
    const auto index = static_cast<std::size_t>(i);
    PlacedWorker& worker = placed.emplace_back();
    worker.rank = round.first_rank + i;
    worker.local_rank = round.first_local_rank + i;
    if (index < topology.visible.size()) worker.gpu = topology.visible[index].name;
    worker.cpus = placement.cpus.empty() ? topology.allowed_cpus : placement.cpus[index];
  }
  std::vector<NumaNode> nodes;
  try {
    nodes = read_cpu_map(topology.allowed_cpus).nodes;
  } catch (const UsageError&) {
    // Without hwloc the NUMA nodes are unknown.
  }
  return cpu_table(placed, nodes);
}

}  // namespace ddprun::launcher
