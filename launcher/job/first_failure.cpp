#include "launcher/job/first_failure.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <utility>
#include <vector>

#include "launcher/failure/root_cause.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::seconds kTimeToExit{2};
constexpr std::chrono::milliseconds kErrorPatience{2000};

/// Whether the error files are in the user's log folder, not in ddprun's own temporary one.
bool may_stall(const Job& job) { return job.outputs.log_folder() != nullptr; }

}  // namespace

asio::awaitable<void> find_first_failure(const Job& job, WorkerGroup& group, Attempt& attempt) {
  const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome);
  if (failed == nullptr) co_return;
  std::vector<std::filesystem::path> files;
  for (const Worker& worker : group.workers())
    files.push_back(worker.succeeded() ? "" : attempt.specs[files.size()].error_file);
  const bool aside = may_stall(job);
  auto seen = co_await errors_seen(files, aside);
  attempt.errors.assign(seen.size(), {});
  for (std::size_t i = 0; i < seen.size(); ++i)
    if (seen[i]) attempt.errors[i] = seen[i]->content;
  const auto deadline = JobEvents::Clock::now() + kTimeToExit;
  for (;;) {
    const std::size_t cause = root_cause(failed->index, seen);
    if (cause == failed->index) co_return;
    const auto& status = group.workers()[cause].status;
    for (bool waits = may_exit_soon(*seen[cause], std::time(nullptr)); waits && !status;)
      waits = co_await group.wait_for_event(deadline);
    if (status && !status->success()) {
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
