// worker: configuration -> process group -> task -> training -> exit code.
#include <csignal>
#include <cstdlib>
#include <exception>
#include <optional>

#include <torch/types.h>

#include "common/heartbeat.h"
#include "common/logging.h"
#include "common/worker_env.h"
#include "worker/commands.h"
#include "worker/config.h"
#include "worker/ddp/process_group.h"
#include "worker/ddp/record_collectives.h"
#include "worker/ddp/signal_thread.h"
#include "worker/failure.h"
#include "worker/memory.h"
#include "worker/run_folder.h"
#include "worker/tasks/registry.h"
#include "worker/train/trainer.h"

int main(int argc, char** argv) {
  using namespace ddprun;
  ::signal(SIGPIPE, SIG_IGN);  // somebody who reads no more of stdout (| head) ends no training
  keep_freed_memory();
  configure_logging("worker");
  std::set_terminate([] { end_in_failure(ddp::explained_failure(std::current_exception())); });
  // Declared out here so that a failure does not close its connections: the other ranks must not fail for our
  // sake before the launcher has seen us fail. The exit of the process closes them.
  std::optional<ddp::ProcessGroup> group;
  try {
    if (const auto exit_code = run_command(argc, argv)) return *exit_code;
    Config config = parse_config(argc, argv);
    const WorkerEnv env = from_env();
    const ddp::SignalThread dump_on_request(SIGUSR2, [] { ddp::dump_flight("SIGUSR2"); });
    config.train.heartbeat = Heartbeat(env.heartbeat_fd);  // early: its number is nobody else's yet
    torch::manual_seed(config.train.seed);                 // the same initial weights on every rank
    train::Task task = tasks::make_task(config);
    if (env.rank == 0) config.train.out = make_run_folder(config);

    group.emplace(ddp::ProcessGroup::connect(
        env, {.timeout = config.timeout, .connect_timeout = connect_timeout(config)}));
    torch::manual_seed(train::rank_seed(config.train.seed, env.rank));  // dropout differs between ranks
    train::fit(task, config.train, *group);
    group->close();
    return EXIT_SUCCESS;
  } catch (...) {
    ddp::announce_failure(describe_failure(std::current_exception()).message);
    end_in_failure(std::current_exception());
  }
}
