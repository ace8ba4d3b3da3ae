#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ddprun/common/invariant.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/clock.h"
#include "launcher/events/launch_error.h"
#include "launcher/events/threads.h"
#include "launcher/host/processes.h"
#include "launcher/job/attempt.h"
#include "launcher/outcome/failure_report.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

WorkerRecord record_of(const Job& job, const WorkerSpec& spec, const Worker& worker,
                       const std::vector<std::filesystem::path>& logs, const ErrorFileContent& error) {
  WorkerRecord record;
  record.rank = spec.rank;
  record.local_rank = spec.local_rank;
  record.pid = worker.process.pid;
  record.status = worker.status;
  record.error = error;
  record.asked_to_end = worker.asked_to_end;
  record.start_ns = job.clock.ns(worker.started);
  record.logs = logs;
  if (!worker.status) return record;
  record.time = job.clock.date(worker.ended);
  record.end_ns = job.clock.ns(worker.ended);
  return record;
}

void add_details(const Attempt& attempt, std::size_t index, OomWatch& oom, WorkerRecord& root) {
  const bool killed = root.status == ExitStatus::killed(SIGKILL) && !root.asked_to_end;
  root.out_of_memory = describe(oom.look(root.pid), killed);
  if (root.status && root.status->core_dumped) root.core = core_place(root.pid);
  root.last_lines = attempt.last_lines[index];
  const StreamPlan& err = attempt.err_plans[index];
  // In one piece: without prefixes other workers' lines lie between.
  root.err_shown = err.console && (attempt.err_plans.size() == 1 || !err.prefix.empty());
  root.err_read = !err.inherit;
}

/// The worker that failed first, or has been silent longest.
std::optional<std::size_t> root_cause_of(const Attempt& attempt) {
  if (const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome)) return failed->index;
  if (const auto* hung = std::get_if<Hung>(&attempt.outcome)) return hung->workers.front();
  return std::nullopt;
}

/// Whether no rank on any of several nodes shows a sign of life.
bool hangs_everywhere(const Attempt& attempt) {
  const auto* hung = std::get_if<Hung>(&attempt.outcome);
  return hung != nullptr && hung->all_nodes && attempt.round.world_size > attempt.round.workers;
}

FailureReport make_report(const Job& job, const Attempt& attempt, const std::vector<WorkerRecord>& workers,
                          std::size_t root_cause) {
  FailureReport report;
  report.program = job.options.program[0];
  report.host = host_name();
  report.attempt = attempt.round.number;
  report.max_restarts = attempt.round.max_restarts;
  report.root_cause = workers[root_cause];
  report.misplaced_flag = job.options.misplaced_flag;
  if (std::holds_alternative<Hung>(attempt.outcome)) {
    report.hang = {"no sign of life for " + in_seconds(*job.options.hang_timeout) + " (--hang-timeout)"};
    const auto& hung = std::get<Hung>(attempt.outcome).workers;
    if (hangs_everywhere(attempt))
      report.hang.push_back("nor from any other running rank: compare the stacks on all nodes");
    else if (hung.size() > 1)
      report.hang.push_back("nor from " + std::to_string(hung.size() - 1) +
                            " more: their stacks show which one is late");
    if (attempt.err_plans[root_cause].console) report.root_cause.last_lines.clear();  // stacks, at most
    const auto stacks = attempt.stacks.find(report.root_cause.rank);
    if (stacks != attempt.stacks.end()) report.stacks = stacks->second;
  }
  report.stragglers = attempt.stragglers;
  for (const WorkerRecord& worker : workers) {
    if (worker.rank == report.root_cause.rank || !worker.status) continue;
    if (worker.asked_to_end && ended_as_told(*worker.status, attempt.ending_signals)) {
      if (!worker.status->success() && attempt.reported_before.contains(worker.rank))
        report.not_exited.push_back(worker);
      else
        report.ended_by_us.push_back(worker.rank);
    } else if (!worker.status->success()) {
      report.others.push_back(worker);
    } else if (!report.hang.empty() || worker.time <= report.root_cause.time) {
      report.succeeded.push_back(worker.rank);
    }
  }
  return report;
}

