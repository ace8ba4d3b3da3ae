// worker: configuration -> process group -> task -> training -> exit code.
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string_view>

#include <ddprun/common/status.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/rounds.h>
#include <ddprun/group/signal_thread.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/train/loop/stop_signals.h>
#include "worker/commands/commands.h"
#include "worker/config/config.h"
#include "worker/rounds.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

/// Runs the command named by the arguments, unless they name a task: `worker env`, ...
///
/// returns  its exit code; nullopt if the first argument is not a command
/// throws   like the command
std::optional<int> run_command(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  const std::string_view name = argv[1];
  --argc, ++argv;
  for (const auto& command : all_commands())
    if (command.name == name) return command.run(argc, argv);
  if (wants_prediction(argc, argv)) return run_predict_command(argc, argv);
  return std::nullopt;
}

}  // namespace
}  // namespace ddprun::worker

int main(int argc, char** argv) {
  using namespace ddprun;
  using namespace ddprun::worker;
  prepare_worker("worker");
  if (const auto exit_code = run_command(argc, argv)) return *exit_code;
  ::signal(SIGUSR1, SIG_IGN);  // it requests a checkpoint: outside of training there is nothing to save
  Config config = parse_config(argc, argv, all_tasks(), all_commands());
  if (config.deterministic) make_deterministic();
  InMemory in_memory;
  in_memory.task.load_and_stand_by(config);
  const WorkerEnv env = from_env();
  if (env.rank == 0 && trains(config)) keep_named_runs();
  const ddp::SignalThread dump_on_request(SIGUSR2, [] { ddp::dump_flight("SIGUSR2"); });
  // Early, before anything reuses the descriptors' numbers.
  config.train.heartbeat = Heartbeat(env.heartbeat_fd);
  config.train.status = StatusChannel(env.status_fd);
  ddp::Rounds rounds(env);
  if (rounds.enabled() && env.round > 0 && is_for_cpu(config)) in_memory.task.load_in_background(config);
  const auto device = set_up_device(config, env);
  set_up_memory(config, rounds, device, in_memory);
  std::optional<train::Ending> ending;
  while (!ending) ending = run_round(config, rounds, in_memory);
  if (*ending == train::Ending::kDiverged)
    throw SameOnEveryRank(
        "the training has diverged: its last loss is NaN or infinite; a smaller --lr may help, and with "
        "--allow-nan this is not a failure");
  if (*ending == train::Ending::kTerminated) ::raise(train::ending_signal());
  return EXIT_SUCCESS;
}
