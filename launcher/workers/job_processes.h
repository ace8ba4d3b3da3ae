#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace ddprun::launcher {

/// The variable by which all processes of a job can be told from others, whatever they have done to their
/// parents, groups and sessions. A job inside a job appends: "OUTER/INNER".
inline constexpr char kJobIdVariable[] = "DDPRUN_JOB_ID";

/// The living members of a process group. Looks at every process: for rare moments.
std::vector<pid_t> group_members(pid_t group);

/// The living processes, but not ourselves and no guard, whose environment at their start named this job.
/// Looks at every process.
std::vector<pid_t> processes_of_job(const std::string& job_id);

/// Our living children.
std::vector<pid_t> children();

}  // namespace ddprun::launcher
