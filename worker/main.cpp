// worker: configuration -> process group -> task -> training -> exit code.
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include <torch/types.h>

#include <ddprun/common/heartbeat.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/flight/flight_dump.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/process_group.h>
#include <ddprun/group/signal_thread.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/train/loop/estimate.h>
#include <ddprun/train/loop/evaluate_only.h>
#include <ddprun/train/loop/stop_signals.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/loop/tuner.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/model_summary.h>
#include "worker/commands/commands.h"
#include "worker/config/config.h"
#include "worker/config/run_folder.h"
#include "worker/sam/predict_command.h"
#include "worker/tasks/registry.h"

namespace ddprun::worker {
namespace {

/// Runs the command that the arguments name, if they do not name a task: `worker env`, ...
///
/// returns  its exit code; nullopt if the first argument is not a command
/// throws   as the command does
std::optional<int> run_command(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  const std::string_view name = argv[1];
  --argc, ++argv;
  for (const auto& command : all_commands())
    if (command.name == name) return command.run(argc, argv);
  if (name == "sam" && sam::wants_prediction(argc, argv)) return sam::run_predict_command(argc, argv);
  return std::nullopt;
}

/// What only looks at the task: --summary, --estimate, --eval. False if the task is to be trained.
bool run_instead_of_training(const Config& config, const train::Task& task, const ddp::ProcessGroup& group) {
  std::string text;
  if (config.summary)
    text = train::to_text(train::summarize(task));
  else if (config.estimate)
    text = train::estimate(task, config.train, group);
  else if (!config.model.eval.empty())
    train::evaluate_only(task, config.train, group, config.model.eval);
  else
    return false;
  if (group.rank() == 0) std::cout << text << std::flush;
  return true;
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
  const WorkerEnv env = from_env();
  const ddp::SignalThread dump_on_request(SIGUSR2, [] { ddp::dump_flight("SIGUSR2"); });
  config.train.heartbeat =
      Heartbeat(env.heartbeat_fd);  // early, before anything reuses the descriptor's number
  // Early: LibTorch looks for CUDA only once.
  const auto chosen = ddp::choose_device(config.device, env.local_rank);
  if (chosen.device.is_cuda()) config.train.gpu_uuid = chosen.id, config.train.device_name = chosen.name;
  check_precision(config, chosen.device);
  settle_precision(config, chosen.device, env.rank);
  check_backend(config, chosen.device);
  if (config.deterministic) make_deterministic();
  auto group =
      ddp::ProcessGroup::connect(env, group_options(config));  // first: data may take minutes to load
  torch::manual_seed(config.train.seed);                       // the same initial weights on every rank
  train::Task task = make_task(config);
  train::check_options(task, config.train);
  if (run_instead_of_training(config, task, group)) {
    group.close();
    return EXIT_SUCCESS;
  }
  if (env.rank == 0) config.train.out = make_run_folder(config);
  ddp::set_flight_folder(ddp::broadcast_from_rank_0(group, absolute(config.train.out / "flight").string()));
  torch::manual_seed(train::rank_seed(config.train.seed, env.rank));  // dropout differs between ranks
  if (env.rank == 0) write_environment(config.train.out, group);
  config.train.on_resume = [&](train::TrainerOptions& options, const std::string& checkpoint_json) {
    const auto resumed =
        checkpoint_json.empty() ? ResumedConfig{config, config, ""} : resumed_config(config, checkpoint_json);
    options.optim = resumed.config.train.optim;
    options.optim_before = resumed.before.train.optim;
    options.config_json = resumed.config.train.config_json;
    if (env.rank == 0 && !resumed.changes.empty()) log_info("resume: " + resumed.changes);
    if (env.rank == 0) write_config(config.train.out, resumed.config);
  };
  if (config.find_lr) train::find_lr(task, config.train, group);
  if (config.find_batch_size) train::find_batch_size(task, config.train, group);
  if (config.find_lr || config.find_batch_size) {
    group.close();
    return EXIT_SUCCESS;
  }
  const auto ending = train::fit(task, config.train, group);
  group.close();
  if (ending == train::Ending::kTerminated) ::raise(train::ending_signal());
  return EXIT_SUCCESS;
}
