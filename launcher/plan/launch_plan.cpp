#include "launcher/plan/launch_plan.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/launch_command.h>
#include <ddprun/common/text.h>
#include "launcher/host/gpu_list.h"
#include "launcher/host/processes.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kMostCommandBytes = std::size_t{32} << 10;  // a variable may have 128 KiB

std::string_view name_of(std::string_view variable) { return variable.substr(0, variable.find('=')); }

bool is_set(const std::vector<std::string>& environment, std::string_view name) {
  return std::any_of(environment.begin(), environment.end(),
                     [&](const std::string& variable) { return name_of(variable) == name; });
}

/// Whether the variable tells a vendor's runtime which GPUs to use.
bool chooses_gpus(std::string_view name) {
  return name == "CUDA_VISIBLE_DEVICES" || name == "HIP_VISIBLE_DEVICES" || name == "ROCR_VISIBLE_DEVICES" ||
         name == "ZE_AFFINITY_MASK";
}

/// Expands an argument as torchrun does.
std::string expanded(const std::string& text, const std::string& local_rank) {
  return substituted(text, [&](std::string_view name) {
    return name == "local_rank" ? std::optional(local_rank) : std::nullopt;
  });
}

WorkerEnv worker_variables(const JobPlan& plan, const Round& round, int local_rank) {
  WorkerEnv env;
  env.role_name = plan.options.role;
  env.restart_count = round.restart_count;
  env.round = round.number;
  env.max_restarts = round.max_restarts;
  env.rank = round.first_rank + local_rank - round.first_local_rank;
  env.role_rank = round.first_role_rank + local_rank - round.first_local_rank;
  env.local_rank = plan.placement.visible_gpus.empty() ? local_rank : 0;
  env.group_rank = round.group_rank;
  env.world_size = round.world_size;
  env.role_world_size = round.role_world_size;
  env.local_world_size = round.local_world_size;
  env.group_world_size = round.group_world_size;
  env.master_addr = round.master_addr;
  env.master_port = round.master_port;
  env.run_id = round.run_id;
  env.job = round.job.empty() ? plan.job_id : round.job;
  return env;
}

}  // namespace

bool may_hang(const Options& options) { return options.timeout || options.hang_timeout; }

int worker_count(const WorkersWanted& wanted, const Topology& topology) {
  using Kind = WorkersWanted::Kind;
  if (wanted.kind == Kind::kCount) return wanted.count;
  const bool by_gpu = wanted.kind == Kind::kGpu || wanted.kind == Kind::kXpu ||
                      (wanted.kind == Kind::kAuto && topology.gpus > 0);
  if (by_gpu && topology.gpus == 0)
    throw UsageError(std::string("--nproc-per-node: expected a visible ") +
                     (wanted.kind == Kind::kXpu ? "Intel GPU for 'xpu'" : "GPU for 'gpu'") +
                     ", got none (try cpu or auto)");
  return std::min(by_gpu ? topology.gpus : topology.cpus, kMaxWorkersPerNode);
}

std::optional<int> threads_per_worker(const std::vector<std::string>& environment, const Topology& topology,
                                      int workers) {
  if (workers == 1 || is_set(environment, "OMP_NUM_THREADS")) return {};
  return std::max(1, topology.cpus / workers);
}

std::string own_command(const Options& options, const std::vector<std::string>& environment) {
  std::string line;
  for (const std::string& variable : variables_of_flags(environment)) {
    const std::string shown = redacted_variable(variable);
    const auto value = shown.find('=') + 1;
    line += shown.substr(0, value) + shown_command({shown.substr(value)}) + " ";
  }
  auto words = options.hosts.words;
  const auto& program = options.program;  // it may also come from a --config file
  if (words.size() >= program.size() && std::equal(program.rbegin(), program.rend(), words.rbegin()))
    words.resize(words.size() - program.size());
  if (!words.empty() && words.back() == "--") words.pop_back();
  words.insert(words.begin(), ::program_invocation_name);
  return line + shown_command(words);
}

