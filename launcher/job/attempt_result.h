#pragma once

#include <string>

#include "launcher/failure/oom.h"
#include "launcher/failure/result_json.h"
#include "launcher/job/attempt.h"

namespace ddprun::launcher {

/// Why the attempt failed, in one line for other nodes: "rank 3 failed: exit code 7: out of range".
std::string describe_end(const Attempt& attempt);

/// The same for a failed worker that is to be replaced, and whether it ran out of memory.
std::string describe_loss(const Attempt& attempt, pid_t failed, OomWatch& oom);

/// Reports how an attempt ended: to the user, to the program that started ddprun, and in the record.
///
/// throws  LaunchError, after that, if a worker could not start, or if a process survived SIGKILL
void report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom, JobRecord& record);

}  // namespace ddprun::launcher
