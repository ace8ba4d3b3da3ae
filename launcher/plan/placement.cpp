#include "launcher/plan/placement.h"

#include <algorithm>
#include <array>

#include <ddprun/common/errors.h>
#include <ddprun/common/worker_env.h>
#include "launcher/host/cpu_map.h"
#include "launcher/plan/binding.h"

namespace ddprun::launcher {
namespace {

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
    if (std::find_first_of(node.cpus.begin(), node.cpus.end(), cpus.begin(), cpus.end()) != node.cpus.end())
      indices.push_back(node.index);
  std::sort(indices.begin(), indices.end());
  return indices.empty() ? "-" : describe_cpus(indices);
}

/// The list cut to the width, at a comma.
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

bool needs_gpus(const Options& options) {
  using Kind = WorkersWanted::Kind;
  const Kind kind = options.nproc_per_node.kind;
  return kind == Kind::kGpu || kind == Kind::kAuto || options.numa_binding || options.virtual_local_rank ||
         options.dry_run;
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
    placement.visible_gpus = one_gpu_each(topology.host_gpus, process_env("CUDA_VISIBLE_DEVICES"), workers);
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
  if (std::all_of(workers.begin(), workers.end(), [](const PlacedWorker& w) { return w.gpu.empty(); }))
    widths[kGpu] = 0;
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
    // Without hwloc the NUMA nodes are not known.
  }
  return cpu_table(placed, nodes);
}

}  // namespace ddprun::launcher
