#include "launcher/host/processes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>

#include <ddprun/common/files.h>
#include <ddprun/common/launch_command.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace {

/// Its inode; empty if unknown.
std::string pid_namespace() {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? std::to_string(info.st_ino) : "";
}

}  // namespace

std::optional<ProcessStat> parse_stat(const std::string& line) {
  const auto name_begin = line.find('('), name_end = line.rfind(')');  // the name may contain anything
  if (name_begin == std::string::npos || name_end == std::string::npos || name_end < name_begin) return {};
  ProcessStat stat;
  stat.name = line.substr(name_begin + 1, name_end - name_begin - 1);
  // Fields 3 to 5, 9, 14, 15, 22 and 24 of proc(5).
  const int fields = std::sscanf(line.c_str() + name_end + 1,
                                 " %c %d %d %*d %*d %*d %u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d "
                                 "%*d %llu %*u %lld",
                                 &stat.state, &stat.parent, &stat.group, &stat.flags, &stat.user,
                                 &stat.system, &stat.start, &stat.pages);
  return fields == 8 ? std::optional(stat) : std::nullopt;
}

std::optional<ProcessStat> stat_of(pid_t pid) {
  return parse_stat(read_or_empty("/proc/" + std::to_string(pid) + "/stat"));
}

std::vector<Ancestor> ancestors_of(pid_t process) {
  std::vector<Ancestor> found;
  auto next = stat_of(process);
  while (next && next->parent > 0) {
    const pid_t pid = next->parent;
    next = stat_of(pid);
    if (next) found.push_back({pid, next->start, next->name});
  }
  return found;
}

pid_t slurm_step_of(const std::vector<Ancestor>& ancestors, pid_t end) {
  for (const Ancestor& ancestor : ancestors) {
    if (ancestor.pid == end) return 0;
    if (ancestor.name == "slurmstepd") return ancestor.pid;
  }
  return 0;
}

bool is_cgroup_of_slurm_job(const std::string& cgroup, const std::string& job) {
  return cgroup.find("/job_" + job + "/") != std::string::npos ||
         cgroup.find("/job_" + job + "\n") != std::string::npos;
}

std::string launcher_mark(pid_t ddprun, const std::optional<std::string>& slurm_job) {
  return slurm_job.value_or("") + ":" + pid_namespace() + ":" + std::to_string(ddprun) + ":" +
         std::to_string(stat_of(ddprun).value_or(ProcessStat{}).start);
}

bool is_inside_job_of(const std::string& mark, const std::optional<std::string>& slurm_job,
                      const std::vector<Ancestor>& ancestors) {
  const std::vector<std::string> parts = split(mark, ':');
  if (parts.size() != 4) return false;
  const auto pid = parse_integer(parts[2], 1, INT_MAX);
  if (!pid) return false;
  if (parts[1] != pid_namespace()) return parts[0] == slurm_job.value_or("");
  return slurm_step_of(ancestors, *pid) == 0 && std::ranges::any_of(ancestors, [&](const Ancestor& ancestor) {
           return ancestor.pid == *pid && std::to_string(ancestor.start) == parts[3];
         });
}

void forget_other_job() {
  constexpr std::size_t kInFolderNames = 8;  // characters of a job's id
  const std::string job = process_env(kJobIdVariable).value_or("");
  const auto mark = process_env(kLauncherVariable);
  if (mark && is_inside_job_of(*mark, process_env("SLURM_JOB_ID"), ancestors_of(::getpid()))) return;
  const std::string id = job.substr(job.rfind('/') + 1).substr(0, kInFolderNames);
  for (const char* name : {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_TIMER_FILE"})
    if (id.size() == kInFolderNames && process_env(name).value_or("").find(id) != std::string::npos)
      ::unsetenv(name);
  ::unsetenv(kJobIdVariable);
  ::unsetenv(kSharedJobIdVariable);
  ::unsetenv(kLauncherVariable);
  ::unsetenv(kCommandVariable);
}

}  // namespace ddprun::launcher
