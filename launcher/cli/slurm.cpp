#include "launcher/cli/slurm.h"

#include <cstdint>

#include <ddprun/common/errors.h>
#include <ddprun/common/settings/values.h>
#include <ddprun/common/text/printable.h>
#include "launcher/cli/host_list.h"
#include "launcher/cli/options.h"

namespace ddprun::launcher {
namespace {

constexpr int kMaxTasks = 100'000;
constexpr std::int64_t kLastId = 0xfffffffe;
/// Step numbers from here on mean batch scripts and shells of salloc.
constexpr std::int64_t kFirstSpecialStep = 0xfffffff0;

/// Below the kernel's ephemeral ports, and below torchrun's defaults.
constexpr int kFirstPort = 20000, kPorts = 9000;

[[noreturn]] void reject(const std::string& name, const std::string& expected,
                         const std::optional<std::string>& value) {
  throw UsageError(name + ": expected " + expected + " in a Slurm job step, got " +
                   (value ? quoted(*value) : "no such variable"));
}

std::int64_t read_number(const EnvLookup& environment, const std::string& name, std::int64_t low,
                         std::int64_t high) {
  const auto text = environment(name);
  const auto value = text ? parse_integer(*text, low, high) : std::nullopt;
  if (!value) reject(name, "a number from " + std::to_string(low) + " to " + std::to_string(high), text);
  return *value;
}

/// Reads the nodes' names; this node's must be at SLURM_NODEID.
void read_nodes(const EnvLookup& environment, SlurmStep& step) {
  const auto size = static_cast<std::size_t>(read_number(environment, "SLURM_STEP_NUM_NODES", 1, step.tasks));
  const auto text = environment("SLURM_STEP_NODELIST");
  const auto names = text ? expand_host_list(*text, kMaxTasks) : std::nullopt;
  if (!names) reject("SLURM_STEP_NODELIST", "a host list such as n[1-3,7]", text);
  if (names->size() != size)
    reject("SLURM_STEP_NODELIST", "as many names as SLURM_STEP_NUM_NODES=" + std::to_string(size), text);
  step.nodes = *names;
  step.node = static_cast<int>(read_number(environment, "SLURM_NODEID", 0, static_cast<int>(size) - 1));
  const std::string& listed = step.nodes[static_cast<std::size_t>(step.node)];
  const auto own = environment("SLURMD_NODENAME");
  if (own != listed)
    reject("SLURMD_NODENAME",
           quoted(listed) + ", node " + std::to_string(step.node) + " of SLURM_STEP_NODELIST,", own);
}

void read_node_tasks(const EnvLookup& environment, SlurmStep& step) {
  const std::string name = "SLURM_STEP_TASKS_PER_NODE";
  const auto text = environment(name);
  const auto counts = text ? expand_counts(*text, step.nodes.size()) : std::nullopt;
  if (!counts) reject(name, "numbers of tasks such as 2(x3),1", text);
  std::int64_t sum = 0;
  for (const int count : *counts) sum += count;
  if (counts->size() != step.nodes.size() || sum != step.tasks)
    reject(name, std::to_string(step.tasks) + " tasks on " + std::to_string(step.nodes.size()) + " nodes",
           text);
  step.node_tasks = (*counts)[static_cast<std::size_t>(step.node)];
  step.node_task = static_cast<int>(read_number(environment, "SLURM_LOCALID", 0, step.node_tasks - 1));
}

/// The number of this process's step; none: there is no step.
std::optional<std::int64_t> step_number(const EnvLookup& environment) {
  if (!environment("SLURM_STEP_ID")) return {};
  const auto number = read_number(environment, "SLURM_STEP_ID", 0, kLastId);
  return number < kFirstSpecialStep ? std::optional(number) : std::nullopt;
}

bool sets_slurm_aside(const settings::Values& values, const EnvLookup& environment) {
  for (const char* name : {"nnodes", "node-rank", "rdzv-endpoint", "master-addr"})
    if (values.given(name)) return true;
  // Then this is a worker of another ddprun, and the step's tasks are that job's.
  return values.is_true("standalone") || environment(kJobIdVariable);
}

/// srun starts one task per worker: this ddprun starts one worker and cannot see the others on its node.
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

std::optional<SlurmStep> slurm_step(const EnvLookup& environment) {
  const auto number = step_number(environment);
  if (!number) return {};
  SlurmStep step;
  step.tasks = static_cast<int>(read_number(environment, "SLURM_STEP_NUM_TASKS", 1, kMaxTasks));
  if (step.tasks == 1) return {};
  // If they differ, the step's variables belong to another job, which submitted this one.
  if (const auto tasks = environment("SLURM_NTASKS"); tasks && *tasks != std::to_string(step.tasks))
    reject("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS=" + std::to_string(step.tasks), tasks);
  const auto job = read_number(environment, "SLURM_JOB_ID", 1, kLastId);
  step.id = std::to_string(job) + "." + std::to_string(*number);
  // Neighbouring jobs get ports that are far apart, so that their steps do not share one.
  step.port = kFirstPort + static_cast<int>((job * 131 + *number) % kPorts);
  read_nodes(environment, step);
  read_node_tasks(environment, step);
  step.task = static_cast<int>(read_number(environment, "SLURM_PROCID", 0, step.tasks - 1));
  return step;
}

int slurm_idle_allocation(const EnvLookup& environment) {
  if (step_number(environment)) return 1;
  const auto nodes = parse_integer(environment("SLURM_JOB_NUM_NODES").value_or(""), 1, kMaxTasks);
  return static_cast<int>(nodes.value_or(1));
}

std::optional<SlurmStep> job_step(const settings::Values& values, const EnvLookup& environment) {
  if (sets_slurm_aside(values, environment)) return {};
  return slurm_step(environment);
}

void apply_step(const SlurmStep& step, const settings::Values& values, Options& options) {
  NodesOptions& nodes = options.nodes;
  const std::string& name = step.nodes[static_cast<std::size_t>(step.node)];
  // On one node nobody connects from outside.
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
