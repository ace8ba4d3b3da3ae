#include "launcher/host/outer_job.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace {

struct Origin {
  Ancestor self;
  pid_t parent = 0;
};

/// Zeros if there is no such process.
Origin origin_of(pid_t pid) {
  const std::string line = read_or_empty("/proc/" + std::to_string(pid) + "/stat");
  // The name may contain spaces and ')'.
  const auto name_begin = line.find('('), name_end = line.rfind(')');
  Origin origin{{pid, 0, {}}, 0};
  if (name_begin == std::string::npos || name_end == std::string::npos) return origin;
  origin.self.name = line.substr(name_begin + 1, name_end - name_begin - 1);
  // Fields 4 and 22 of proc(5).
  std::sscanf(line.c_str() + name_end + 1,
              " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
              &origin.parent, &origin.self.start);
  return origin;
}

/// "pid:[4026531836]" without its letters; empty if unknown.
std::string pid_namespace() {
  std::error_code unknown;
  const std::string link = std::filesystem::read_symlink("/proc/self/ns/pid", unknown);
  return std::string(trimmed(link, "pid:[]"));
}

}  // namespace

std::vector<Ancestor> ancestors_of(pid_t process) {
  std::vector<Ancestor> found;
  for (Origin next = origin_of(origin_of(process).parent); next.self.pid > 0; next = origin_of(next.parent))
    found.push_back(next.self);
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
         std::to_string(origin_of(ddprun).self.start);
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
  if (is_inside_job_of(process_env(kLauncherVariable).value_or(""), process_env("SLURM_JOB_ID"),
                       ancestors_of(::getpid())))
    return;
  const std::string id = job.substr(job.rfind('/') + 1).substr(0, kInFolderNames);
  for (const char* name : {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_TIMER_FILE"})
    if (id.size() == kInFolderNames && process_env(name).value_or("").find(id) != std::string::npos)
      ::unsetenv(name);
  ::unsetenv(kJobIdVariable);
  ::unsetenv(kLauncherVariable);
}

}  // namespace ddprun::launcher
