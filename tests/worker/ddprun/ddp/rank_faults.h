#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/flight/watchdog.h>
#include <ddprun/group/process_group.h>
#include "tests/support/run_ranks.h"
#include "worker/commands/flight_report.h"

namespace ddprun::test {

/// Generous where a rank waits for a healthy one, short where it waits for one that never comes.
constexpr std::chrono::seconds kFaultTimeout{3};

/// A rank waits, without a sleep, until others are done.
struct Done {
  Done() { ensure(::pipe2(ends, O_CLOEXEC) == 0, "a pipe can be made"); }
  void tell() const { ensure(::write(ends[1], "", 1) == 1, "told"); }
  void wait_for(int ranks) const {
    char byte;
    for (int i = 0; i < ranks; ++i) ensure(::read(ends[0], &byte, 1) == 1, "a rank is done");
  }
  bool is_told() const {
    int bytes = 0;
    return ::ioctl(ends[0], FIONREAD, &bytes) == 0 && bytes > 0;
  }
  int ends[2];
};

/// Runs body on each rank of a group with a short timeout; the message of what it throws, or "". It must come
/// within the timeout, the others' answers, and what a busy machine takes.
inline std::string failure_of(const HeldPort& port, int rank, int size,
                              const std::function<void(const ddp::ProcessGroup&)>& body) {
  auto group = ddp::ProcessGroup::connect(
      rank_env(port, rank, size), {.timeout = kFaultTimeout, .connect_timeout = std::chrono::minutes(1)});
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  try {
    body(group);
    return "";
  } catch (const c10::Error& error) {
    message = error.what_without_backtrace();
  } catch (const std::exception& error) {
    message = error.what();
  }
  const auto allowed =
      kFaultTimeout + ddp::Watchdog::Options{}.answer_within + std::chrono::seconds(/*busy machine*/ 10);
  ensure(std::chrono::steady_clock::now() - begin < allowed, "the error comes within the timeout");
  return message;
}

inline void expect_text(const std::string& message, const std::vector<std::string>& parts) {
  for (const auto& part : parts)
    if (message.find(part) == std::string::npos)
      throw std::runtime_error("expected '" + part + "' in: " + message);
}

/// What `worker flight FOLDER` exits with.
inline int flight_report_of(std::string folder) {
  std::string command = "flight";
  char* argv[] = {command.data(), folder.data()};
  return worker::run_flight_report(2, argv);
}

}  // namespace ddprun::test
