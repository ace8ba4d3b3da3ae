#include "launcher/launch_plan.h"

#include <algorithm>
#include <string_view>

#include "common/errors.h"
#include "common/worker_env.h"

namespace ddprun {
namespace {

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

bool is_set(const std::vector<std::string>& environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(),
                     [&](const std::string& variable) { return name_of(variable) == name; });
}

/// The part of the environment that every worker of the node shares.
std::vector<std::string> common_environment(const std::vector<std::string>& inherited, int workers,
                                            const Topology& topology) {
  const auto& ours = worker_variable_names();
  std::vector<std::string> env;
  for (const std::string& variable : inherited)
    if (std::find(ours.begin(), ours.end(), name_of(variable)) == ours.end()) env.push_back(variable);
  if (!is_set(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) env.push_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  if (workers > 1 && !is_set(env, "OMP_NUM_THREADS"))
    env.push_back("OMP_NUM_THREADS=" + std::to_string(std::max(1, topology.cpus / workers)));
  return env;
}

WorkerEnv worker_variables(const Round& round, int local_rank) {
  WorkerEnv env;
  env.rank = env.role_rank = round.first_rank + local_rank;
  env.local_rank = local_rank;
  env.group_rank = round.group_rank;
  env.world_size = env.role_world_size = round.world_size;
  env.local_world_size = round.local_world_size;
  env.group_world_size = round.group_world_size;
  env.master_addr = round.master_addr;
  env.master_port = round.master_port;
  env.run_id = round.run_id;
  return env;
}

}  // namespace

int worker_count(const WorkersWanted& wanted, const Topology& topology) {
  using Kind = WorkersWanted::Kind;
  if (wanted.kind == Kind::kCount) return wanted.count;
  if (wanted.kind == Kind::kGpu && topology.gpus == 0)
    throw UsageError("--nproc-per-node: expected a visible NVIDIA GPU for 'gpu', got none (try cpu or auto)");
  const bool by_gpu = wanted.kind == Kind::kGpu || (wanted.kind == Kind::kAuto && topology.gpus > 0);
  return std::min(by_gpu ? topology.gpus : topology.cpus, kMaxWorkersPerNode);
}

std::vector<WorkerSpec> plan_workers(const LaunchContext& context, const Round& round,
                                     const Topology& topology) {
  const auto common = common_environment(context.environment, round.local_world_size, topology);
  std::vector<WorkerSpec> specs(static_cast<std::size_t>(round.local_world_size));
  for (int local_rank = 0; local_rank < round.local_world_size; ++local_rank) {
    WorkerEnv variables = worker_variables(round, local_rank);
    WorkerSpec& spec = specs[static_cast<std::size_t>(local_rank)];
    spec.rank = variables.rank;
    spec.local_rank = local_rank;
    spec.argv = context.program;
    spec.error_file = context.error_folder / ("error_" + std::to_string(local_rank) + ".json");
    spec.reads_stdin = local_rank == 0;
    if (variables.rank == 0 && context.store_fd >= 0) spec.store_fd = context.store_fd;
    variables.error_file = spec.error_file.string();
    variables.store_fd = spec.store_fd;
    spec.env = common;
    for (const auto& [name, value] : to_env(variables)) spec.env.push_back(name + "=" + value);
  }
  return specs;
}

}  // namespace ddprun
