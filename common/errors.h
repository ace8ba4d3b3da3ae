#pragma once

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

#include <ddprun/common/text/one_line.h>

namespace ddprun {

/// A mistake in what the user typed or set: the message is one line that names the culprit, what was
/// expected and what was got (control characters in it are shown as '?'). Both programs print it and exit
/// with 2.
class UsageError : public std::runtime_error {
 public:
  explicit UsageError(const std::string& message) : std::runtime_error(one_line(message)) {}
};

/// A file or folder that could not be used. what() is "PATH: MESSAGE", or "PATH: MESSAGE: strerror(error)"
/// when errno is known (error_number != 0); one line too.
class IoError : public std::runtime_error {
 public:
  IoError(std::filesystem::path path, const std::string& message, int error_number = 0)
      : std::runtime_error(
            one_line(path.string() + ": " + message +
                     (error_number != 0 ? std::string(": ") + std::strerror(error_number) : ""))),
        path(std::move(path)),
        error_number(error_number) {}

  std::filesystem::path path;
  int error_number;
};

/// Throws std::logic_error when an invariant of ours is broken: never for the user's or the system's faults.
inline void ensure(bool condition, const char* message) {
  if (!condition) throw std::logic_error(std::string("broken invariant: ") + message);
}

}  // namespace ddprun
