// worker: configuration -> process group -> task -> training -> exit code.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <future>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <c10/util/ScopeExit.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <ddprun/common/files.h>
#include <ddprun/common/heartbeat.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/standby.h>
#include <ddprun/common/status.h>
#include <ddprun/common/worker_env.h>
#include <ddprun/ddp/checks.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/process_group.h>
#include <ddprun/group/rounds.h>
#include <ddprun/group/signal_thread.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/train/loop/estimate.h>
#include <ddprun/train/loop/evaluate_only.h>
#include <ddprun/train/loop/stop_signals.h>
#include <ddprun/train/loop/trainer.h>
#include <ddprun/train/loop/tuner.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/optim/precision.h>
#include <ddprun/train/record/model_summary.h>
#include <ddprun/train/state/run_memory.h>
#include "worker/commands/commands.h"
#include "worker/config/config.h"
#include "worker/config/resumed_config.h"
#include "worker/config/run_folder.h"
#include "worker/sam/predict_command.h"
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
  if (name == "sam" && sam::wants_prediction(argc, argv)) return sam::run_predict_command(argc, argv);
  return std::nullopt;
}

/// Modes that only inspect the task: --summary, --estimate, --eval. False if the task is to be trained.
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
  if (group.rank() == 0) write_stdout(text);
  return true;
}

/// What a round of the job leaves to the next one, if a rank is lost.
struct TaskInMemory {
  std::optional<train::Task> task;
  std::string made_of;        ///< the settings of the task, as JSON
  std::future<void> loading;  ///< the task, in another thread
  train::RunMemory run;
  std::optional<std::string> checkpoint_settings;  ///< applied, as JSON; empty: none
  bool used = false;                               ///< the task may have been trained since it was made
  bool has_folder = false;  ///< this process, with rank 0, has made or locked the run folder
};

/// Once the run folder is known: writes its files due before training, and applies a resume's changes.
void prepare_run(Config& config, const ddp::ProcessGroup& group, TaskInMemory& in_memory) {
  const bool on_rank_0 = group.rank() == 0;
  train::RunMemory& memory = in_memory.run;
  if (on_rank_0 && !std::exchange(in_memory.has_folder, true)) {
    if (memory.folder.empty()) {
      const bool is_new = config.train.out.empty() || !std::filesystem::exists(config.train.out);
      const auto& folder = config.train.out = make_run_folder(config);
      if (is_new) before_failure([folder] { remove_unused_run_folder(folder); });
    } else {  // that of the rank 0 that was lost
      config.train.out = memory.folder;
      lock_run_folder(memory.folder);
    }
  }
  memory.folder = ddp::broadcast_from_rank_0(group, on_rank_0 ? absolute(config.train.out).string() : "");
  if (config.train.out.empty()) config.train.out = memory.folder;
  ddp::set_flight_folder((memory.folder / "flight").string());
  config.train.more_files = run_file_names();
  config.train.on_folder = [&](train::RunFolder& folder) {
    if (!memory.begun) write_run_files(folder, config, group);
  };
  config.train.on_resume = [&config, on_rank_0](train::TrainerOptions& options,
                                                const std::string& checkpoint_json) {
    if (checkpoint_json.empty()) return;
    const auto resumed = resumed_config(config, checkpoint_json, entry_of(config.task));
    options.optim_before = resumed.before.train.optim;
    if (on_rank_0 && !resumed.changes.empty()) log_info("resume: " + resumed.changes);
  };
}

/// Whether tasks can be loaded before the device is chosen: LibTorch could decide that it has no CUDA.
bool is_for_cpu(const Config& config) {
  return config.device == ddp::DeviceChoice::kCpu ||
         (config.device == ddp::DeviceChoice::kAuto && !ddp::has_cuda_driver());
}

/// Makes the task, unless it has been made of these settings.
void load_task(Config config, TaskInMemory& memory) {
  if (is_for_cpu(config)) settle_precision(config, at::kCPU, /*rank=*/-1);
  if (memory.task && memory.made_of == to_json(config)) return;
  memory.task.reset();
  torch::manual_seed(config.train.seed);  // the same initial weights on every rank
  memory.task = make_task(config);
  memory.made_of = to_json(config);
}

/// The same before it is known which settings hold: those of a checkpoint may replace them.
void load_task_early(const Config& config, TaskInMemory& memory) {
  try {
    load_task(config, memory);
  } catch (const std::exception&) {
    if (config.train.checkpoint.resume.empty()) throw;
  }
}

