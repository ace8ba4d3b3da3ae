#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include "launcher/cli/node_options.h"
#include "launcher/cli/options.h"

namespace ddprun::launcher {
namespace {

std::string shown_tasks(const MpiTask& task) {
  return std::string(task.launcher->name) + " starts " + std::to_string(task.tasks) + " tasks on " +
         std::to_string(task.nodes()) + (task.nodes() == 1 ? " node" : " nodes") + " (" +
         task.launcher->tasks + ")";
}

int read_place(const TaskLauncher& launcher, const char* name, int low, int high,
               const EnvLookup& environment) {
  const auto text = environment(name);
  const auto value = text ? parse_integer(*text, low, high) : std::nullopt;
  if (value) return *value;
  const char* marker = set_variable(launcher, environment);
  std::vector<const char*> all;
  for (const char* variable :
       {launcher.tasks, launcher.task, launcher.node_tasks, launcher.node_task, launcher.nodes})
    if (variable != nullptr) all.push_back(variable);
  reject_variable(name, "a number from " + std::to_string(low) + " to " + std::to_string(high),
                  {std::string("under ") + launcher.name, launcher.name, marker, all}, environment);
}

bool ignores_launchers(const settings::Values& values, const EnvLookup& environment) {
  return values.given("nnodes") || values.given("node-rank") || values.is_true("standalone") ||
         environment(kJobIdVariable);  // a worker's own ddprun
}

/// A task of two launchers, one inside the other, would have to guess which one means this job.
[[noreturn]] void reject_both(const std::string& one, const std::string& other) {
  throw UsageError(one + ": contradicts " + other +
                   ", which another launcher has set; say which nodes the job has (--nnodes, --node-rank, "
                   "--master-addr), or use --standalone for a job on this node alone");
}

/// Whether another launcher says of the task what this one says.
void check_agreement(const MpiTask& task, const EnvLookup& environment) {
  for (const TaskLauncher& other : kTaskLaunchers) {
    if (&other == task.launcher || set_variable(other, environment) == nullptr) continue;
    const auto tasks = environment(other.tasks), number = environment(other.task);
    if ((tasks && *tasks != std::to_string(task.tasks)) || (number && *number != std::to_string(task.task)))
      reject_both(tasks ? other.tasks : other.task, task.launcher->tasks);
  }
}

/// The tasks of a node must be neighbours: where the nodes differ, one task cannot know where it is.
void check_layout(const MpiTask& task) {
  const int first = task.task - task.node_task;  // of its node
  if (first >= 0 && first % task.node_tasks == 0 && task.tasks % task.node_tasks == 0) return;
  throw UsageError(std::string(task.launcher->task) +
                   ": expected the same number of tasks on each node, numbered node by " +
                   "node, or one task on each; got task " + std::to_string(task.task) + " of " +
                   std::to_string(task.tasks) + ", number " + std::to_string(task.node_task) + " of the " +
                   std::to_string(task.node_tasks) + " on its node");
}

std::string word_of(std::string_view text, std::size_t number = 0) {
  for (std::size_t begin = 0; begin < text.size();) {
    const auto end = std::min(text.find_first_of(" \t\n", begin), text.size());
    if (end > begin && number-- == 0) return std::string(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return "";
}

/// How many different words there are among each step-th: hosts of a list that names some more than once.
std::size_t different_words(std::string_view text, std::size_t step = 1) {
  std::set<std::string> words;
  for (std::size_t i = 0; !word_of(text, i).empty(); i += step) words.insert(word_of(text, i));
  return words.size();
}

/// "1.0;tcp://10.0.0.1,10.1.0.1:5;tcp6://[fd00::1]:5": 10.0.0.1
std::string host_of_uri(const std::string& uri) {
  const auto begin = uri.find("tcp://");
  if (begin == std::string::npos) return "";
  return uri.substr(begin + 6, uri.find_first_of(",:;", begin + 6) - begin - 6);
}

/// "prterun-HOST-PID@1"
std::string host_of_namespace(const std::string& text) {
  const auto begin = text.find('-'), end = text.rfind('-');
  return text.find('@') == std::string::npos || begin >= end ? "" : text.substr(begin + 1, end - begin - 1);
}

/// A host, and the variable that names it.
using NamedHost = std::pair<std::string, std::string>;

/// Where task 0 runs, as far as variables say: the first host of the batch job, or else mpirun's.
NamedHost first_host(const MpiTask& task, const EnvLookup& environment) {
  const auto value = [&](const char* name) { return environment(name).value_or(""); };
  const bool jsrun = task.launcher == &kTaskLaunchers[0];  // the first host is the batch script's
  const auto slurm = expand_host_list(value("SLURM_JOB_NODELIST"), kMaxNodes);
  const NamedHost hosts[] = {
      {slurm ? slurm->front() : "", "SLURM_JOB_NODELIST"},
      {value("PBS_NODEFILE").empty() ? "" : word_of(read_or_empty(value("PBS_NODEFILE"))), "PBS_NODEFILE"},
      // Host and slots, host and slots, ...
      {word_of(value("LSB_MCPU_HOSTS"), jsrun ? 2 : 0), "LSB_MCPU_HOSTS"},
      {host_of_uri(value("OMPI_MCA_orte_hnp_uri")), "OMPI_MCA_orte_hnp_uri"},
      {host_of_namespace(value("PMIX_NAMESPACE")), "PMIX_NAMESPACE"},
  };
  for (const NamedHost& host : hosts)
    if (parse_host(host.first)) return host;
  return {};
}

[[noreturn]] void reject_host(const MpiTask& task, const std::string& why) {
  throw UsageError(shown_tasks(task) + ", " + why +
                   ": add --master-addr=HOST or --rdzv-endpoint=HOST:PORT, " +
                   (task.task == 0 ? "such as --master-addr=" + host_name()
                                   : "with the host of task 0 (" + std::string(task.launcher->task) + ")"));
}

std::uint32_t hash_of(std::string_view text) {  // FNV-1a: the same in every build
  std::uint32_t hash = 2166136261;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619;
  return hash;
}

/// What tells this job from others, the same in all its tasks; nullopt: no variable does.
std::optional<std::uint32_t> job_of(const MpiTask& task, const EnvLookup& environment) {
  std::vector<const char*> names;
  if (task.launcher->job != nullptr) names.push_back(task.launcher->job);
  if (task.nodes() == 1) names.push_back(kTaskSetter);
  for (const char* batch_job : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"}) names.push_back(batch_job);
  for (const char* name : names)
    if (const auto value = environment(name)) return hash_of(*value);
  return {};
}

void check_mpi_flags(const MpiTask& task, const settings::Values& values, const Options& options) {
  const std::string expected =
      "one task per node (mpirun --map-by ppr:1:node, mpiexec -ppn 1), because " + shown_tasks(task);
  if (options.nodes.spares > 0) values.reject("spares", "0, or " + expected);
  const WorkersWanted& wanted = options.nproc_per_node;
  if (wanted.kind != WorkersWanted::Kind::kCount || wanted.count != 1)
    values.reject("nproc-per-node", "1, or " + expected);
  for (const char* flag : {"virtual-local-rank", "numa-binding"})
    if (values.given(flag) && values.text(flag) != "false") values.reject(flag, expected);
}

}  // namespace

std::optional<MpiTask> mpi_task(const settings::Values& values, const EnvLookup& environment) {
  if (ignores_launchers(values, environment)) return {};
  const auto launcher = std::ranges::find_if(
      kTaskLaunchers, [&](const TaskLauncher& each) { return set_variable(each, environment) != nullptr; });
  if (launcher == std::end(kTaskLaunchers)) return {};
  const auto number = [&](const char* name, int low, int high) {
    return read_place(*launcher, name, low, high, environment);
  };
  MpiTask task;
  task.launcher = launcher;
  task.tasks = number(launcher->tasks, 1, kMaxNodes);
  if (task.tasks == 1) return {};
  task.task = number(launcher->task, 0, task.tasks - 1);
  if (const auto step = slurm_step(environment)) {
    if (step->tasks == task.tasks && step->task == task.task) return {};  // srun's, and srun tells more
    reject_both("SLURM_STEP_NUM_TASKS", launcher->tasks);
  }
  check_agreement(task, environment);
  if (launcher->node_tasks != nullptr) {
    task.node_tasks = number(launcher->node_tasks, 1, task.tasks);
  } else {
    const int nodes = number(launcher->nodes, 1, task.tasks);
    task.node_tasks = (task.tasks + nodes - 1) / nodes;
  }
  task.node_task = number(launcher->node_task, 0, task.node_tasks - 1);
  check_layout(task);
  task.job = job_of(task, environment);
  return task;
}

void apply_task(const MpiTask& task, const settings::Values& values, const EnvLookup& environment,
                std::vector<Endpoint> endpoints, int port, Options& options) {
  NodesOptions& nodes = options.nodes;
  if (endpoints.empty()) {
    const auto [host, source] =
        task.nodes() == 1 ? NamedHost("127.0.0.1", "") : first_host(task, environment);
    if (host.empty()) reject_host(task, "but no variable says where task 0 runs");
    if (task.task == 0 && !leads_to_this_host(host))
      reject_host(task, "and task 0 does not run on " + single_quoted(host) + " (" + source + ")");
    endpoints.push_back({host, port});
  }
  nodes.endpoint = endpoints.front();
  nodes.successors.assign(endpoints.begin() + 1, endpoints.end());
  const bool hosts = task.task == 0;
  if (nodes.is_host.value_or(hosts) != hosts)
    values.reject("rdzv-conf", std::string("is_host=") + (hosts ? "true" : "false") + " in task " +
                                   std::to_string(task.task));
  nodes.is_host = hosts;
  // Tasks that count the nodes differently do not meet.
  if (options.run_id.empty())
    options.run_id = "mpi-" + std::to_string(task.job ? *task.job : hash_of(joined(options.program, "\n"))) +
                     "-" + std::to_string(task.nodes()) + "x" + std::to_string(task.node_tasks);
  if (task.node_tasks == 1) {
    if (task.task < nodes.max_nodes) nodes.node_rank = task.task;  // else a spare
    return;
  }
  check_mpi_flags(task, values, options);
  if (task.task == 0)
    options.notes.push_back(shown_tasks(task) +
                            ", which are the workers of one job; with --standalone each is a job of its own");
  nodes.node_rank = task.task;
  nodes.node_name = host_name() + " task " + std::to_string(task.task);
  nodes.first_local_rank = task.node_task;
  nodes.local_world_size = task.node_tasks;
  nodes.group_rank = task.task / task.node_tasks;
  nodes.group_world_size = task.nodes();
}

std::string idle_hosts(const EnvLookup& environment) {
  for (const TaskLauncher& launcher : kTaskLaunchers)
    if (set_variable(launcher, environment) != nullptr) return "";  // it has started a single task
  const auto value = [&](const char* name) { return environment(name).value_or(""); };
  const auto one_of_hosts = [](std::size_t count, const std::string& batch_system, const char* variable) {
    return "one of the " + std::to_string(count) + " hosts that " + batch_system + " has allocated (" +
           variable + ")";
  };
  // The file is on the first host only.
  const std::string file = value("PBS_NODEFILE");
  const std::size_t of_pbs = file.empty() ? 0 : different_words(read_or_empty(file));
  if (of_pbs > 1) return one_of_hosts(of_pbs, "PBS", "PBS_NODEFILE");
  if (const auto number = parse_integer(value("PBS_NODENUM"), 1, kMaxNodes))
    return "host " + std::to_string(*number) + " of those that PBS has allocated (PBS_NODENUM)";
  if (const std::size_t of_lsf = different_words(value("LSB_MCPU_HOSTS"), 2); of_lsf > 1)
    return one_of_hosts(of_lsf, "LSF", "LSB_MCPU_HOSTS");
  if (const auto rank = environment("PMIX_RANK"))
    return "task " + printable(*rank) + " (PMIX_RANK), because no variable says how many tasks there are";
  return "";
}

}  // namespace ddprun::launcher
