#include "launcher/rendezvous/admission.h"

#include <limits>

#include <ddprun/common/text/printable.h>
#include "launcher/rendezvous/roll_call.h"

namespace ddprun::launcher {
namespace {

std::string nnodes(int min, int max) {
  return "--nnodes=" + (min == max ? "" : std::to_string(min) + ":") + std::to_string(max);
}

}  // namespace

std::string disagreement(const CoordinatorSettings& settings, const Join& join, const std::string& address) {
  const std::string node = "node " + named(join, address);
  if (!join.run_id.empty() && join.run_id != settings.run_id)
    return node + " has run id " + quoted(join.run_id) + ", the coordinator has " + quoted(settings.run_id) +
           " (--rdzv-id)";
  if (join.min_nodes != settings.min_nodes || join.max_nodes != settings.max_nodes)
    return node + " has " + nnodes(join.min_nodes, join.max_nodes) + ", the coordinator has " +
           nnodes(settings.min_nodes, settings.max_nodes);
  if (join.node_rank && (*join.node_rank < 0 || *join.node_rank >= settings.max_nodes))
    return node + " has --node-rank=" + std::to_string(*join.node_rank) + ": expected one from 0 to " +
           std::to_string(settings.max_nodes - 1);
  // No sum of workers is larger than an int.
  const int most = std::numeric_limits<int>::max() / settings.max_nodes;
  if (join.workers < 1 || join.workers > most)
    return node + " would start " + std::to_string(join.workers) + " workers: expected a number from 1 to " +
           std::to_string(most);
  return "";
}

}  // namespace ddprun::launcher
