#pragma once

#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>

namespace ddprun {

std::string one_line(std::string_view text);  // in text.h

/// A mistake in what the user typed or set. The message is one line: "CULPRIT: expected X, got Y". Both
/// programs print it and exit with 2.
class UsageError : public std::runtime_error {
 public:
  explicit UsageError(const std::string& message) : std::runtime_error(one_line(message)) {}
};

/// A file or folder that could not be used. what() is one line: "PATH: MESSAGE", followed by ": " and
/// strerror(error_number) if that is not 0.
class IoError : public std::runtime_error {
 public:
  IoError(std::filesystem::path path, const std::string& message, int error_number = 0)
      : std::runtime_error(
            one_line(path.string() + ": " + message +
                     (error_number != 0 ? std::string(": ") + std::strerror(error_number) : ""))),
        path(std::move(path)),
        error_number(error_number) {}
  /// Names the flag that named the file, too.
  IoError(const std::string& flag, const IoError& error)
      : std::runtime_error(flag + ": " + error.what()),
        path(error.path),
        error_number(error.error_number),
        of_flag(true) {}

  std::filesystem::path path;
  int error_number;
  bool of_flag = false;  ///< the user named the file
};

/// Calls function(); its IoErrors then name the flag: "--config: FILE: cannot open: Permission denied".
template <typename Function>
auto for_flag(const std::string& flag, Function function) try {
  return function();
} catch (const IoError& error) {
  throw IoError(flag, error);
}

/// Throws std::logic_error if the condition is false: a bug in ddprun, not a fault of the user or the system.
inline void ensure(bool condition, const char* message) {
  if (!condition) throw std::logic_error(std::string("broken invariant: ") + message);
}

}  // namespace ddprun
