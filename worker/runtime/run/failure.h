#pragma once

#include <exception>
#include <string>

namespace ddprun {

/// A failure as the user reads it.
struct Failure {
  std::string message;  ///< one line
  int exit_code;        ///< 2 for usage and configuration, 1 for data, files and training
};

/// One line and an exit code for any exception, without c10's stack traces.
Failure describe_failure(std::exception_ptr exception);

/// Logs the failure, writes the launcher's error file (TORCHELASTIC_ERROR_FILE) and ends the process at once,
/// without teardown.
[[noreturn]] void end_in_failure(std::exception_ptr exception);

}  // namespace ddprun
