#pragma once

#include "launcher/failure/job_record.h"
#include "launcher/failure/oom.h"
#include "launcher/job/attempt.h"

namespace ddprun::launcher {

/// Tells the user, the one who started ddprun, and the record how an attempt ended.
void report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom, JobRecord& record);

/// throws  LaunchError if a worker could not be started, or if not all processes could be ended
void check_nothing_failed(const Job& job, const Attempt& attempt);

}  // namespace ddprun::launcher
