#include <ddprun/train/model/run.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/ddp/model_tensors.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/checkpoint_policy.h>
#include <ddprun/train/state/run_memory.h>

namespace ddprun::train {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

/// Optimizer steps over this many samples on all ranks.
std::int64_t steps_of(std::int64_t samples, std::int64_t ranks, const TrainerOptions& options) {
  const auto divide = [&](std::int64_t a, std::int64_t b) {
    return options.drop_last ? a / b : ceil_div(a, b);
  };
  return ceil_div(divide(divide(samples, ranks), options.batch_size), options.accumulate);
}

void add_set(std::vector<std::string>& names, const Task& task, const std::string& set) {
  names.push_back(set + "_loss");
  for (const auto& measure : task.measures) names.push_back(set + "_" + measure);
}

/// In the row at the end of an epoch.
std::vector<std::string> epoch_metrics(const Task& task) {
  std::vector<std::string> names;
  add_set(names, task, "train");
  names[0] = "train_loss_epoch";  // train_loss belongs to a step
  if (task.validation_set) add_set(names, task, "val");
  if (task.test_set && task.test_every_epoch) add_set(names, task, "test");
  return names;
}

/// within_epochs  checkpoints are judged by validations within epochs, not by the row at an epoch's end
void check_metric(const Task& task, bool within_epochs, const std::string& flag, const std::string& name) {
  std::vector<std::string> names;
  if (within_epochs)
    add_set(names, task, "val");
  else
    names = epoch_metrics(task);
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw UsageError(flag + ": this run has no metric '" + name + "' " +
                     (within_epochs ? "when --val-every-steps validates" : "after an epoch") +
                     ", expected one of " + joined(names, ", "));
}

}  // namespace

std::string choose_monitor(const Task& task, const std::string& wanted, bool within_epochs) {
  if (wanted.empty())
    return task.validation_set                      ? "val_loss"
           : task.test_set && task.test_every_epoch ? "test_loss"
                                                    : "train_loss_epoch";
  check_metric(task, within_epochs, "--monitor", wanted);
  return wanted;
}

MonitorMode monitor_mode(const CheckpointOptions& options, const std::string& monitor) {
  if (!options.mode.empty()) return options.mode == "max" ? MonitorMode::kMax : MonitorMode::kMin;
  for (const char* part : {"acc", "dice", "iou"})
    if (monitor.find(part) != std::string::npos) return MonitorMode::kMax;
  return MonitorMode::kMin;
}

InMemory look_in_memory(const TrainerOptions& options) {
  const auto* memory = options.memory;
  return memory == nullptr ? InMemory{}
                           : InMemory{memory->begun, memory->state.has_value(), memory->parts, memory->spent};
}

RunLength Run::length() const {
  return {options.epochs, steps_of(task.train_set->size(), group.size(), options), options.max_steps};
}

RunProgress Run::progress_of(const TrainingState& state) const {
  const auto now = length();
  const auto epoch = std::min(state.position.epoch, now.epochs);
  const auto samples = std::max<std::int64_t>(0, task.train_set->size() - state.position.samples);
  const auto of_epoch = steps_of(samples, group.size(), options);
  auto left = std::max<std::int64_t>(0, (now.epochs - epoch - 1) * now.steps_per_epoch + of_epoch);
  if (now.max_steps > 0) left = std::min(left, std::max<std::int64_t>(0, now.max_steps - state.step));
  return {std::max<std::int64_t>(0, now.steps() - left), epoch,
          std::max<std::int64_t>(1, now.steps_per_epoch)};
}

std::vector<std::string> Run::metric_columns() const {
  std::vector<std::string> columns = {"epoch", "step", "lr", "train_loss"};
  for (auto& name : epoch_metrics(task)) columns.push_back(std::move(name));
  if (task.test_set && !task.test_every_epoch) add_set(columns, task, "test");
  columns.emplace_back("samples_per_second");
  return columns;
}

bool keeps_parts(const TrainerOptions& options) {
  const auto& parallel = options.parallel;
  return parallel.fsdp || parallel.zero1 || parallel.join || parallel.comm_hook == "powersgd";
}

