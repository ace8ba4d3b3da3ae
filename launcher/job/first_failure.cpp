#include "launcher/job/first_failure.h"

#include <chrono>
#include <filesystem>
#include <vector>

#include "launcher/failure/failure_report.h"
#include "launcher/failure/root_cause.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

constexpr std::chrono::seconds kTimeToExit{2};

}  // namespace

asio::awaitable<void> find_first_failure(WorkerGroup& group, Attempt& attempt) {
  const auto* failed = std::get_if<WorkerFailed>(&attempt.outcome);
  if (failed == nullptr) co_return;
  std::vector<std::filesystem::path> files;
  for (const Worker& worker : group.workers())
    files.push_back(worker.succeeded() ? "" : attempt.specs[files.size()].error_file);
  auto seen = errors_seen(files);
  const auto deadline = JobEvents::Clock::now() + kTimeToExit;
  for (;;) {
    const std::size_t cause = root_cause(failed->index, seen);
    if (cause == failed->index) co_return;
    const auto& status = group.workers()[cause].status;
    for (bool waits = true; waits && !status;) waits = co_await group.wait_for_event(deadline);
    if (!status || !status->success()) {
      attempt.cause_lives = !status;
      attempt.outcome = WorkerFailed{status.value_or(ExitStatus::exited(1)), cause};
      co_return;
    }
    seen[cause].reset();  // it has reported an error, and succeeded all the same
  }
}

void take_late_exit(const WorkerGroup& group, Attempt& attempt) {
  if (!attempt.cause_lives) return;
  auto& failed = std::get<WorkerFailed>(attempt.outcome);
  const auto& status = group.workers()[failed.index].status;
  if (status && !ended_as_told(*status, group.ending_signals())) failed.status = *status;
}

}  // namespace ddprun::launcher
