#include "launcher/job/conclusion.h"

#include <cerrno>
#include <cstring>
#include <filesystem>

#include <ddprun/common/host_name.h>
#include <ddprun/common/text/printable.h>
#include "launcher/failure/core_file.h"

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

void look_closer(const Job& job, const Attempt& attempt, std::size_t index, OomWatch& oom,
                 FailedWorker& failed) {
  const Worker& worker = attempt.workers[index];
  const bool killed = failed.status == ExitStatus::killed(SIGKILL) && !worker.asked_to_end;
  failed.out_of_memory = describe(oom.look(worker.process.pid), killed);
  if (failed.status.core_dumped)
    failed.core =
        find_core({worker.process.pid, failed.status.signal, host_name(), std::filesystem::current_path(),
                   job.clock.date(worker.started), job.clock.date(worker.ended)});
  failed.last_lines = attempt.last_lines[index];
  failed.logs = attempt.logs[index];
}

JobOutcome outcome_of(const Attempt& attempt, const std::string& program) {
  struct Visitor {
    const Attempt& attempt;
    const std::string& program;
    JobOutcome operator()(const AllSucceeded&) const { return JobOutcome::kSucceeded; }
    JobOutcome operator()(const WorkerFailed&) const { return JobOutcome::kWorkerFailed; }
    JobOutcome operator()(const SignalReceived&) const { return JobOutcome::kSignal; }
    JobOutcome operator()(const TimedOut&) const { return JobOutcome::kTimeout; }
    JobOutcome operator()(const Hung&) const { return JobOutcome::kHang; }
    JobOutcome operator()(const EndedByPeers&) const { return JobOutcome::kOtherNode; }
    JobOutcome operator()(const StartFailed& failed) const {
      return outcome_of_own_exit(
          start_error(program, attempt.specs[failed.index].rank, failed.failure).exit_code);
    }
  };
  return std::visit(Visitor{attempt, program}, attempt.event);
}

}  // namespace

AttemptEnd attempt_end(const Attempt& attempt, const std::vector<Worker>& workers,
                       const std::string& program) {
  using Kind = AttemptEnd::Kind;
  AttemptEnd end;
  if (const auto* failed = std::get_if<WorkerFailed>(&attempt.event)) {
    end.kind = Kind::kWorkerFailed;
    end.status = *workers[failed->index].status;
  } else if (const auto* received = std::get_if<SignalReceived>(&attempt.event)) {
    end.kind = Kind::kSignal;
    end.signal = received->signal;
  } else if (const auto* start = std::get_if<StartFailed>(&attempt.event)) {
    end.kind = Kind::kStartFailed;
    end.exit_code = start_error(program, attempt.specs[start->index].rank, start->failure).exit_code;
  } else if (std::holds_alternative<TimedOut>(attempt.event)) {
    end.kind = Kind::kTimeout;
  } else if (std::holds_alternative<Hung>(attempt.event)) {
    end.kind = Kind::kHang;
  }
  return end;
}

std::string describe_end(const Attempt& attempt, const std::vector<Worker>& workers,
                         const std::string& program) {
  if (const auto* failed = std::get_if<WorkerFailed>(&attempt.event)) {
    const WorkerSpec& spec = attempt.specs[failed->index];
    const auto error = read_error_file(spec.error_file).error;
    const std::string message =
        error ? ": " + printable(error->message.substr(0, error->message.find('\n'))) : "";
    return "rank " + std::to_string(spec.rank) + " failed: " + describe(*workers[failed->index].status) +
           message;
  }
  if (const auto* start = std::get_if<StartFailed>(&attempt.event))
    return start_error(program, attempt.specs[start->index].rank, start->failure).what();
  if (const auto* hung = std::get_if<Hung>(&attempt.event))
    return "no sign of life from rank " + std::to_string(attempt.specs[hung->workers.front()].rank) +
           " (--hang-timeout)";
  return "the job's time is over (--timeout)";
}

std::optional<std::size_t> root_cause(const Attempt& attempt) {
  const auto* failed = std::get_if<WorkerFailed>(&attempt.event);
  return failed == nullptr ? std::nullopt : std::optional(failed->index);
}

LaunchError start_error(const std::string& program, int rank, const StartFailure& failure) {
  const std::string reason = std::strerror(failure.error);
  const bool about_the_program =
      failure.step == "execve" && failure.error != EAGAIN && failure.error != ENOMEM;
  if (!about_the_program)
    return {LaunchError::kOwnFailure,
            "cannot start rank " + std::to_string(rank) + ": " + failure.step + ": " + reason};
  std::string hint;
  if (failure.error == ENOENT) hint = " (is the interpreter that it names in its first line there?)";
  if (failure.error == ENOEXEC) hint = " (does its first line name an interpreter, as in #!/bin/sh?)";
  return {LaunchError::code_of_exec_error(failure.error), "cannot run " + program + ": " + reason + hint};
}

FailureReport make_report(const Job& job, const Attempt& attempt, std::size_t first, OomWatch& oom) {
  FailureReport report;
  report.program = job.options.program[0];
  report.host = host_name();
  report.attempt = attempt.number;
  report.max_restarts = job.options.restart.max_restarts;
  report.root_cause = failed_worker(job, attempt, first);
  look_closer(job, attempt, first, oom, report.root_cause);
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

AttemptRecord make_record(const Job& job, const Attempt& attempt,
                          const std::optional<FailureReport>& report) {
  AttemptRecord record;
  record.number = attempt.number;
  record.port = attempt.port;
  record.start_ns = job.clock.ns(attempt.start);
  record.end_ns = job.clock.ns(attempt.end);
  record.outcome = outcome_of(attempt, job.program.path);
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
    if (!job.options.result_json.empty())  // nobody else asks
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

}  // namespace ddprun::launcher