constexpr std::chrono::seconds kTimeToExit{2};
constexpr std::chrono::milliseconds kPatience{500};        // while workers live
constexpr std::chrono::milliseconds kErrorPatience{2000};  // once they have ended

/// Whether it ended in a way that neither another's end nor another's error causes. SIGABRT may be caused so.
bool crashed(const std::optional<ExitStatus>& status) {
  constexpr int kCrashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGKILL};
  return status && std::ranges::count(kCrashes, status->signal) > 0;
}

/// A worker's connections close before the kernel reports its end, and another that has noticed may exit in
/// between: a crash is the first failure even if its report comes second.
asio::awaitable<void> look_for_crash(WorkerGroup& group, Attempt& attempt,
                                     JobEvents::Clock::time_point deadline) {
  const auto is_ending = [](const Worker& worker) {
    return !worker.status && stat_of(worker.process.pid).value_or(ProcessStat{}).is_ending();
  };
  for (bool waits = true; waits && std::ranges::any_of(group.workers(), is_ending);)
    waits = co_await group.wait_for_event(deadline);
  for (std::size_t i = 0; i < group.workers().size(); ++i) {
    const auto& status = group.workers()[i].status;
    if (!crashed(status)) continue;
    attempt.outcome = WorkerFailed{*status, i};
    co_return;
  }
}

/// Whether the error files are in the user's log folder, not in ddprun's own temporary one.
bool may_stall(const Job& job) { return job.outputs.log_folder() != nullptr; }

std::optional<ErrorSeen> error_seen(const std::filesystem::path& path) {
  struct stat info {};
  if (path.empty() || ::lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0)
    return {};
  ErrorSeen seen;
  seen.content = read_error_file(path);
  if (seen.content.error) seen.reported = seen.content.error->timestamp;
  seen.written_ns = info.st_mtim.tv_sec * std::int64_t{1'000'000'000} + info.st_mtim.tv_nsec;
  return seen;
}

bool is_older(const ErrorSeen& a, const ErrorSeen& b) {
  if (a.reported > 0 && b.reported > 0 && a.reported != b.reported) return a.reported < b.reported;
  return a.written_ns < b.written_ns;
}

ErrorFileContent read_if_any(const std::filesystem::path& path) {
  return path.empty() ? ErrorFileContent() : read_error_file(path);
}

/// What is found in each file; `late` for all if the disk takes longer, or a signal ends the job meanwhile.
template <typename Found>
asio::awaitable<std::vector<Found>> look(const Job& job, std::vector<std::filesystem::path> files, bool aside,
                                         std::chrono::milliseconds patience,
                                         Found (*find)(const std::filesystem::path&), Found late) {
  const auto found = std::make_shared<std::vector<Found>>(files.size());
  const std::function<void()> work = [found, files, find] {
    for (std::size_t i = 0; i < files.size(); ++i) (*found)[i] = find(files[i]);
  };
  if (!aside) {
    work();
    co_return *found;
  }
  const auto give_up = gives_up(job);
  const AsideEnd end = co_await run_aside(work, LoopClock::now() + patience, &give_up);
  co_return end == AsideEnd::kDone ? *found : std::vector<Found>(files.size(), late);
}

/// Reads error files, "" where there is none: aside if they may be on a disk that stalls, and waits for it
/// for that long.
asio::awaitable<std::vector<ErrorFileContent>> read_error_files(
    const Job& job, std::vector<std::filesystem::path> error_files, bool aside,
    std::chrono::milliseconds patience) {
  const ErrorFileContent late{std::nullopt, "cannot be read: the disk does not answer"};
  co_return co_await look(job, std::move(error_files), aside, patience, read_if_any, late);
}

/// nullopt: the worker has written none. Waits half a second for a file system that does not answer, then
/// sees no file at all.
asio::awaitable<std::vector<std::optional<ErrorSeen>>> errors_seen(
    const Job& job, std::vector<std::filesystem::path> error_files, bool aside) {
  const std::optional<ErrorSeen> late;
  co_return co_await look(job, std::move(error_files), aside, kPatience, error_seen, late);
}

/// To the launcher above, if there is one.
asio::awaitable<void> pass_on(const Job& job, const FailureReport& report) {
  const auto file = process_env("TORCHELASTIC_ERROR_FILE").value_or("");
  if (file.empty()) co_return;
  const auto problem = std::make_shared<std::string>();
  const std::function<void()> write = [problem, report, file] {
    *problem = pass_error_to_parent(report, file);
  };
  const auto give_up = gives_up(job);
  const AsideEnd end = co_await run_aside(write, LoopClock::now() + kErrorPatience, &give_up);
  if (end != AsideEnd::kDone)
    log_warning("TORCHELASTIC_ERROR_FILE: the disk does not answer, so the error is not passed on");
  else if (!problem->empty())
    log_warning("TORCHELASTIC_ERROR_FILE: " + *problem);
}

}  // namespace

