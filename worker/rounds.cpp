#include "worker/rounds.h"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <memory>
#include <utility>

#include <c10/util/ScopeExit.h>
#include <torch/types.h>
#include <nlohmann/json.hpp>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/ddp/checks.h>
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/group/collectives.h>
#include <ddprun/run/run_worker.h>
#include <ddprun/train/loop/estimate.h>
#include <ddprun/train/loop/evaluate_only.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/loop/tuner.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/model_summary.h>
#include <ddprun/train/state/run_folder.h>
#include "worker/config/config.h"
#include "worker/config/kept_checkpoints.h"

namespace ddprun::worker {
namespace {

/// Modes that only inspect the task: --summary, --estimate, --eval. False if the task is to be trained.
bool run_instead_of_training(const Config& config, const train::Task& task, const ddp::ProcessGroup& group,
                             InMemory& in_memory) {
  std::string text;
  if (config.summary)
    text = train::to_text(train::summarize(task, config.train.parallel.sync_batch_norm));
  else if (config.estimate)
    text = train::estimate(task, config.train, group);
  else if (!config.model.eval.empty()) {
    // Two that change its list at a time would each lose what the other one has listed.
    const auto& out = config.train.out;
    if (group.rank() == 0 && std::filesystem::is_directory(out) && !std::exchange(in_memory.has_folder, true))
      lock_run_folder(out);
    train::evaluate_only(task, config.train, group, config.model.eval);
  } else
    return false;
  if (group.rank() == 0) write_stdout(text);
  return true;
}

/// Once the run folder is known: writes its files due before training, and applies a resume's changes.
void prepare_run(Config& config, const ddp::ProcessGroup& group, InMemory& in_memory) {
  const bool on_rank_0 = group.rank() == 0;
  train::RunMemory& memory = in_memory.run;
  if (on_rank_0 && !std::exchange(in_memory.has_folder, true)) {
    if (memory.folder.empty()) {
      const auto given = config.train.out;
      const bool is_new = given.empty() || !std::filesystem::exists(given);
      const bool is_plain = !is_new && !std::filesystem::exists(given / "checkpoints");
      const auto& folder = config.train.out = make_run_folder(config);
      before_failure([=] {
        std::error_code ignored;
        if (is_new) remove_unused_run_folder(folder);
        // A folder of somebody else's that was refused.
        if (is_plain && !std::filesystem::exists(folder / "run.json"))
          std::filesystem::remove(folder / "checkpoints", ignored);
      });
    } else {  // that of the rank 0 that was lost
      config.train.out = memory.folder;
      lock_run_folder(memory.folder);
    }
  }
  memory.folder = ddp::broadcast_from_rank_0(group, on_rank_0 ? absolute(config.train.out).string() : "");
  if (config.train.out.empty()) config.train.out = memory.folder;
  ddp::set_flight_folder((memory.folder / "flight").string());
  config.train.more_files = run_file_names();
  if (on_rank_0) config.train.next_commands = next_commands(config, group);
  config.train.on_folder = [&](train::RunFolder& folder) {
    lock_run_folder(folder.path());
    if (!memory.begun) write_run_files(folder, config, group);
  };
  const bool found_none = !memory.begun && !memory.state && in_memory.checkpoint_settings->empty();
  config.train.on_resume = [&config, on_rank_0, found_none](train::TrainerOptions& options,
                                                            const std::string& checkpoint_json) {
    if (checkpoint_json.empty()) return;
    if (found_none)
      throw UsageError("--resume: a checkpoint has appeared in " + config.train.out.string() +
                       " while the data was loaded, with settings of its own; start again");
    const auto resumed = resumed_config(config, checkpoint_json, entry_of(config.task));
    options.optim_before = resumed.before.train.optim;
    if (on_rank_0 && !resumed.changes.empty()) log_info("resume: " + resumed.changes);
  };
}

void log_unused_flags(const Config& config, bool recovers, bool parts) {
  const auto& checkpoint = config.train.checkpoint;
  const auto log_if = [](bool is_set, const std::string& why) {
    if (is_set) log_info(why);
  };
  const std::string without = " has no effect without ddprun --recover=rank";
  log_if(checkpoint.replicate_shards && !recovers, "--replicate-shards" + without);
  log_if(checkpoint.memory_every_steps > 0 && !recovers, "--memory-checkpoint-every" + without);
  log_if(config.recover_on_gpu && !recovers, "--recover-on-gpu" + without);
  log_if(checkpoint.replicate_shards && recovers && !parts,
         "--replicate-shards has no effect: every rank has the whole state");
}

/// Otherwise NCCL's watchdog ends the process when a rank is lost. And where it dumps its flight recorder,
/// the rank is free only after 60 s, four times the time that a dump may take.
void leave_nccl_errors_to_rounds() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", 1);
  if (std::getenv("TORCH_NCCL_DUMP_ON_TIMEOUT") != nullptr) return;
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", 1);
  ::setenv("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "0", 0);
}

/// Decides whether this rank continues in place when another one is lost, and from which memory.
void choose_memory(Config& config, const ddp::Rounds& rounds, bool on_gpu, InMemory& in_memory) {
  const WorkerEnv& env = rounds.env();
  auto& memory = in_memory.run;
  // On a GPU, a step in progress cannot be abandoned cleanly: its results there are not used.
  memory.parts = train::keeps_parts(config.train) || on_gpu;
  memory.file.reset(), memory.copies.reset();
  config.train.memory = nullptr;
  if (rounds.enabled() && (!on_gpu || config.recover_on_gpu) && (env.state_fd || !memory.parts)) {
    if (on_gpu) leave_nccl_errors_to_rounds();
    config.train.memory = &memory;
    if (env.state_fd && (env.local_rank == 0 || memory.parts))
      memory.file = std::make_unique<train::MemoryFile>(*env.state_fd);
    if (memory.parts && config.train.checkpoint.replicate_shards)
      memory.copies = std::make_unique<train::MemoryFile>(*env.state_fd, /*begin=*/off_t{1} << 40);
  } else if (rounds.enabled() && env.rank == 0) {
    log_info(std::string("if a rank is lost, all start again: ") +
             (on_gpu && !config.recover_on_gpu ? "the ranks train on GPUs (--recover-on-gpu)"
                                               : "ddprun holds no memory for the ranks' parts of the state"));
  }
}

/// The settings of what the run goes on from hold where none is stated.
void hold_settings(Config& config, const std::string& json, const ddp::ProcessGroup& group) {
  const auto before = config.train.precision;
  const bool was_fast = config.fast, on_cpu = group.device().is_cpu();
  config.is_settled = on_cpu || nlohmann::json::parse(json)["fast"] == true;
  config = resumed_config(config, json, entry_of(config.task)).config;
  config.resumed_shape = nlohmann::json::parse(json).value(kModelShape, "");
  if (config.deterministic) make_deterministic();
  settle_on_device(config, group.device(), group.rank());
  const auto& now = config.train.precision;
  const bool is_told =
      was_fast && now.precision == before.precision && now.channels_last == before.channels_last;
  if (config.fast && on_cpu) use_fast_cpu(config, is_told ? -1 : group.rank());
}

/// With --resume: the checkpoint's settings hold where none is stated. Every rank calls it first in every
/// round.
void apply_checkpoint_settings(Config& config, const ddp::Rounds& rounds, const ddp::ProcessGroup& group,
                               InMemory& memory) {
  auto& applied = memory.checkpoint_settings;
  std::optional<std::string> json;
  for (auto& text : ddp::all_gather(group, applied ? "=" + *applied : ""))  // those that went on know
    if (!json && !text.empty()) json = text.substr(1);
  if (!json) json = ddp::broadcast_from_rank_0(group, group.rank() == 0 ? config_of_checkpoint(config) : "");
  if (std::exchange(applied, json) || json->empty()) return;
  const bool kept_parts = train::keeps_parts(config.train);
  hold_settings(config, *json, group);
  if (kept_parts == train::keeps_parts(config.train)) return;
  choose_memory(config, rounds, group.device().is_cuda(), memory);
  rounds.announce(config.train.memory != nullptr);
}

/// A job that has begun before, in an earlier attempt or with other nodes, continues what it has saved, and
/// does not begin again with --overwrite or --resume FILE.
void continue_own_run(Config& config, const WorkerEnv& env, const ddp::ProcessGroup& group) {
  std::string own;
  if ((env.restart_count > 0 || env.round > 0) && group.rank() == 0) {
    own = folder_of_this_job(config.train.out);
    if (config.train.out.empty() && own.empty() && env.restart_count > 0 && !env.round_fd)
      log_info(
          "restarted, and no run in runs/ has a checkpoint of this job and command: it begins in a new "
          "folder");
  }
  own = ddp::broadcast_from_rank_0(group, own);
  if (own.empty()) return;
  config.train.out = own;
  config.train.checkpoint.resume = "auto";
}

/// Where an --overwrite was killed while it moved a run, that is in its place again before anything looks for
/// it there.
void put_back_runs(const Config& config, const ddp::ProcessGroup& group) {
  if (group.rank() != 0) return;
  train::put_back_half_replaced(config.train.out);
  if (const auto& resume = config.train.checkpoint.resume; resume != "auto")
    train::put_back_half_replaced(resume);
}

/// From now on nobody replaces or removes the run that is to be continued: its data may take minutes to load.
void hold_resumed_run(const Config& config) {
  static FolderLock held;
  const auto& out = config.train.out;
  if (!out.empty() && !config.train.checkpoint.resume.empty() && is_there(out / "run.json"))
    held = lock_folder(out);  // null: refused later, if it is still in use then
}

/// --resume RUN continues the run in its folder or, with another --out, as a new run from its newest
/// checkpoint. Rank 0 decides: others may not see the folder.
void settle_resumed_run(Config& config, const ddp::ProcessGroup& group) {
  auto& resume = config.train.checkpoint.resume;
  auto& out = config.train.out;
  std::string from;
  std::error_code error;
  if (group.rank() == 0 && resume != "auto" && std::filesystem::is_directory(resume, error)) {
    const bool same = out.empty() || std::filesystem::equivalent(out, resume, error);
    if (same && !std::filesystem::exists(std::filesystem::path(resume) / "summary.json", error) &&
        train::state_files(train::RunFolder(resume)).empty())
      throw UsageError("--resume: " + resume +
                       " has no checkpoint yet, and only a checkpoint tells a run's settings; begin it again "
                       "with the flags that it was started with, --resume=auto and --out=" +
                       resume);
    if (!same || train::RunFolder(resume).identity().run.empty())
      from = checkpoint_of(resume, "--resume: ", Kept::kNewest).string();
    if (same) from = "auto";  // which also finds that the run has ended, or has no checkpoint yet
  }
  from = ddp::broadcast_from_rank_0(group, from);
  if (from.empty()) return;
  if (from == "auto" && out.empty()) out = resume;
  resume = from;
}

/// What a connected group does.
train::Ending run_task(Config& config, const ddp::ProcessGroup& group, InMemory& memory) {
  memory.task.load(config);
  train::Task& task = *memory.task.task;
  memory.task.used = true;
  train::check_options(task, config.train);
  if (run_instead_of_training(config, task, group, memory)) return train::Ending::kComplete;
  const bool searches = config.find_lr || config.find_batch_size;
  if (!searches) prepare_run(config, group, memory);
  torch::manual_seed(train::rank_seed(config.train.seed, group.rank()));  // dropout differs between ranks
  if (config.find_lr) train::find_lr(task, config.train, group);
  if (config.find_batch_size) train::find_batch_size(task, config.train, group);
  if (searches) return train::Ending::kComplete;
  return train::fit(task, config.train, group);
}

}  // namespace

void set_up_memory(Config& config, const ddp::Rounds& rounds, at::Device device, InMemory& in_memory) {
  choose_memory(config, rounds, device.is_cuda(), in_memory);
  if (rounds.env().rank == 0) log_unused_flags(config, rounds.enabled(), in_memory.run.parts);
}

std::optional<train::Ending> run_round(Config& config, ddp::Rounds& rounds, InMemory& memory) {
  const auto run = [&] {
    if (rounds.env().round > 0 && config.train.memory != nullptr) memory.task.load_in_background(config);
    // Before the data, which may take minutes to load.
    auto group = ddp::ProcessGroup::connect(rounds.env(), rounds.options(group_options(config)));
    put_back_runs(config, group);
    const bool only_looks = config.find_lr || config.find_batch_size;  // loads no checkpoint
    settle_resumed_run(config, group);
    continue_own_run(config, rounds.env(), group);
    if (trains(config) && group.rank() == 0) hold_resumed_run(config);
    apply_checkpoint_settings(config, rounds, group, memory);
    if (rounds.env().round > 0 && config.train.memory != nullptr) memory.run.share(group);
    memory.task.finish_loading();
    memory.run.connect(group, rounds.env().local_world_size);
    const auto disconnect = c10::make_scope_exit([&] { memory.run.disconnect(); });
    if (std::exchange(memory.task.used, false) && !memory.run.state) memory.task.task.reset();
    config.resumes = !only_looks && (memory.run.state || !memory.checkpoint_settings->empty());
    // Its command alone may not tell them: the files that it names may be gone.
    if (memory.run.state) {
      if (!memory.has_settings) hold_settings(config, config_of_state(*memory.run.state), group);
      config.resumed_shape = memory.run.state->model_config;
    }
    if (memory.run.begun && !memory.run.state) {  // lost before anything was kept in memory
      auto& resume = config.train.checkpoint.resume;
      const bool has_saved = memory.run.has_saved(group);
      if (has_saved || resume.empty()) resume = "auto";
      config.resumes = config.resumes || has_saved;
      if (has_saved) {
        Config saved = config;
        saved.train.out = memory.run.folder;
        const auto json =
            ddp::broadcast_from_rank_0(group, group.rank() == 0 ? config_of_checkpoint(saved) : "");
        if (!json.empty()) hold_settings(config, json, group);
        memory.task.task.reset();  // with --fsdp, of a model whose weights were read
      }
    }
    memory.has_settings = true;
    const auto ending = run_task(config, group, memory);
    rounds.announce(false);
    if (memory.run.file) memory.run.wait();  // others may still be copying
    group.close();
    memory.run.drop_states(/*ended=*/true);  // another training of this process must not take it for its own
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

}  // namespace ddprun::worker
