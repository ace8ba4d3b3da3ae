#include <ddprun/run/failure.h>

#include <c10/util/Exception.h>

#include <cstdlib>
#include <ctime>
#include <iostream>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun {
namespace {

/// c10's text may continue on more lines with its caller's context.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

void write_error_file_if_wanted(const std::string& message) {
  const auto path = process_env("TORCHELASTIC_ERROR_FILE");
  if (!path || path->empty()) return;
  try {
    write_error_file(*path, {message, "", std::time(nullptr)});
  } catch (const std::exception& error) {
    log_warning(std::string("cannot write the error file: ") + error.what());
  }
}

}  // namespace

Failure describe_failure(std::exception_ptr exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const UsageError& error) {
    return {error.what(), 2};
  } catch (const c10::Error& error) {
    return {one_line(first_line(error.what_without_backtrace())), 1};
  } catch (const std::exception& error) {
    return {one_line(error.what()), 1};
  } catch (...) {
    return {"unknown error", 1};
  }
}

void end_in_failure(std::exception_ptr exception) {
  const auto failure = describe_failure(exception);
  log_error(failure.message);
  write_error_file_if_wanted(failure.message);
  std::cout.flush();
  std::fflush(nullptr);
  std::_Exit(failure.exit_code);
}

}  // namespace ddprun
