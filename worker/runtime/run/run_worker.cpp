#include <ddprun/run/run_worker.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>

#include <ddprun/common/logging.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/signal_thread.h>
#include <ddprun/run/failure.h>
#include <ddprun/run/memory.h>

namespace ddprun {

void prepare_worker(const std::string& name) {
  ::signal(SIGPIPE, SIG_IGN);  // somebody who reads no more of stdout (| head) ends no training
  keep_freed_memory();
  configure_logging(name);
  // And not a catch somewhere, to which the stack would be unwound: this rank's connections must not close
  // before the launcher has seen it fail, or the others would fail for its sake. The exit closes them.
  std::set_terminate([] {
    if (!std::current_exception()) std::abort();
    const auto failure = ddp::explained_failure(std::current_exception());
    ddp::announce_failure(describe_failure(failure).message);
    end_in_failure(failure);
  });
}

int run_worker(const std::function<void(const WorkerEnv&)>& train) {
  prepare_worker(::program_invocation_short_name);
  const ddp::SignalThread dump_on_request(SIGUSR2, [] { ddp::dump_flight("SIGUSR2"); });
  train(from_env());
  return EXIT_SUCCESS;
}

}  // namespace ddprun
