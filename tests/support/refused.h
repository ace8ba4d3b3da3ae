#pragma once

#include <functional>
#include <stdexcept>
#include <string>

#include <ddprun/common/errors.h>

namespace ddprun::test {

/// For a rank, where Catch2's macros do not reach the test program: the call must throw an error that a user
/// or a caller is to blame for, whose text has `expected` in it. throws std::logic_error otherwise
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
