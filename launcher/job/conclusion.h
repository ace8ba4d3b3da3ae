#pragma once

#include <optional>

#include "launcher/failure/failure_report.h"
#include "launcher/failure/job_record.h"
#include "launcher/failure/oom.h"
#include "launcher/host/launch_error.h"
#include "launcher/job/attempt.h"
#include "launcher/rendezvous/restart_policy.h"

namespace ddprun::launcher {

// What an attempt that is over means.

/// For the decision whether there is another.
///
/// workers  of the attempt, which may still be running
AttemptEnd attempt_end(const Attempt& attempt, const std::vector<Worker>& workers,
                       const std::string& program);

/// The same for other nodes, in one line: "rank 3 failed: exit code 7: out of range".
std::string describe_end(const Attempt& attempt, const std::vector<Worker>& workers,
                         const std::string& program);

/// The worker by which the attempt failed, as an index; none if it did not fail by a worker.
std::optional<std::size_t> root_cause(const Attempt& attempt);

/// The error that says why a worker could not be started.
LaunchError start_error(const std::string& program, int rank, const StartFailure& failure);

/// What the user is told of a failed worker. Looks at files that the worker left, and asks `oom`.
FailureReport make_report(const Job& job, const Attempt& attempt, std::size_t root_cause, OomWatch& oom);

/// For --result-json. report: of the attempt, if it failed by a worker
AttemptRecord make_record(const Job& job, const Attempt& attempt, const std::optional<FailureReport>& report);

}  // namespace ddprun::launcher
