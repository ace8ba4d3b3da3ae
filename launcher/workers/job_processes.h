#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ddprun::launcher {

/// The living members of a process group. Looks at every process: for rare moments.
std::vector<pid_t> group_members(pid_t group);

/// The living processes, but not ourselves and no guard, whose environment at their start named this job.
/// Looks at every process.
std::vector<pid_t> processes_of_job(const std::string& job_id);

/// Our living children.
std::vector<pid_t> children();

}  // namespace ddprun::launcher
