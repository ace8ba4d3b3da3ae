#include "launcher/workers/job_processes.h"

#include <unistd.h>

#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {
namespace {

struct ProcessState {
  std::string name;
  char state = 0;
  pid_t parent = 0;
  pid_t group = 0;
};

std::string read_proc(pid_t pid, const char* file) {
  return read_or_empty("/proc/" + std::to_string(pid) + "/" + file);
}

/// nullopt for a missing process or a zombie.
std::optional<ProcessState> living(pid_t pid) {
  // "PID (NAME) STATE PPID PGRP ...", where NAME may contain anything
  const std::string line = read_proc(pid, "stat");
  const auto name_begin = line.find('('), name_end = line.rfind(") ");
  if (name_begin == std::string::npos || name_end == std::string::npos) return {};
  ProcessState process;
  process.name = line.substr(name_begin + 1, name_end - name_begin - 1);
  if (std::sscanf(line.c_str() + name_end + 2, "%c %d %d", &process.state, &process.parent, &process.group) !=
      3)
    return {};
  if (process.state == 'Z' || process.state == 'X') return {};
  return process;
}

/// The value of a variable in a process's environment.
std::optional<std::string> value_in(const std::vector<std::string>& environment, const std::string& name) {
  for (const std::string& variable : environment)
    if (variable.starts_with(name + "=")) return variable.substr(name.size() + 1);
  return {};
}

}  // namespace

bool is_of_job(const std::string& environment, const std::string& job_id,
               const std::optional<std::string>& slurm_job) {
  const auto variables = split(environment, '\0');
  if (value_in(variables, kJobIdVariable).value_or("").find(job_id) == std::string::npos) return false;
  const auto theirs = value_in(variables, "SLURM_JOB_ID");
  return !theirs || theirs == slurm_job;
}

std::vector<int> numbers_in(const std::string& folder) {
  std::vector<int> numbers;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
    if (const auto number = parse_integer(entry.path().filename().string(), 0, INT_MAX))
      numbers.push_back(*number);
  return numbers;
}

std::vector<pid_t> group_members(pid_t group) {
  std::vector<pid_t> members;
  for (const pid_t pid : numbers_in("/proc"))
    if (const auto process = living(pid); process && process->group == group) members.push_back(pid);
  return members;
}

std::vector<pid_t> processes_of_job(const std::string& job_id) {
  std::vector<pid_t> found;
  const auto slurm_job = process_env("SLURM_JOB_ID");
  for (const pid_t pid : numbers_in("/proc")) {
    if (pid == ::getpid() || !is_of_job(read_proc(pid, "environ"), job_id, slurm_job)) continue;
    // The guard of an inner job kills that job's processes, then exits.
    if (const auto process = living(pid); process && process->name != "ddprun-guard") found.push_back(pid);
  }
  return found;
}

std::vector<pid_t> children(const std::function<bool(pid_t)>& is_wanted) {
  std::vector<pid_t> found;
  // Missing if the kernel lacks CONFIG_PROC_CHILDREN.
  std::ifstream list("/proc/self/task/" + std::to_string(::getpid()) + "/children");
  if (list) {
    for (pid_t pid = 0; list >> pid;)
      if (is_wanted(pid) && living(pid)) found.push_back(pid);
    return found;
  }
  for (const pid_t pid : numbers_in("/proc"))
    if (const auto process = living(pid); process && process->parent == ::getpid() && is_wanted(pid))
      found.push_back(pid);
  return found;
}

bool would_die_of(pid_t pid, int signal) {
  const std::string text = read_proc(pid, "status");
  unsigned long long spared = 0;
  for (const char* name : {"\nSigBlk:", "\nSigIgn:", "\nSigCgt:"})
    if (const auto at = text.find(name); at != std::string::npos)
      spared |= std::strtoull(text.c_str() + at + std::strlen(name), nullptr, 16);
  return signal != SIGWINCH && (spared >> (signal - 1) & 1) == 0;
}

std::optional<ProcessUse> process_use(pid_t pid) {
  const std::string text = read_proc(pid, "stat");
  const auto name_end = text.rfind(')');  // the name may contain spaces and ')'
  if (name_end == std::string::npos) return std::nullopt;
  unsigned long long user = 0, system = 0;
  long long pages = 0;
  char state = 'Z';
  // Fields 3, 14, 15 and 24 of proc(5).
  const int fields =
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %*u "
                  "%*u %lld",
                  &state, &user, &system, &pages);
  if (fields != 4 || state == 'Z' || state == 'X') return std::nullopt;
  return ProcessUse{static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK)),
                    pages * ::sysconf(_SC_PAGESIZE), state == 'T' || state == 't'};
}

}  // namespace ddprun::launcher