std::function<bool()> gives_up(const Job& job) {
  return [&events = job.events] { return events.end_requested(); };
}

std::string describe_end(const Attempt& attempt) {
  if (const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome)) {
    const WorkerSpec& spec = attempt.specs[failed->index];
    const auto error =
        failed->index < attempt.errors.size() ? attempt.errors[failed->index].error : std::nullopt;
    const std::string message =
        error ? ": " + printable(error->message.substr(0, error->message.find('\n'))) : "";
    return "rank " + std::to_string(spec.rank) + " failed: " + describe(failed->status) + message;
  }
  if (const auto* start = std::get_if<StartFailed>(&attempt.outcome)) return start->message;
  if (hangs_everywhere(attempt)) return "no sign of life from any running rank (--hang-timeout)";
  if (const auto* hung = std::get_if<Hung>(&attempt.outcome))
    return "no sign of life from rank " + std::to_string(attempt.specs[hung->workers.front()].rank) +
           " (--hang-timeout)";
  return "the job timed out (--timeout)";
}

std::string describe_loss(const Attempt& attempt, const std::vector<Worker>& workers, OomWatch& oom) {
  const auto& failed = std::get<WorkerFailed>(attempt.outcome);
  const bool killed = failed.status == ExitStatus::killed(SIGKILL);
  const std::string memory = describe(oom.look(workers[failed.index].process.pid), killed);
  return describe_end(attempt) + (memory.empty() ? "" : ", " + memory);
}

asio::awaitable<void> report_attempt(const Job& job, const Attempt& attempt, OomWatch& oom,
                                     JobRecord& record) {
  check_invariant(attempt.workers.size() <= attempt.specs.size() &&
                      attempt.workers.size() <= attempt.errors.size() &&
                      attempt.workers.size() <= attempt.logs.size(),
                  "each worker has a plan, an error and logs");
  std::vector<WorkerRecord> workers;
  for (std::size_t i = 0; i < attempt.workers.size(); ++i)
    workers.push_back(
        record_of(job, attempt.specs[i], attempt.workers[i], attempt.logs[i], attempt.errors[i]));
  std::optional<int> root_cause_rank;
  // Not to be dropped, as a line may.
  const auto show = [&](const std::string& text) {
    job.outputs.console().err()->write(&attempt, "", text);
    job.outputs.console().err()->forget(&attempt);
  };
  if (std::holds_alternative<TimedOut>(attempt.outcome))
    show(printable(job.options.program[0]) + " FAILED: " + describe_end(attempt) + "\n");
  if (const auto root = root_cause_of(attempt)) {
    add_details(attempt, *root, oom, workers[*root]);
    const FailureReport report = make_report(job, attempt, workers, *root);
    show(describe(report));
    if (report.hang.empty()) {
      root_cause_rank = report.root_cause.rank;
      co_await pass_on(job, report);
    }
  }
  for (const LostWorker& lost : attempt.lost)
    workers.push_back(record_of(job, lost.spec, lost.worker, lost.logs, lost.error));
  record.attempts.push_back({attempt.round.number, attempt.round.master_port, job.clock.ns(attempt.start),
                             job.clock.ns(attempt.end), attempt.outcome, root_cause_rank, std::move(workers),
                             attempt.stragglers, attempt.said, attempt.first_step});
  record.outcome = attempt.outcome;
  record.max_restarts = attempt.round.max_restarts;
  if (const auto* failed = std::get_if<StartFailed>(&attempt.outcome))
    throw LaunchError(failed->exit_code, failed->message);
  if (attempt.left.empty()) co_return;
  std::string pids;
  for (const pid_t pid : attempt.left) pids += " " + std::to_string(pid);
  throw LaunchError(LaunchError::kOwnFailure, "SIGKILL did not end processes:" + pids);
}

