#include "launcher/job/attempt_report.h"

#include <cstdio>
#include <optional>
#include <string>

#include <ddprun/common/worker_env.h>
#include "launcher/failure/forward_error.h"
#include "launcher/job/conclusion.h"

namespace ddprun::launcher {

void report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom, JobRecord& record) {
  std::optional<FailureReport> report;
  if (const auto first = root_cause(attempt)) {
    report = make_report(job, attempt, *first, oom);
    const std::string text = describe(*report);
    job.outputs.console().make_way();
    std::fwrite(text.data(), 1, text.size(), stderr);
    forward_error(*report, process_env("TORCHELASTIC_ERROR_FILE"));
  }
  record.attempts.push_back(make_record(job, attempt, report));
  record.outcome = record.attempts.back().outcome;
}

void check_nothing_failed(const Job& job, const Attempt& attempt) {
  if (const auto* failed = std::get_if<StartFailed>(&attempt.event))
    throw start_error(job.program.path, attempt.specs[failed->index].rank, failed->failure);
  if (attempt.left.empty()) return;
  std::string pids;
  for (const pid_t pid : attempt.left) pids += " " + std::to_string(pid);
  throw LaunchError(LaunchError::kOwnFailure, "processes that SIGKILL did not end:" + pids);
}

}  // namespace ddprun::launcher
