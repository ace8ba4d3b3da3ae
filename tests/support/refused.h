#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>

namespace ddprun::test {

/// For ranks, whose Catch2 macros do not reach the test program: throws std::logic_error unless the call
/// throws a UsageError or std::invalid_argument whose text contains `expected`.
inline void ensure_refused(const std::function<void()>& call, const std::string& expected) {
  std::string message = "no error";
  try {
    call();
  } catch (const std::invalid_argument& error) {
    message = error.what();
  } catch (const UsageError& error) {
    message = error.what();
  }
  ensure(message.find(expected) != std::string::npos, (expected + " in: " + message).c_str());
}

}  // namespace ddprun::test