/// Runs a step and forgets it: a process's first step is the slowest, as kernels are made and memory is
/// mapped.
void rehearse(const train::Task& task, Config config) {
  settle_precision(config, at::kCPU, /*rank=*/-1);
  const train::TrainerOptions& options = config.train;
  auto& module = *task.module;
  const bool without_weights = module.parameters().empty() || module.parameters()[0].is_meta();
  if (without_weights || !config.sam.embedding_cache.empty())
    return;  // the cache belongs to the run's weights
  std::vector<torch::Tensor> before;
  for (const auto& buffer : module.buffers()) before.push_back(buffer.clone());
  const auto restore = c10::make_scope_exit([&] {
    module.zero_grad();
    const torch::NoGradGuard no_grad;
    const auto buffers = module.buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) buffers[i].copy_(before[i]);
  });
  std::vector<std::int64_t> examples(
      static_cast<std::size_t>(std::min(options.batch_size, task.train_set->size())));
  std::iota(examples.begin(), examples.end(), 0);
  module.train();
  const train::AutocastScope precision(options.precision.precision, c10::DeviceType::CPU);
  const auto result = task.compute_loss(task.train_set->get_epoch_batch(examples, 0));
  result.losses.mean().backward();
}

/// Under ddprun --standby: waits until this process is needed, having done everything that needs no GPU.
void wait_for_rank(const Config& config, TaskInMemory& memory) {
  if (stands_by() && is_for_cpu(config)) {
    load_task_early(config, memory);
    if (!has_order() && memory.task) try {
        rehearse(*memory.task, config);
      } catch (const std::exception&) {  // the training's own first step tells
      }
  }
  stand_by();
}

/// The others wait for a process that replaces a lost rank, so it loads while it connects.
void load_in_background(const Config& config, TaskInMemory& memory) {
  if (memory.loading.valid() || memory.task) return;
  memory.loading = std::async(std::launch::async, [config, &memory] { load_task_early(config, memory); });
}

void tell_of_unused_flags(const Config& config, bool recovers, bool parts) {
  const auto& checkpoint = config.train.checkpoint;
  const auto tell = [](bool is_set, const std::string& why) {
    if (is_set && from_env().rank == 0) log_info(why);
  };
  const std::string without = " has no effect without ddprun --recover=rank";
  tell(checkpoint.replicate_shards && !recovers, "--replicate-shards" + without);
  tell(checkpoint.memory_every_steps > 0 && !recovers, "--memory-checkpoint-every" + without);
  tell(config.recover_on_gpu && !recovers, "--recover-on-gpu" + without);
  tell(checkpoint.replicate_shards && recovers && !parts,
       "--replicate-shards has no effect: every rank has the whole state");
}

/// Decides whether this rank continues in place when another one is lost, and from which memory.
void set_up_memory(Config& config, const ddp::Rounds& rounds, bool on_gpu, TaskInMemory& in_memory) {
  const WorkerEnv& env = rounds.env();
  auto& memory = in_memory.run;
  // On a GPU, a step in progress cannot be abandoned cleanly: its results there are not used.
  memory.parts = train::keeps_parts(config.train) || on_gpu;
  memory.file.reset(), memory.copies.reset();
  config.train.memory = nullptr;
  if (rounds.enabled() && (!on_gpu || config.recover_on_gpu) && (env.state_fd || !memory.parts)) {
    if (on_gpu) ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);  // otherwise NCCL ends the process first
    config.train.memory = &memory;
    if (env.state_fd && (env.local_rank == 0 || memory.parts))
      memory.file = std::make_unique<train::MemoryFile>(*env.state_fd);
    if (memory.parts && config.train.checkpoint.replicate_shards)
      memory.copies = std::make_unique<train::MemoryFile>(*env.state_fd, /*begin=*/off_t{1} << 40);
  } else if (rounds.enabled() && env.rank == 0) {
    log_info(std::string("if a rank is lost, all start again: ") +
             (on_gpu && !config.recover_on_gpu ? "they are on GPUs (--recover-on-gpu)"
                                               : "ddprun holds no memory for their parts of the state"));
  }
}

/// With --resume: the checkpoint's settings hold where none is stated. Every rank calls it first in every
/// round.
void apply_checkpoint_settings(Config& config, const ddp::Rounds& rounds, const ddp::ProcessGroup& group,
                               TaskInMemory& memory) {
  auto& applied = memory.checkpoint_settings;
  std::optional<std::string> json;
  for (auto& text : ddp::all_gather(group, applied ? "=" + *applied : ""))  // those that went on know
    if (!json && !text.empty()) json = text.substr(1);
  if (!json) json = ddp::broadcast_from_rank_0(group, group.rank() == 0 ? config_of_checkpoint(config) : "");
  if (std::exchange(applied, json) || json->empty()) return;
  const bool kept_parts = train::keeps_parts(config.train);
  config = resumed_config(config, *json, entry_of(config.task)).config;
  if (config.deterministic) make_deterministic();
  check_precision(config, group.device());
  settle_precision(config, group.device(), group.rank());
  if (kept_parts == train::keeps_parts(config.train)) return;
  set_up_memory(config, rounds, group.device().is_cuda(), memory);
  rounds.announce(config.train.memory != nullptr);
}

