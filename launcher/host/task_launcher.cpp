#include "launcher/host/task_launcher.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include <ddprun/common/files.h>
#include "launcher/host/processes.h"

namespace ddprun::launcher {
namespace {

std::string proc_file(pid_t pid, const char* name) {
  return read_or_empty("/proc/" + std::to_string(pid) + "/" + name);
}

/// Whether the process had this variable, with this value, when it started.
bool had(const std::string& environ, const char* name, const std::string& value) {
  const std::string entry = std::string(name) + "=" + value;
  return ('\0' + environ).find('\0' + entry + '\0') != std::string::npos;
}

bool is_batch_daemon(const std::string& name) {
  constexpr std::string_view kDaemons[] = {"slurmstepd", "pbs_mom", "sbatchd", "res"};
  return std::ranges::find(kDaemons, name) != std::end(kDaemons);
}

/// Where a variable of this process comes from.
struct Origin {
  std::optional<Ancestor> setter;  ///< the nearest ancestor without it; none: not visible, as in a container
  bool by_mpi_program = false;     ///< a process in between has loaded an MPI library
};

Origin origin_of(const char* name, const std::string& value) {
  Origin origin;
  for (const Ancestor& ancestor : ancestors_of(::getpid())) {
    if (!had(proc_file(ancestor.pid, "environ"), name, value)) {
      origin.setter = ancestor;
      break;
    }
    origin.by_mpi_program |= proc_file(ancestor.pid, "maps").find("/libmpi") != std::string::npos;
  }
  return origin;
}

}  // namespace

const char* set_variable(const TaskLauncher& launcher, const EnvLookup& environment) {
  const std::string_view own = launcher.task;
  for (const char* name : {launcher.task, launcher.tasks, launcher.node_task, launcher.node_tasks})
    // PMI_SIZE alone says nothing of PALS.
    if (name != nullptr && own.starts_with(std::string_view(name).substr(0, 4)) && environment(name))
      return name;
  return nullptr;
}

EnvLookup task_environment(const EnvLookup& environment) {
  std::set<std::string> hidden;
  std::string setter;
  for (const TaskLauncher& launcher : kTaskLaunchers) {
    const char* variable = set_variable(launcher, environment);
    if (variable == nullptr) continue;
    const Origin origin = origin_of(variable, *environment(variable));
    if (origin.by_mpi_program || (origin.setter && is_batch_daemon(origin.setter->name))) {
      for (const char* name : {launcher.task, launcher.tasks, launcher.node_task, launcher.node_tasks})
        if (name != nullptr) hidden.insert(name);
      hidden.insert("PMIX_RANK");
      if (origin.by_mpi_program) hidden.insert({"PBS_NODEFILE", "PBS_NODENUM", "LSB_MCPU_HOSTS"});
    } else if (origin.setter) {
      if (setter.empty())
        setter = std::to_string(origin.setter->pid) + "." + std::to_string(origin.setter->start);
      const auto step = environment("SLURM_STEP_ID");
      if (step && had(proc_file(origin.setter->pid, "environ"), "SLURM_STEP_ID", *step))
        hidden.insert("SLURM_STEP_ID");
    }
  }
  return [=](const std::string& name) -> std::optional<std::string> {
    if (name == kTaskSetter) return setter.empty() ? std::nullopt : std::optional(setter);
    return hidden.contains(name) ? std::nullopt : environment(name);
  };
}

}  // namespace ddprun::launcher
