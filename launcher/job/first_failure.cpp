#include "launcher/job/first_failure.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "launcher/failure/root_cause.h"
#include "launcher/host/process_stat.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::seconds kTimeToExit{2};
constexpr std::chrono::milliseconds kErrorPatience{2000};

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

}  // namespace

asio::awaitable<void> find_first_failure(const Job& job, WorkerGroup& group, Attempt& attempt) {
  const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome);
  if (failed == nullptr) co_return;
  const auto deadline = JobEvents::Clock::now() + kTimeToExit;
  if (!crashed(failed->status)) co_await look_for_crash(group, attempt, deadline);
  std::vector<std::filesystem::path> files;
  for (const Worker& worker : group.workers())
    files.push_back(worker.succeeded() ? "" : attempt.specs[files.size()].error_file);
  const bool aside = may_stall(job);
  auto seen = co_await errors_seen(files, aside);
  attempt.errors.assign(seen.size(), {});
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i]) attempt.errors[i] = seen[i]->content;
  for (;;) {
    const std::size_t cause = root_cause(failed->index, seen);
    if (cause == failed->index) co_return;
    const auto& status = group.workers()[cause].status;
    const bool may_be =
        !crashed(failed->status) && may_exit_soon(*seen[cause], std::time(nullptr));  // and has not recovered
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
  auto errors = co_await read_error_files(files, aside, kErrorPatience);
  errors.resize(workers.size() + attempt.lost.size());
  for (std::size_t i = 0; i < attempt.lost.size(); ++i)
    attempt.lost[i].error = std::move(errors[workers.size() + i]);
  errors.resize(workers.size());
  attempt.errors = std::move(errors);
}

}  // namespace ddprun::launcher
