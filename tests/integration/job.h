#pragma once

#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::test {

/// ddprun with these flags, running stub_worker with these actions.
inline Command job(const std::vector<std::string>& flags, const std::vector<std::string>& actions) {
  Command command{{DDPRUN_PROGRAM}};
  command.argv.insert(command.argv.end(), flags.begin(), flags.end());
  command.argv.push_back(STUB_WORKER_PROGRAM);
  command.argv.insert(command.argv.end(), actions.begin(), actions.end());
  return command;
}

/// For tests of what happens between vfork and exec: ThreadSanitizer makes a fork of every vfork.
inline void need_vfork() {
#ifdef __SANITIZE_THREAD__
  skip("ThreadSanitizer turns vfork into fork");
#endif
}

/// The end of every test: whatever happened, no process and no file is left.
inline void check_nothing_left(const Child& ddprun) {
  CHECK(ddprun.nothing_left());
  CHECK(std::filesystem::is_empty(ddprun.temp_folder()));
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
