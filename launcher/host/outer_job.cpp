#include "launcher/host/outer_job.h"

#include <unistd.h>

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

struct ProcessOrigin {
  pid_t parent = 0;
  unsigned long long start = 0;  ///< in ticks since the host started
};

/// Zeros if there is no such process.
ProcessOrigin origin_of(pid_t pid) {
  const std::string line = read_or_empty("/proc/" + std::to_string(pid) + "/stat");
  const auto name_end = line.rfind(')');  // the name may contain spaces and ')'
  ProcessOrigin origin;
  // Fields 4 and 22 of proc(5).
  if (name_end != std::string::npos)
    std::sscanf(line.c_str() + name_end + 1,
                " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu",
                &origin.parent, &origin.start);
  return origin;
}

/// "pid:[4026531836]" without its letters; empty if unknown.
std::string pid_namespace() {
  std::error_code unknown;
  const std::string link = std::filesystem::read_symlink("/proc/self/ns/pid", unknown);
  return std::string(trimmed(link, "pid:[]"));
}

bool is_ancestor(pid_t wanted, const std::string& start) {
  for (pid_t pid = ::getppid(); pid > 0; pid = origin_of(pid).parent)
    if (pid == wanted) return std::to_string(origin_of(pid).start) == start;
  return false;
}

}  // namespace

std::string launcher_mark(pid_t ddprun, const std::optional<std::string>& slurm_job) {
  return slurm_job.value_or("") + ":" + pid_namespace() + ":" + std::to_string(ddprun) + ":" +
         std::to_string(origin_of(ddprun).start);
}

bool is_inside_job_of(const std::string& mark, const std::optional<std::string>& slurm_job) {
  const std::vector<std::string> parts = split(mark, ':');
  if (parts.size() != 4 || parts[0] != slurm_job.value_or("")) return false;
  const auto pid = parse_integer(parts[2], 1, INT_MAX);
  return pid && (parts[1] != pid_namespace() || is_ancestor(*pid, parts[3]));
}

void forget_other_job() {
  constexpr std::size_t kInFolderNames = 8;  // characters of a job's id
  const std::string job = process_env(kJobIdVariable).value_or("");
  if (is_inside_job_of(process_env(kLauncherVariable).value_or(""), process_env("SLURM_JOB_ID"))) return;
  const std::string id = job.substr(job.rfind('/') + 1).substr(0, kInFolderNames);
  for (const char* name : {"TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_TIMER_FILE"})
    if (id.size() == kInFolderNames && process_env(name).value_or("").find(id) != std::string::npos)
      ::unsetenv(name);
  ::unsetenv(kJobIdVariable);
  ::unsetenv(kLauncherVariable);
}

}  // namespace ddprun::launcher
