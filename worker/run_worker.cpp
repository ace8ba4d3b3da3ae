#include "worker/run_worker.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>

#include "common/logging.h"
#include "worker/failure.h"
#include "worker/memory.h"

namespace ddprun {

int run_worker(const std::function<void(const WorkerEnv&)>& train) {
  ::signal(SIGPIPE, SIG_IGN);
  keep_freed_memory();
  configure_logging(::program_invocation_short_name);
  // And not a catch here, to which the stack would be unwound.
  std::set_terminate([] {
    if (!std::current_exception()) std::abort();
    end_in_failure(std::current_exception());
  });
  train(from_env());
  return EXIT_SUCCESS;
}

}  // namespace ddprun
