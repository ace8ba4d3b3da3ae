#include "launcher/cli/slurm_options.h"

namespace ddprun::launcher {
namespace {

bool sets_slurm_aside(const settings::Values& values, const EnvLookup& environment) {
  for (const char* name : {"nnodes", "node-rank", "rdzv-endpoint", "master-addr"})
    if (values.given(name)) return true;
  // The tasks of the step are workers of the ddprun around this one.
  return values.is_true("standalone") || environment(kJobIdVariable);
}

/// srun starts one task for each worker: ddprun adds none, and knows nothing of the others of its node.
void check_task_flags(const SlurmStep& step, const settings::Values& values, const Options& options) {
  const std::string tasks = std::to_string(step.tasks) + " tasks on " + std::to_string(step.nodes.size()) +
                            (step.nodes.size() == 1 ? " node" : " nodes");
  const WorkersWanted& wanted = options.nproc_per_node;
  if (wanted.kind != WorkersWanted::Kind::kCount || wanted.count != 1)
    values.reject("nproc-per-node", "1, or srun --ntasks-per-node=1, where srun starts " + tasks +
                                        " (SLURM_STEP_NUM_TASKS, SLURM_STEP_NUM_NODES)");
  const std::pair<const char*, const char*> of_one_task[] = {{"virtual-local-rank", "--gpus-per-task"},
                                                             {"numa-binding", "--cpu-bind"}};
  for (const auto& [flag, sruns] : of_one_task)
    if (values.given(flag) && values.text(flag) != "false")
      throw UsageError(values.source(flag) + ": expected srun's own " + sruns +
                       ", or srun --ntasks-per-node=1, where srun starts " + tasks);
}

}  // namespace

std::optional<SlurmStep> job_step(const settings::Values& values, const EnvLookup& environment) {
  if (sets_slurm_aside(values, environment)) return {};
  return slurm_step(environment);
}

void apply_step(const SlurmStep& step, const settings::Values& values, Options& options) {
  NodesOptions& nodes = options.nodes;
  const std::string& name = step.nodes[static_cast<std::size_t>(step.node)];
  // On one node nothing has to be reached from outside.
  nodes.endpoint = {step.nodes.size() == 1 ? "127.0.0.1" : step.nodes[0], step.port};
  const bool hosts = step.node == 0 && step.node_task == 0;
  if (nodes.is_host.value_or(hosts) != hosts)
    values.reject("rdzv-conf", std::string("is_host=") + (hosts ? "true" : "false") + " on node " + name);
  nodes.is_host = hosts;
  if (options.run_id.empty()) options.run_id = "slurm-" + step.id;
  nodes.token_is_derived = nodes.token.empty();
  if (nodes.token_is_derived) nodes.token = "slurm-" + step.id;
  if (step.one_task_a_node()) {
    nodes.node_rank = step.node;
    nodes.node_name = name;
    nodes.names = step.nodes;
    return;
  }
  check_task_flags(step, values, options);
  nodes.node_rank = step.task;
  nodes.node_name = name + " task " + std::to_string(step.task);
  nodes.first_local_rank = step.node_task;
  nodes.local_world_size = step.node_tasks;
  nodes.group_rank = step.node;
  nodes.group_world_size = static_cast<int>(step.nodes.size());
}

void note_idle_nodes(const settings::Values& values, const EnvLookup& environment, Options& options) {
  if (sets_slurm_aside(values, environment)) return;
  const int count = slurm_idle_allocation(environment);
  if (count > 1)
    options.notes.push_back(
        "one of the " + std::to_string(count) +
        " nodes that Slurm has allocated is used: srun --ntasks-per-node=1 ddprun uses all");
}

}  // namespace ddprun::launcher