/// A restarted job continues what it has saved, and does not begin again with --overwrite or --resume FILE.
void continue_own_run(Config& config, const WorkerEnv& env, const ddp::ProcessGroup& group) {
  bool has_saved = false;
  if (env.restart_count > 0 && group.rank() == 0 && !config.train.out.empty()) {
    const train::RunFolder folder(config.train.out);
    const auto is_own = [&](const auto& state) { return state.identity == folder.identity(); };
    has_saved = !folder.job().empty() && folder.job() == process_env(kJobIdVariable) &&
                std::ranges::any_of(train::state_files(folder), is_own);  // without reading tensors
  }
  if (ddp::any_rank_true(group, has_saved)) config.train.checkpoint.resume = "auto";
}

/// What a connected group does.
train::Ending run_task(Config& config, const ddp::ProcessGroup& group, TaskInMemory& memory) {
  load_task(config, memory);
  train::Task& task = *memory.task;
  memory.used = true;
  train::check_options(task, config.train);
  if (run_instead_of_training(config, task, group)) return train::Ending::kComplete;
  prepare_run(config, group, memory);
  torch::manual_seed(train::rank_seed(config.train.seed, group.rank()));  // dropout differs between ranks
  if (config.find_lr) train::find_lr(task, config.train, group);
  if (config.find_batch_size) train::find_batch_size(task, config.train, group);
  if (config.find_lr || config.find_batch_size) return train::Ending::kComplete;
  return train::fit(task, config.train, group);
}

/// Connects, trains and closes the group. nullopt: another rank was lost, and the next round has begun.
std::optional<train::Ending> run_round(Config& config, ddp::Rounds& rounds, TaskInMemory& memory) {
  const auto run = [&] {
    if (rounds.env().round > 0 && config.train.memory != nullptr) load_in_background(config, memory);
    // Before the data, which may take minutes to load.
    auto group = ddp::ProcessGroup::connect(rounds.env(), rounds.options(group_options(config)));
    continue_own_run(config, rounds.env(), group);
    apply_checkpoint_settings(config, rounds, group, memory);
    if (rounds.env().round > 0 && config.train.memory != nullptr) memory.run.share(group);
    if (memory.loading.valid()) memory.loading.get();
    memory.run.connect(group, rounds.env().local_world_size);
    const auto disconnect = c10::make_scope_exit([&] { memory.run.disconnect(); });
    if (std::exchange(memory.used, false) && !memory.run.state) memory.task.reset();
    if (memory.run.begun && !memory.run.state) {  // lost before anything was kept in memory
      auto& resume = config.train.checkpoint.resume;
      if (memory.run.has_saved(group) || resume.empty()) resume = "auto";
    }
    const auto ending = run_task(config, group, memory);
    rounds.announce(false);
    if (memory.run.file) memory.run.wait();  // others may still be copying
    group.close();
    return ending;
  };
  if (config.train.memory == nullptr) return run();
  rounds.announce(true);
  try {
    return run();
  } catch (const ddp::ReplicasDiffer&) {
    throw;  // this rank is to be replaced
  } catch (const std::exception&) {
    if (!rounds.next()) throw;
    return std::nullopt;
  }
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
  TaskInMemory in_memory;
  wait_for_rank(config, in_memory);
  const WorkerEnv env = from_env();
  const ddp::SignalThread dump_on_request(SIGUSR2, [] { ddp::dump_flight("SIGUSR2"); });
  // Early, before anything reuses the descriptors' numbers.
  config.train.heartbeat = Heartbeat(env.heartbeat_fd);
  config.train.status = StatusChannel(env.status_fd);
  ddp::Rounds rounds(env);
  if (rounds.enabled() && env.round > 0 && is_for_cpu(config)) load_in_background(config, in_memory);
  // Early: LibTorch looks for CUDA only once.
  const auto chosen = ddp::choose_device(config.device, env.local_rank);
  if (chosen.device.is_cuda()) config.train.gpu_uuid = chosen.id, config.train.device_name = chosen.name;
  check_precision(config, chosen.device);
  settle_precision(config, chosen.device, env.rank);
  check_backend(config, chosen.device);
  const bool on_gpu = chosen.device.is_cuda();
  set_up_memory(config, rounds, on_gpu, in_memory);
  tell_of_unused_flags(config, rounds.enabled(), in_memory.run.parts);
  std::optional<train::Ending> ending;
  while (!ending) ending = run_round(config, rounds, in_memory);
  if (*ending == train::Ending::kTerminated) ::raise(train::ending_signal());
  return EXIT_SUCCESS;
}