asio::awaitable<void> find_first_failure(const Job& job, WorkerGroup& group, Attempt& attempt) {
  const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome);
  if (failed == nullptr) co_return;
  const auto deadline = JobEvents::Clock::now() + kTimeToExit;
  if (!crashed(failed->status)) co_await look_for_crash(group, attempt, deadline);
  std::vector<std::filesystem::path> files;
  for (const Worker& worker : group.workers())
    files.push_back(worker.succeeded() ? "" : attempt.specs[files.size()].error_file);
  const bool aside = may_stall(job);
  auto seen = co_await errors_seen(job, files, aside);
  attempt.errors.assign(seen.size(), {});
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i]) attempt.errors[i] = seen[i]->content;
  for (;;) {
    const std::size_t cause = root_cause(failed->index, seen);
    if (cause == failed->index) co_return;
    const auto& status = group.workers()[cause].status;
    const bool may_be =
        !crashed(failed->status) && may_exit_soon(*seen[cause], std::time(nullptr));  // and went on after it
    for (bool waits = may_be; waits && !status;) waits = co_await group.wait_for_event(deadline);
    if (may_be && status && !status->success()) {
      attempt.outcome = WorkerFailed{*status, cause};
      co_return;
    }
    if (!status) attempt.reported_before.insert(attempt.specs[cause].rank);
    seen[cause].reset();  // it has reported an error, and goes on or has succeeded all the same
  }
}

asio::awaitable<void> read_errors(const Job& job, const std::vector<Worker>& workers, Attempt& attempt) {
  const auto file_of = [&](const WorkerSpec& spec, const Worker& worker) {
    const bool wanted = !job.options.result_json.empty() || !worker.succeeded();
    return wanted ? spec.error_file : std::filesystem::path();
  };
  std::vector<std::filesystem::path> files;
  for (std::size_t i = 0; i < workers.size(); ++i) files.push_back(file_of(attempt.specs[i], workers[i]));
  for (const LostWorker& lost : attempt.lost) files.push_back(file_of(lost.spec, lost.worker));
  if (std::ranges::all_of(files, &std::filesystem::path::empty)) files.clear();
  const bool aside = may_stall(job) && !files.empty();
  const bool lives = std::ranges::any_of(workers, [](const Worker& worker) { return !worker.status; });
  const auto patience = lives ? kPatience : kErrorPatience;
  auto errors = co_await read_error_files(job, files, aside, patience);
  errors.resize(workers.size() + attempt.lost.size());
  for (std::size_t i = 0; i < attempt.lost.size(); ++i)
    attempt.lost[i].error = std::move(errors[workers.size() + i]);
  errors.resize(workers.size());
  attempt.errors = std::move(errors);
}

std::size_t root_cause(std::size_t first, const std::vector<std::optional<ErrorSeen>>& seen) {
  std::size_t root = first;
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i] && (!seen[root] || is_older(*seen[i], *seen[root]))) root = i;
  return root;
}

bool may_exit_soon(const ErrorSeen& error, std::int64_t now) {
  constexpr std::int64_t kSecondsToExit = 10;
  return error.reported == 0 || now - error.reported <= kSecondsToExit;
}

}  // namespace ddprun::launcher
