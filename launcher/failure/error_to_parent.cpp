#include "launcher/failure/error_to_parent.h"

#include <exception>

#include <ddprun/common/logging.h>

namespace ddprun::launcher {

WorkerError error_for_parent(const FailureReport& report) {
  const FailedWorker& root = report.root_cause;
  WorkerError error;
  if (root.error.error) {
    error = *root.error.error;
  } else {
    error.message = "rank " + std::to_string(root.rank) + " (pid " + std::to_string(root.pid) + ") of " +
                    report.program + " ended by " + describe(root.status);
    error.timestamp = std::chrono::system_clock::to_time_t(root.time);
  }
  const bool exited = root.status.kind == ExitStatus::Kind::kExited;
  error.error_code = exited ? root.status.code : -root.status.signal;
  return error;
}

void pass_error_to_parent(const FailureReport& report, const std::optional<std::string>& error_file) {
  if (!error_file || error_file->empty()) return;
  try {
    write_error_file(*error_file, error_for_parent(report));
  } catch (const std::exception& error) {
    log_warning(std::string("cannot pass the error on to the launcher above: ") + error.what());
  }
}

}  // namespace ddprun::launcher
