#include "launcher/job/first_failure.h"

#include <chrono>
#include <ctime>
#include <filesystem>
#include <vector>

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
  auto seen = co_await errors_seen(files);
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

}  // namespace ddprun::launcher
