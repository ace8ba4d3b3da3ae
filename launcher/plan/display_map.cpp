#include "launcher/plan/display_map.h"

#include <algorithm>
#include <array>

namespace ddprun::launcher {
namespace {

constexpr std::size_t kWidth = 100;
constexpr std::size_t kGpuWidth = 28;
constexpr std::size_t kNodesWidth = 16;
constexpr std::size_t kGap = 2;

enum Column { kRank, kLocalRank, kGpu, kNodes, kCpus, kColumns };
using Row = std::array<std::string, kColumns>;

std::string cut(const std::string& text, std::size_t width) {
  return text.size() <= width ? text : text.substr(0, width - 3) + "...";
}

/// The nodes that the CPUs lie on, as a list of their numbers.
std::string nodes_of(const CpuList& cpus, const std::vector<NumaNode>& nodes) {
  CpuList indices;
  for (const NumaNode& node : nodes)
    if (std::find_first_of(node.cpus.begin(), node.cpus.end(), cpus.begin(), cpus.end()) != node.cpus.end())
      indices.push_back(node.index);
  std::sort(indices.begin(), indices.end());
  return indices.empty() ? "-" : describe_cpus(indices);
}

/// Whole ranges only, so that no number is cut in two.
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
    if (widths[column] == 0) continue;  // no GPU at all
    const std::string padding(widths[column] - std::min(widths[column], row[column].size()), ' ');
    if (!text.empty()) text.append(kGap, ' ');
    text += column <= kLocalRank ? padding + row[column] : row[column] + padding;
  }
  return text.substr(0, text.find_last_not_of(' ') + 1) + '\n';
}

}  // namespace

std::string display_map(const std::vector<PlacedWorker>& workers, const std::vector<NumaNode>& nodes) {
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
  std::size_t left = kWidth;
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

}  // namespace ddprun::launcher
