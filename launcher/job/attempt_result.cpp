#include "launcher/job/attempt_result.h"

#include <cstdio>
#include <filesystem>
#include <optional>

#include <ddprun/common/host_name.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/launch_error.h"
#include "launcher/failure/core_file.h"
#include "launcher/failure/error_to_parent.h"
#include "launcher/failure/failure_report.h"

namespace ddprun::launcher {
namespace {

FailedWorker failed_worker(const Job& job, const Attempt& attempt, std::size_t index) {
  const WorkerSpec& spec = attempt.specs[index];
  const Worker& worker = attempt.workers[index];
  FailedWorker failed;
  failed.rank = spec.rank;
  failed.local_rank = spec.local_rank;
  failed.pid = worker.process.pid;
  failed.status = *worker.status;
  failed.time = job.clock.date(worker.ended);
  failed.error = read_error_file(spec.error_file);
  failed.asked_to_end = worker.asked_to_end;
  return failed;
}

void add_details(const Attempt& attempt, std::size_t index, OomWatch& oom, FailedWorker& failed) {
  const Worker& worker = attempt.workers[index];
  const bool killed = failed.status == ExitStatus::killed(SIGKILL) && !worker.asked_to_end;
  failed.out_of_memory = describe(oom.look(worker.process.pid), killed);
  if (failed.status.core_dumped) failed.core = core_place(worker.process.pid);
  failed.last_lines = attempt.last_lines[index];
  failed.logs = attempt.logs[index];
}

/// The failure report for the user. Reads the files that the worker left.
FailureReport make_report(const Job& job, const Attempt& attempt, std::size_t first, OomWatch& oom) {
  FailureReport report;
  report.program = job.options.program[0];
  report.host = host_name();
  report.attempt = attempt.round.number;
  report.max_restarts = attempt.round.max_restarts;
  report.root_cause = failed_worker(job, attempt, first);
  add_details(attempt, first, oom, report.root_cause);
  for (std::size_t i = 0; i < attempt.workers.size(); ++i) {
    const Worker& worker = attempt.workers[i];
    if (i == first || !worker.status) continue;
    if (worker.asked_to_end && ended_as_told(*worker.status, attempt.ending_signals)) {
      report.ended_by_us.push_back(attempt.specs[i].rank);
    } else if (!worker.status->success()) {
      report.others.push_back(failed_worker(job, attempt, i));
    }
  }
  return report;
}

/// report  of the attempt, if it failed by a worker
AttemptRecord make_record(const Job& job, const Attempt& attempt,
                          const std::optional<FailureReport>& report) {
  AttemptRecord record;
  record.number = attempt.round.number;
  record.port = attempt.round.master_port;
  record.start_ns = job.clock.ns(attempt.start);
  record.end_ns = job.clock.ns(attempt.end);
  record.outcome = attempt.outcome;
  if (report) record.root_cause_rank = report->root_cause.rank;
  for (std::size_t i = 0; i < attempt.workers.size(); ++i) {
    const Worker& worker = attempt.workers[i];
    WorkerRecord& entry = record.workers.emplace_back();
    entry.rank = attempt.specs[i].rank;
    entry.local_rank = attempt.specs[i].local_rank;
    entry.pid = worker.process.pid;
    entry.status = worker.status;
    entry.start_ns = job.clock.ns(worker.started);
    if (worker.status) entry.end_ns = job.clock.ns(worker.ended);
    entry.asked_to_end = worker.asked_to_end;
    if (!job.options.result_json.empty())  // only it shows the message
      if (const auto error = read_error_file(attempt.specs[i].error_file).error)
        entry.error_message = error->message;
    entry.logs = attempt.logs[i];
    if (!report || entry.rank != report->root_cause.rank) continue;
    entry.out_of_memory = report->root_cause.out_of_memory;
    entry.core = report->root_cause.core;
    entry.last_lines = attempt.last_lines[i];
  }
  return record;
}

}  // namespace

std::string describe_end(const Attempt& attempt) {
  if (const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome)) {
    const WorkerSpec& spec = attempt.specs[failed->index];
    const auto error = read_error_file(spec.error_file).error;
    const std::string message =
        error ? ": " + printable(error->message.substr(0, error->message.find('\n'))) : "";
    return "rank " + std::to_string(spec.rank) + " failed: " + describe(failed->status) + message;
  }
  if (const auto* start = std::get_if<StartFailed>(&attempt.outcome)) return start->message;
  if (const auto* hung = std::get_if<Hung>(&attempt.outcome))
    return "no sign of life from rank " + std::to_string(attempt.specs[hung->workers.front()].rank) +
           " (--hang-timeout)";
  return "the job timed out (--timeout)";
}

void report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom, JobRecord& record) {
  std::optional<FailureReport> report;
  if (const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome)) {
    report = make_report(job, attempt, failed->index, oom);
    const std::string text = describe(*report);
    job.outputs.console().make_way();
    std::fwrite(text.data(), 1, text.size(), stderr);
    pass_error_to_parent(*report, process_env("TORCHELASTIC_ERROR_FILE"));
  }
  record.attempts.push_back(make_record(job, attempt, report));
  record.outcome = attempt.outcome;
  record.max_restarts = attempt.round.max_restarts;
}

void throw_if_launch_failed(const Attempt& attempt) {
  if (const auto* failed = std::get_if<StartFailed>(&attempt.outcome))
    throw LaunchError(failed->exit_code, failed->message);
  if (attempt.left.empty()) return;
  std::string pids;
  for (const pid_t pid : attempt.left) pids += " " + std::to_string(pid);
  throw LaunchError(LaunchError::kOwnFailure, "SIGKILL did not end processes:" + pids);
}

}  // namespace ddprun::launcher
