#pragma once

#include <string>

#include "launcher/failure/oom.h"
#include "launcher/failure/result_json.h"
#include "launcher/job/attempt.h"

namespace ddprun::launcher {

// What an attempt that is over means.

/// Why it failed, in one line for other nodes: "rank 3 failed: exit code 7: out of range".
std::string describe_end(const Attempt& attempt);

/// Tells the user, the program that started ddprun, and the record how an attempt ended.
void report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom, JobRecord& record);

/// throws  LaunchError if a worker could not be started, or if not all processes could be ended
void check_nothing_failed(const Attempt& attempt);

}  // namespace ddprun::launcher
