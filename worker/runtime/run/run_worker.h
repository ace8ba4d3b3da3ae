#pragma once

#include <functional>
#include <string>

#include <ddprun/common/worker_env.h>

namespace ddprun {

/// The main() of a worker: calls train with what the launcher has set (from_env()).
///
///   int main() { return ddprun::run_worker(train); }
///
/// An exception that nobody catches, on any thread, ends the process with one line on stderr, the same in the
/// error file that the launcher asked for (TORCHELASTIC_ERROR_FILE) and so in its report, and exit code 2 for
/// a UsageError, 1 for the rest. Nothing is unwound: the connections to other ranks stay open up to the end
/// of the process, so that none of them fails for this one's sake before the launcher has seen it fail.
///
/// Log lines begin with the program's name from here on, nobody reading stdout any more is no reason to die
/// (SIGPIPE), and memory that a step frees is kept for the next one.
///
/// SIGUSR2 has every rank write down its last collectives (dump_flight()).
///
/// returns  0, for main()
int run_worker(const std::function<void(const WorkerEnv&)>& train);

/// Only what comes before that call, for a main() that has to look at its arguments first.
///
/// name  what log lines begin with
void prepare_worker(const std::string& name);

}  // namespace ddprun
