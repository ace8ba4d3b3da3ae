#include <ddprun/run/run_worker.h>

#include <malloc.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <exception>

#include <ddprun/common/logging.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/signal_thread.h>
#include <ddprun/run/failure.h>

namespace ddprun {
namespace {

/// Makes the C library keep the memory of freed tensors for the next step: handing it back costs a page fault
/// for every 4 KiB when it is needed again.
void keep_freed_memory() {
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest that glibc takes; larger tensors are still mapped
  ::mallopt(M_TRIM_THRESHOLD, 2000 << 20);
  ::mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace

void prepare_worker(const std::string& name) {
  ::signal(SIGPIPE, SIG_IGN);  // a closed stdout (| head) must not end the training
  keep_freed_memory();
  configure_logging(name);
  // Not a catch block, which would unwind the stack: this rank's connections must stay open until the
  // launcher has seen it fail, or other ranks would fail first.
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