std::string graph_obstacle(const Run& run) {
  const auto& options = run.options;
  const auto& parallel = options.parallel;
  const bool alone = !run.group.communicates();
  for (const auto& [stands, obstacle] : std::initializer_list<std::pair<bool, const char*>>{
           {!run.group.device().is_cuda(), "a CPU"},
           {options.memory != nullptr, "--recover-on-gpu"},
           {options.accumulate > 1, "--accumulate"},
           {parallel.fsdp, "--fsdp"},
           {parallel.nan_check, "--nan-check"},
           {!ddp::ModelTensors(*run.task.module).sparse.empty(), "sparse gradients"},
           {options.optim.changes_momentum(),
            "--lr-schedule=one-cycle, which changes the momentum too (--no-cycle-momentum)"},
           {!alone && run.group.device().is_cuda() && run.group.backend() != "nccl", "--backend=gloo"},
           {!alone && parallel.zero1, "--zero1"},
           {!alone && parallel.join, "--join"},
           {!alone && parallel.find_unused, "--find-unused"},
           {!alone && parallel.static_graph, "--static-graph"},
           {!alone && parallel.comm_hook != "none", "--comm-hook"},
           {!alone && parallel.sync_batch_norm, "--sync-bn"},
           {!alone && run.task.shapes_vary, "several ranks whose batches differ in shape"}})
    if (stands) return obstacle;
  return "";
}

void check_options(const Task& task, const TrainerOptions& options) {
  const bool within_epochs = options.val_every_steps > 0;
  if (within_epochs && !task.validation_set)
    throw UsageError("--val-every-steps: this run has no validation set; add --val-split");
  choose_monitor(task, options.checkpoint.monitor, within_epochs);
  if (options.checkpoint.filename == "last")
    throw UsageError(
        "--checkpoint-name: expected a name other than 'last', which is the newest checkpoint's");
  if (options.checkpoint.filename.find('/') != std::string::npos)
    throw UsageError("--checkpoint-name: expected a name without '/'");
  if (!is_checkpoint_name("x" + options.checkpoint.extension))
    throw UsageError("CheckpointOptions::extension: expected .pt or .ckpt, got '" +
                     options.checkpoint.extension + "'");
  if (!task.weights_file.empty() && !is_checkpoint_name(task.weights_file))
    throw UsageError("Task::weights_file: expected a name that ends in .pt or .ckpt, got '" +
                     task.weights_file + "'");
  for (std::string_view rest = options.checkpoint.filename; !rest.empty();) {  // run.json is UTF-8
    const auto size = first_character(rest).size;
    if (size == 0) throw UsageError("--checkpoint-name: expected a name in UTF-8");
    rest.remove_prefix(size);
  }
  for (const auto& name : metrics_in(options.checkpoint.filename))
    if (name != "lr") check_metric(task, within_epochs, "--checkpoint-name", name);
  if (options.parallel.fsdp && (!task.parameter_groups.empty() || options.optim.grouping.any()))
    throw UsageError(
        "--fsdp: expected one group of parameters, without --norm-weight-decay, --bias-weight-decay and "
        "--layer-decay");
  if (options.parallel.check_replicas > 0 && (options.parallel.fsdp || options.parallel.join))
    throw UsageError(
        "--check-replicas: cannot be used with --fsdp or --join, where ranks are not equal after each step");
  if (task.initialise && !options.parallel.fsdp)
    throw UsageError("Task::initialise: expected --fsdp, which allocates the module's memory");
}

void check_length(const Run& run) {
  const auto& options = run.options;
  const auto length = run.length();
  if (length.steps_per_epoch == 0)
    throw UsageError("--drop-last: no rank has a whole batch; use a --batch-size of at most " +
                     std::to_string(run.task.train_set->size() / run.group.size()));
  const bool plateau = options.optim.schedule == LrScheduleKind::kPlateau;
  const auto most = plateau ? length.steps_per_epoch : length.steps();
  if (options.val_every_steps > most && (plateau || options.checkpoint.patience > 0))
    throw UsageError("--val-every-steps: expected at most " + std::to_string(most) + ", the steps of " +
                     (plateau ? "an epoch, for --lr-schedule=plateau" : "the run, for --patience") +
                     ", got " + std::to_string(options.val_every_steps));
}

void warn_of_test_set(const Run& run) {
  const auto& options = run.options;
  const auto& checkpoint = options.checkpoint;
  if (!run.on_rank_0() || !checkpoint.monitor.empty() || run.monitor != "test_loss") return;
  std::vector<std::string> judges;
  for (const auto& [used, flag] :
       {std::pair(checkpoint.patience > 0, "--patience"), std::pair(checkpoint.top_k != 0, "--save-top-k"),
        std::pair(options.optim.schedule == LrScheduleKind::kPlateau, "--lr-schedule=plateau")})
    if (used) judges.emplace_back(flag);
  if (!judges.empty())
    log_warning(
        joined(judges, ", ") +
        ": uses test_loss, because there is no validation set; results on a test set that is used for "
        "selection are too optimistic; use --val-split, or name another metric with --monitor");
}

}  // namespace ddprun::train
