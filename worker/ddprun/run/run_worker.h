#pragma once

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

#include <ddprun/common/worker_env.h>

namespace ddprun {

/// The main() of a worker: calls train with the launcher's settings (from_env()).
///
///   int main() { return ddprun::run_worker(train); }
///
/// An uncaught exception on any thread ends the process with one line on stderr and in the launcher's error
/// file (TORCHELASTIC_ERROR_FILE), and exit code 2 for a UsageError, else 1. If a launcher reads that file,
/// only the first rank of a host prints what all of them have (SameOnEveryRank). No stack unwinds:
/// connections to other ranks stay open to the end, so that the launcher sees this rank fail before any
/// other.
///
/// Log lines start with the program's name, SIGPIPE is ignored, and memory that a step frees is kept for the
/// next one. SIGUSR2 makes every rank dump its last collectives (dump_flight()).
///
/// returns  0, for main()
int run_worker(const std::function<void(const WorkerEnv&)>& train);

/// Only prepares, for a main() that looks at its arguments first.
/// name  the prefix of log lines
void prepare_worker(const std::string& name);

/// Calls it before an uncaught exception ends the process.
void before_failure(std::function<void()> function);

/// A failure that all ranks have: those of a UsageError or IoError are taken to be such, too.
class SameOnEveryRank : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A failure as shown to the user.
struct Failure {
  std::string message;         ///< one line
  int exit_code;               ///< 2 for usage and configuration, 1 for data, files and training
  bool on_every_rank = false;  ///< probably the same on all ranks
};

/// One line and an exit code for any exception, without c10's stack traces.
Failure describe_failure(std::exception_ptr exception);

}  // namespace ddprun
