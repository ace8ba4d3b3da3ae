#pragma once

#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/child.h"
#include "tests/support/nothing_left.h"

namespace ddprun::test {

/// ddprun with these arguments. OMP_NUM_THREADS is set, for else ddprun says what it chooses.
inline Command ddprun_command(const std::vector<std::string>& arguments) {
  Command command{{DDPRUN_PROGRAM}, {{"OMP_NUM_THREADS", "1"}}};
  command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
  return command;
}

/// ddprun with these flags, running a shell script.
inline Command script(const std::vector<std::string>& flags, const std::string& text) {
  Command command = ddprun_command(flags);
  command.argv.insert(command.argv.end(), {"--", "sh", "-c", text});
  return command;
}

/// ddprun with these flags, running stub_worker with these actions.
inline Command job(const std::vector<std::string>& flags, const std::vector<std::string>& actions) {
  Command command = ddprun_command(flags);
  command.argv.push_back(STUB_WORKER_PROGRAM);
  command.argv.insert(command.argv.end(), actions.begin(), actions.end());
  return command;
}

/// For tests of what happens between vfork and exec: ThreadSanitizer makes a fork of every vfork, and ddprun
/// goes on before the worker has a process group to be ended with.
inline void need_vfork() {
#ifdef __SANITIZE_THREAD__
  skip("ThreadSanitizer turns vfork into fork");
#endif
}

/// For tests that leave ddprun no descriptor: UBSan looks at an exception's type through a pipe.
inline void need_no_sanitizer() {
#ifdef __SANITIZE_ADDRESS__
  skip("UBSan needs its own descriptors");
#endif
}

/// Runs to the end.
struct Finished {
  explicit Finished(const Command& command) : child(command) {
    status = child.wait();
    out = child.out();
    err = child.err();
    check_nothing_left(child);
  }
  Child child;
  ExitStatus status;
  std::string out, err;
};

}  // namespace ddprun::test
