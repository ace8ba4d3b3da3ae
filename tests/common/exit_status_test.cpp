#include <ddprun/common/exit_status.h>

#include <sys/wait.h>

#include <csignal>

#include "tests/support/catch.h"

namespace ddprun {
namespace {

TEST_CASE("a wait status with an exit code keeps all 256 codes", "[exit_status]") {
  for (int code = 0; code < 256; ++code) {
    const ExitStatus status = ExitStatus::from_wait_status(W_EXITCODE(code, 0));
    CHECK(status == ExitStatus::exited(code));
    CHECK(to_exit_code(status) == code);
    CHECK(status.success() == (code == 0));
    CHECK(describe(status) == "exit code " + std::to_string(code));
  }
}

TEST_CASE("a wait status with a signal keeps every signal", "[exit_status]") {
  for (int signal = 1; signal <= SIGRTMAX; ++signal) {
    const ExitStatus status = ExitStatus::from_wait_status(W_EXITCODE(0, signal));
    CHECK(status == ExitStatus::killed(signal));
    CHECK(to_exit_code(status) == 128 + signal);
    CHECK_FALSE(status.success());
  }
}

TEST_CASE("a core dump is seen and said", "[exit_status]") {
  const ExitStatus status = ExitStatus::from_wait_status(SIGSEGV | 0x80);
  CHECK(status == ExitStatus::killed(SIGSEGV, true));
  CHECK(describe(status) == "signal 11 (SIGSEGV), core dumped");
  CHECK(to_exit_code(status) == 139);
}

TEST_CASE("signals have names, real-time and impossible ones too", "[exit_status]") {
  CHECK(signal_name(SIGTERM) == "SIGTERM");
  CHECK(signal_name(SIGRTMIN + 1) == "SIGRTMIN+1");
  CHECK(signal_name(99) == "signal 99");
}

}  // namespace
}  // namespace ddprun