std::vector<std::string> common_environment(const JobPlan& plan, int workers) {
  const auto& ours = worker_variable_names();
  const bool by_gpus = !plan.options.gpus.empty();
  std::vector<std::string> env;
  std::string job = plan.job_id;
  for (const std::string& variable : plan.environment) {
    const std::string_view name = name_of(variable);
    if (name == kJobIdVariable) {
      job = variable.substr(std::min(name.size() + 1, variable.size())) + "/" + job;
    } else if (std::find(ours.begin(), ours.end(), name) == ours.end() && name != kTokenVariable &&
               name != kLauncherVariable && name != kCommandVariable &&
               ((plan.placement.visible_gpus.empty() && !by_gpus) || !chooses_gpus(name)) &&
               name != "DDPRUN_PREFLIGHT" && !(by_gpus && name == "DDPRUN_GPUS")) {
      // For a ddprun in a worker these two have been applied; one in the preflight would start itself
      // forever.
      env.push_back(variable);
    }
  }
  if (by_gpus && plan.placement.visible_gpus.empty()) {
    std::vector<std::string> names;
    for (const VisibleGpu& gpu : plan.topology.visible) names.push_back(gpu.name);
    env.push_back(plan.topology.gpu_variable + "=" + joined(names, ","));
  }
  env.push_back(std::string(kJobIdVariable) + "=" + job);
  env.push_back(std::string(kLauncherVariable) + "=" +
                launcher_mark(::getpid(), process_env("SLURM_JOB_ID")));
  // Of several ddpruns on this node none alone has started all that the variable would stand for.
  const bool is_alone = plan.options.nodes.local_world_size.value_or(workers) == workers;
  if (auto command = own_command(plan.options, plan.environment);
      is_alone && command.size() <= kMostCommandBytes)
    env.push_back(std::string(kCommandVariable) + "=" + std::move(command));
  std::string signals;
  for (const int signal : plan.options.ending_signals)
    signals += (signals.empty() ? "" : ",") + signal_name(signal);
  env.push_back("TORCHELASTIC_SIGNALS_TO_HANDLE=" + signals);
  if (!plan.timer_file.empty()) env.push_back("TORCHELASTIC_TIMER_FILE=" + plan.timer_file.string());
  if (may_hang(plan.options) && !is_set(env, "PYTHONFAULTHANDLER")) env.push_back("PYTHONFAULTHANDLER=1");
  if (!is_set(env, "TORCH_NCCL_ASYNC_ERROR_HANDLING")) env.push_back("TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
  if (numbered_by_speed(plan.topology.host_gpus) && !is_set(env, "CUDA_DEVICE_ORDER"))
    env.push_back("CUDA_DEVICE_ORDER=PCI_BUS_ID");  // as our placement and nvidia-smi count them
  if (const auto threads = threads_per_worker(env, plan.topology, workers))
    env.push_back("OMP_NUM_THREADS=" + std::to_string(*threads));
  return env;
}

std::vector<WorkerSpec> plan_workers(const JobPlan& job, const Round& round,
                                     const std::vector<std::filesystem::path>& error_files, int store_fd,
                                     const WorkerEnds& ends) {
  const auto common = common_environment(job, round.workers);
  const Placement& placement = job.placement;
  std::vector<WorkerSpec> specs(static_cast<std::size_t>(round.workers));
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const int local_rank = round.first_local_rank + static_cast<int>(i);
    WorkerEnv variables = worker_variables(job, round, local_rank);
    WorkerSpec& spec = specs[i];
    spec.rank = variables.rank;
    spec.local_rank = local_rank;
    for (const std::string& word : job.program.argv)
      spec.argv.push_back(job.options.expand ? expanded(word, std::to_string(local_rank)) : word);
    spec.error_file = error_files.at(i);
    spec.traceable = may_hang(job.options);
    spec.reads_stdin = i == 0;
    if (!placement.cpus.empty()) spec.cpus = placement.cpus[i];
    variables.error_file = spec.error_file.string();
    if (variables.rank == 0 && store_fd >= 0) variables.store_fd = store_fd;
    if (!ends.heartbeats.empty()) variables.heartbeat_fd = ends.heartbeats[i].get();
    if (!ends.statuses.empty()) variables.status_fd = ends.statuses[i].get();
    if (!ends.rounds.empty()) {
      variables.round_fd = ends.rounds[i].get();
      variables.state_fd = job.states[i].get();
    }
    for (const auto& fd : {variables.store_fd, variables.heartbeat_fd, variables.status_fd,
                           variables.round_fd, variables.state_fd})
      if (fd) spec.inherited_fds.push_back(*fd);
    spec.env = common;
    if (!placement.visible_gpus.empty())
      spec.env.push_back(job.topology.gpu_variable + "=" + placement.visible_gpus[i]);
    for (const auto& [name, value] : to_env(variables)) spec.env.push_back(name + "=" + value);
  }
  return specs;
}

}  // namespace ddprun::launcher
