#pragma once

#include <cerrno>
#include <exception>
#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>

namespace ddprun::launcher {

/// The job could not be started or stopped, through no fault of a worker. The exit codes are those of env(1)
/// and timeout(1).
class LaunchError : public std::runtime_error {
 public:
  static constexpr int kUsage = 2;
  static constexpr int kTimeout = 124;
  static constexpr int kOwnFailure = 125;
  static constexpr int kNotExecutable = 126;
  static constexpr int kNotFound = 127;

  /// kNotFound or kNotExecutable, depending on exec's errno.
  static int code_of_exec_error(int error) {
    const bool missing = error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
    return missing ? kNotFound : kNotExecutable;
  }

  LaunchError(int exit_code, const std::string& message)
      : std::runtime_error(message), exit_code(exit_code) {}

  int exit_code;
};

/// ddprun's exit code if it ends with this error.
inline int exit_code_of(const std::exception& error) {
  if (const auto* launch = dynamic_cast<const LaunchError*>(&error)) return launch->exit_code;
  const auto* file = dynamic_cast<const IoError*>(&error);
  const bool usage = dynamic_cast<const UsageError*>(&error) != nullptr || (file != nullptr && file->of_flag);
  return usage ? LaunchError::kUsage : LaunchError::kOwnFailure;
}

}  // namespace ddprun::launcher
