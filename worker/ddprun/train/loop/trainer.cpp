#include <ddprun/train/loop/trainer.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/loader.h>
#include <ddprun/ddp/checks.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/cuda_backend.h>
#include <ddprun/group/rounds.h>
#include <ddprun/train/loop/callbacks.h>
#include <ddprun/train/loop/checkpoint_saver.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/loop/resume.h>
#include <ddprun/train/loop/run_evaluation.h>
#include <ddprun/train/loop/run_status.h>
#include <ddprun/train/loop/step_memory.h>
#include <ddprun/train/loop/stop_signals.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/record/rank_resources.h>
#include <ddprun/train/record/run_log.h>
#include <ddprun/train/state/run_folder.h>
#include <ddprun/train/state/run_memory.h>

namespace ddprun::train {
namespace {

using Occasion = CheckpointSaver::Occasion;

constexpr double kNoTime = 1e-3;         // seconds left; 0 would mean no limit
constexpr std::int64_t kFirstSteps = 2;  // while the reducer rebuilds buckets and cuDNN searches

class Trainer {
 public:
  Trainer(const Run& run, std::optional<Resumed> resumed)
      : run_(run),
        resumed_(std::move(resumed)),
        resources_(run.group, run.options.gpu_uuid),
        log_(run, resumed_ ? std::optional(resumed_->state.step) : std::nullopt, rows_to_keep()),
        model_(run),
        callbacks_(make_callbacks(run, model_, resumed_.has_value())),
        saver_(run, model_, callbacks_, log_.record()),
        evaluation_(run, model_, resources_, log_, [this] { return leaves_evaluation(); }),
        sampler_(run.task.train_set->size(), run.group.size(), run.group.rank(),
                 {.seed = run.options.seed, .drop_last = run.options.drop_last}),
        loader_(*run.task.train_set, {.batch_size = run.options.batch_size,
                                      .threads = run.options.loader_threads,
                                      .device = run.group.device()}),
        earlier_(resumed_ ? before_resume(resumed_->state, run) : SoFar{}),
        spent_before_(resumed_ ? sum(earlier_.spent, run.in_memory.spent, -1) : Ledger{}),
        agreement_(
            run.group,
            run.options.max_seconds > 0 ? std::max(run.options.max_seconds - earlier_.seconds, kNoTime) : 0,
            [this] { return memory_.can_snapshot(); }),
        memory_(run, saver_, totals_, log_.record(), [this] { return so_far(); }),
        status_(run, model_, evaluation_, saver_) {}

  /// If there is a memory, leaves the newest whole step there when it throws.
  Ending run() {
    if (run_.options.memory == nullptr) return train();
    run_.options.memory->begin(run_.identity);
    try {
      return train();
    } catch (const ddp::ReplicasDiffer&) {
      run_.options.memory->drop_states();
      throw;
    } catch (...) {
      ddp::Rounds::leave();  // a checkpoint may still be written
      memory_.remember(status_.spent());
      throw;
    }
  }

 private:
  Ending train() {
    if (resumed_) saver_.resume(*resumed_);
    if (!resumed_ || !resumed_->path.empty()) log_.announce(model_.learning_rate(), !resumed_);
    if (resumed_)
      resume();
    else
      evaluation_.sanity_check();
    memory_.commit(at_, {at_.epoch, next_epoch_.samples}, at_.evaluating);
    if (memory_.has_parts()) memory_.snapshot_part(next_epoch_.losses);
    if (at_.evaluating != Evaluating::kNothing) train_epoch();
    while (!over()) train_epoch();
    if (terminated_) {
      log_.terminate();
      if (run_.folder != nullptr && !run_.folder->replaced().empty())
        log_info("the run that --overwrite has replaced is in " + run_.folder->replaced().string() +
                 " until this run goes on and writes a checkpoint");
      return Ending::kTerminated;
    }
    // The last checkpoint may have been lost with the rank that wrote it, or the run killed before it had
    // one.
    if (recovered_ ? !earlier_.trained : lacks_last_at_ == at_.step)
      save({at_.epoch, next_epoch_.samples}, Occasion::kEnd);
    agreement_.end([&] { saver_.wait(); });
    trained_ = true;
    if (memory_.has_parts()) memory_.snapshot_part_now(epoch_.losses);
    status_.report("evaluate", at_);
    evaluation_.evaluate_at_end(at_, saver_);
    const auto& kept = run_.options.checkpoint;
    if (!run_.options.out.empty() && kept.top_k != 0 && !kept.save_last && saver_.best_path().empty())
      save({at_.epoch, next_epoch_.samples}, Occasion::kEnd);
    evaluation_.draw_figures(at_.step);
    finish();
    return evaluation_.ending(at_);
  }

  SoFar so_far() const {
    return {earlier_.seconds + seconds_since(begin_), sum(spent_before_, status_.spent()),
            earlier_.training_seconds + evaluation_.training_seconds(), control_.stop_reason(),
            earlier_.trained || trained_};
  }

  /// Rows of metrics, when the run resumes.
  std::optional<std::int64_t> rows_to_keep() const {
    if (!resumed_) return std::nullopt;
    const auto* memory = run_.options.memory;
    return resumed_->path.empty() && !memory->parts ? memory->rows : rows_of(resumed_->state);
  }

  bool over() const {
    return terminated_ || at_.epoch >= run_.options.epochs || control_.stop_reason() ||
           (run_.options.max_steps > 0 && at_.step >= run_.options.max_steps);
  }

  void resume() {
    const auto& state = resumed_->state;
    at_.step = state.step;
    at_.epoch = state.position.epoch;
    at_.evaluating = evaluating_of(state);
    next_epoch_.samples = state.position.samples;
    at_.metrics = metrics_of(state);
    evaluation_.resume(at_.metrics);
    load_sums({totals_, next_epoch_.losses}, *resumed_, run_.group);
    recovered_ = resumed_->path.empty();
    if (!recovered_ && run_.options.checkpoint.save_last && resumed_->path.stem() != "last")
      lacks_last_at_ = at_.step;
    if (earlier_.stop_reason) control_.request_stop(*earlier_.stop_reason);
    log_.print(recovered_
                   ? "continuing from memory after step " + std::to_string(at_.step)
                   : "resumed from " + resumed_->path.string() + " at step " + std::to_string(at_.step));
    if (recovered_ && !run_.options.memory->totals.empty()) totals_.set_sums(run_.options.memory->totals);
    resumed_.reset();  // its tensors have been copied
  }

  // -- training --

  void train_epoch() {
    begin_epoch();
    const auto resumed_in = std::exchange(at_.evaluating, Evaluating::kNothing);
    if (resumed_in == Evaluating::kWithinEpoch) {
      act_after_step();
      if (!terminated_) commit_step();
    }
    if (resumed_in != Evaluating::kEpoch && !epoch_.done() && !over()) train_steps();
    if (terminated_) return;
    seconds_between_epochs_ = 0;
    const SecondsAdded between(seconds_between_epochs_);
    if (!evaluate_epoch()) return;
    if (epoch_.done()) return finish_epoch();
    next_epoch_.samples = epoch_.samples;  // if a resumed run continues here
    next_epoch_.losses = epoch_.losses;
    memory_.commit(at_, {at_.epoch, epoch_.samples}, Evaluating::kNothing);
    save(judges_epochs() ? Occasion::kValidation : Occasion::kEnd);
  }

  void train_steps() {
    status_.report("train", at_);
    begin_work(Work::kTraining);
    auto join = model_.join();
    while (const auto batch = next_batch()) {
      const auto result = train_batch(*batch);
      if (losses_.batches() == run_.options.accumulate || epoch_.done()) end_step();
      if (over() || is_last_to_show(*batch)) evaluation_.show_training(*batch, result);
      if (over()) break;
    }
    if (join) join->finish([this] { take_step_of_others(); });
    log_.clear_bar();
    for (const auto& callback : callbacks_) callback->on_pause(at_);
  }

  std::optional<data::Batch> next_batch() {
    const SecondsAdded waiting(at_.data_wait), in_all(status_.data_seconds());
    return loader_.next();
  }

  void begin_epoch() {
    run_.task.module->train();
    epoch_ = std::exchange(next_epoch_, {});
    epoch_.begin = Clock::now();
    sampler_.set_epoch(at_.epoch, epoch_.samples);
    epoch_.start(sampler_.indices(), sampler_.num_without_padding(), run_.options.parallel.join,
                 run_.options.drop_last, run_.options.batch_size, run_.group.size());
    loader_.start_epoch(epoch_.indices, at_.epoch);
    epoch_.batches = epoch_.batch + loader_.batches();
    if (run_.options.parallel.join)  // as many steps on every rank
      epoch_.batches = static_cast<std::int64_t>(
          ddp::all_reduce_max(run_.group, {static_cast<double>(epoch_.batches)})[0]);
    if (run_.task.epoch_begin_line) log_.print_own(run_.task.epoch_begin_line(rank_epoch()));
  }

  BatchResult train_batch(const data::Batch& batch) {
    std::optional<ddp::SyncDebugScope> no_waits;
    if (batches_here_++ >= kFirstSteps * run_.options.accumulate) no_waits.emplace(run_.group.device());
    const bool last = losses_.batches() + 1 == run_.options.accumulate || epoch_.batch + 1 == epoch_.batches;
    if (losses_.batches() == 0) begin_step();
    const RunStatus::Batch counted_batch(status_, batch.size());
    auto pass = model_.train(batch, last);
    const auto counted = std::min(epoch_.to_count, batch.size());
    totals_.add(pass.result, counted);
    losses_.add(pass.loss);
    epoch_.to_count -= counted;
    epoch_.samples += batch.size() * run_.group.size();
    ++epoch_.batch;
    if (last) commit_optimizer_step();
    note_progress(Work::kTraining);
    return std::move(pass.result);
  }

  void begin_step() {
    model_.zero_grad();
    if (run_.options.memory != nullptr)
      torch::manual_seed(rank_seed(
          run_.options.seed + static_cast<std::uint64_t>(at_.step) * 0xD1B54A32D192ED03u, run_.group.rank()));
  }

  /// The follow-up work of the step is still to be done.
  void commit_optimizer_step() {
    ++at_.step;
    memory_.commit(at_, {at_.epoch, epoch_.samples}, Evaluating::kWithinEpoch);
    // At once: what follows may find that a rank is lost, and the step does not come again.
    at_.indices = {};  // with --join this may be a step of other ranks
    if (losses_.batches() > 0) at_.indices = epoch_.newest(losses_.batches(), run_.options.batch_size);
    for (const auto& callback : callbacks_) callback->on_step(at_, control_);
  }

  /// Its follow-up work is done too, except for a checkpoint.
  void commit_whole_step() {
    memory_.commit(at_, {at_.epoch, epoch_.samples},
                   epoch_.done() || over() ? Evaluating::kEpoch : Evaluating::kNothing);
  }

  void commit_step() {
    commit_whole_step();
    memory_.snapshot_if_due(epoch_.losses);
  }

  /// The epoch's last full batch: the very last may be a single example.
  bool is_last_to_show(const data::Batch& batch) const {
    return epoch_.batch + 1 >= epoch_.batches &&
           (batch.size() == run_.options.batch_size || epoch_.batch == epoch_.first_batch + 1);
  }

  /// Once after a step, before it is kept anywhere but in this process. Every rank calls it.
  void check_replicas() {
    if (run_.options.parallel.check_replicas == 0 || std::exchange(checked_step_, at_.step) == at_.step)
      return;
    model_.check_replicas(at_.step);
  }

  void end_step() {
    run_.options.heartbeat.beat();
    if (const auto every = run_.options.parallel.check_replicas; every > 0 && at_.step % every == 0)
      check_replicas();
    const auto step_of_epoch = (epoch_.batch + run_.options.accumulate - 1) / run_.options.accumulate - 1;
    const bool due = step_of_epoch % run_.options.log_interval == 0;
    if (due || epoch_.done()) log_step(/*with_line=*/due);
    if (log_.bar_is_due()) show_progress();
    status_.report_step(at_);
    if (run_.task.epoch_end_line) epoch_.losses.add(losses_);
    losses_.clear();
    act_after_step();
    if (!terminated_) commit_step();
  }

  /// The last step of an epoch in which other ranks have a batch more (--join), with their gradients.
  void take_step_of_others() {
    model_.step();
    epoch_.samples = run_.task.train_set->size();
    ++epoch_.batch;
    commit_optimizer_step();
    act_after_step();
    if (!terminated_) commit_step();
  }

  /// Validates, handles requests and saves, as required after a step.
  void act_after_step() {
    const auto validates = run_.options.val_every_steps;
    if (validates > 0 && at_.step % validates == 0 && !validate_within_epoch()) return;
    note(agreement_.after_step());
    const auto every = run_.options.checkpoint.every_steps;
    if (every > 0 && at_.step % every == 0 && !epoch_.done())
      save(Occasion::kStep);
    else if (save_requested_)
      save(Occasion::kRequest);
  }

  void note(const Requests& requests) {
    if (requests.keep) memory_.agree_to_snapshot();
    if (requests.out_of_time) control_.request_stop(kTimeIsUp);
    terminated_ = terminated_ || requests.terminate;
    save_requested_ = save_requested_ || requests.save || requests.terminate;
  }

  bool leaves_evaluation() {
    in_evaluation_ = agreement_.after_evaluating();
    in_evaluation_.keep = false;  // only between steps
    return in_evaluation_.terminate || in_evaluation_.save;
  }

  /// Calls it until it returns a row, which no request then interrupts; a checkpoint made meanwhile leads
  /// back here. False if the run was terminated.
  bool evaluate(Evaluating which, const std::function<std::optional<report::MetricRow>()>& evaluation) {
    at_.evaluating = which;
    status_.report("evaluate", at_);
    for (;;) {
      if (auto row = evaluation()) {
        at_.metrics = std::move(*row);
        at_.evaluating = Evaluating::kNothing;
        return true;
      }
      note(in_evaluation_);
      if (save_requested_) save(Occasion::kRequest);
      if (terminated_) return false;
    }
  }

  void log_step(bool with_line) {
    const auto before = epoch_.batch - losses_.batches();
    TrainProgress progress{
        at_.epoch,
        epoch_.first_samples + (before - epoch_.first_batch) * run_.options.batch_size * run_.group.size(),
        std::min(run_.task.train_set->size(), epoch_.samples),
        run_.task.train_set->size(),
        static_cast<double>(before) / static_cast<double>(epoch_.batches),
        losses_.mean()};
    // With --join, ranks may have different numbers of batches, so rank 0 logs its own loss.
    if (!run_.options.parallel.join) progress.loss = resources_.sum({progress.loss})[0] / run_.group.size();
    status_.set_loss(progress.loss);
    log_.progress(at_, progress, with_line, model_.learning_rate(), resources_.take_row());
  }

  void show_progress() {
    auto bar = epoch_.bar();
    bar.label = "epoch " + std::to_string(at_.epoch + 1) + "/" + std::to_string(run_.options.epochs);
    bar.loss = losses_.mean();
    bar.measure = totals_.first_measure();
    const auto& options = run_.options;
    const auto steps_left =
        options.max_steps > 0 ? std::optional(options.max_steps - at_.step) : std::nullopt;
    bar.run_left = seconds_after_epoch(bar, options.epochs - at_.epoch - 1, steps_left, options.accumulate,
                                       seconds_between_epochs_);
    log_.bar(bar);
  }

  RankEpoch rank_epoch() const {
    return {run_.group.rank(),
            run_.group.device().is_cuda() ? "GPU" : "CPU",
            at_.epoch,
            run_.options.epochs,
            std::min(run_.options.batch_size, static_cast<std::int64_t>(epoch_.indices.size())),
            epoch_.batches,
            epoch_.losses.mean()};
  }

  // -- what follows --

  /// False if the run was terminated.
  bool validate_within_epoch() {
    const SecondsAdded elsewhere(epoch_.seconds_elsewhere);
    for (const auto& callback : callbacks_) callback->on_pause(at_);
    if (!evaluate(Evaluating::kWithinEpoch, [&] { return evaluation_.within_epoch(at_); })) return false;
    for (const auto& callback : callbacks_) callback->on_validation(at_, control_);
    commit_whole_step();
    if (!epoch_.done()) save(Occasion::kValidation);
    run_.task.module->train();
    return true;
  }

  /// Also for an epoch that ended early. False if the run was terminated.
  bool evaluate_epoch() {
    const double seconds = epoch_.seconds();
    if (run_.task.epoch_end_line) log_.print_own(run_.task.epoch_end_line(rank_epoch()));
    const auto trained = std::min(run_.task.train_set->size(), epoch_.samples) - epoch_.first_samples;
    const RunEvaluation::Epoch epoch{totals_, static_cast<double>(std::max<std::int64_t>(0, trained)),
                                     seconds};
    return evaluate(Evaluating::kEpoch, [&] { return evaluation_.end_of_epoch(at_, epoch); });
  }

  /// Whether metrics are compared at the end of epochs.
  bool judges_epochs() const { return run_.options.val_every_steps == 0; }

  /// After a whole epoch: the next learning rate, callbacks, a checkpoint.
  void finish_epoch() {
    model_.end_epoch(find_metric(at_.metrics, run_.monitor));
    if (judges_epochs())
      for (const auto& callback : callbacks_) callback->on_validation(at_, control_);
    for (const auto& callback : callbacks_) callback->on_epoch(at_, control_);
    totals_ = Totals(run_.task.measures);
    epoch_.losses = {};
    memory_.commit(at_, {at_.epoch + 1, 0}, Evaluating::kNothing);
    const bool due = at_.epoch % run_.options.checkpoint.save_every == 0;
    const bool with_weights = due && !run_.task.weights_file.empty();
    const bool of_epoch = due || at_.epoch + 1 >= run_.options.epochs || over();
    const auto every = run_.options.checkpoint.every_steps;
    if ((of_epoch || (every > 0 && at_.step % every == 0)) &&
        save({at_.epoch + 1, 0}, of_epoch && judges_epochs() ? Occasion::kValidation : Occasion::kStep,
             with_weights ? run_.options.out / run_.task.weights_file : ""))
      log_.print(run_.task.weights_line(at_.epoch, run_.options.out / run_.task.weights_file));
    ++at_.epoch;
  }

  void save(Occasion occasion) { save({at_.epoch, epoch_.samples}, occasion); }

  /// On a slow disk a rank waits here until its last checkpoint is written, and the others for it: in the
  /// next step they would seem to be stuck (StopSignals).
  bool save(const Position& position, Occasion occasion, const std::filesystem::path& weights = {}) {
    const Saving saving;
    check_replicas();
    model_.synchronize_buffers();
    const EpochSums sums{totals_, epoch_.losses};
    const bool wrote_weights = saver_.save(at_, position, sums, so_far(), occasion, weights);
    auto requests = agreement_.now();
    requests.keep = requests.out_of_time = false;  // only between steps
    note(requests);
    if (std::exchange(save_requested_, false) && occasion != Occasion::kRequest &&
        !run_.options.checkpoint.save_last)
      saver_.save(at_, position, sums, so_far(), Occasion::kRequest);
    return wrote_weights;
  }

  void finish() {
    saver_.wait();
    RunSummary summary;
    summary.epochs = at_.epoch;
    summary.steps = at_.step;
    summary.memory = peak_memory(run_.group);
    summary.best_checkpoint = saver_.best_path();
    evaluation_.add_to(summary, at_);
    if (const auto& save = run_.options.checkpoint; save.save_last || save.top_k != 0)
      summary.checkpoint =
          save.save_last || summary.best_checkpoint.empty() ? saver_.last_path() : summary.best_checkpoint;
    summary.stop_reason = control_.stop_reason().value_or("");
    if (run_.options.precision.precision == Precision::k16Mixed)
      summary.loss_scale = model_.optimization().loss_scale();
    summary.skipped_steps = model_.optimization().skipped_steps();
    summary.ddp = model_.statistics();
    const auto whole_run = so_far();
    summary.seconds = whole_run.seconds;
    summary.training_seconds = whole_run.training_seconds;
    summary.spent = whole_run.spent;
    log_.finish(summary);
    if (run_.folder != nullptr && !run_.options.checkpoint.save_last)
      run_.folder->end_within(limits_of(run_));
    status_.report("done", at_);
  }

  const Run& run_;
  const Clock::time_point begin_ = Clock::now();
  std::optional<Resumed> resumed_;
  RankResources resources_;
  RunLog log_;
  ParallelModel model_;
  Callbacks callbacks_;
  CheckpointSaver saver_;
  RunEvaluation evaluation_;
  data::DistributedSampler sampler_;
  data::Loader loader_;
  const SoFar earlier_;        ///< what the resumed state has
  const Ledger spent_before_;  ///< of it, what this process has not spent itself, in earlier rounds
  StopAgreement agreement_;
  StepMemory memory_;
  RunStatus status_;

  TrainState at_;
  Control control_;
  bool terminated_ = false, save_requested_ = false;
  bool trained_ = false;
  std::optional<std::int64_t> lacks_last_at_;  ///< the step of a checkpoint that is continued and not last.pt
  bool recovered_ = false;  ///< a lost rank was replaced, and the run continued from memory
  Requests in_evaluation_;
  double seconds_between_epochs_ = 0;  // validation and checkpoint after the last one
  EpochProgress epoch_, next_epoch_;   // next: where a resumed run starts
  Totals totals_{run_.task.measures};  // of this epoch on this rank
  StepLosses losses_;
  std::int64_t batches_here_ = 0;  // trained here since the process started
  std::int64_t checked_step_ = 0;  // the newest after which replicas were compared
};

}  // namespace

std::uint64_t rank_seed(std::uint64_t seed, int rank) {
  return seed + static_cast<std::uint64_t>(rank) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
}

Ending fit(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group) {
  check_options(task, options);
  const auto alone = group.rank() == 0 ? only_training_in(options.out) : nullptr;
  std::vector<FolderLock> locks;  // first: until an earlier run has ended, it may write a newer checkpoint
  if (group.rank() == 0 && std::filesystem::is_directory(options.out)) {
    locks = lock_run_folder(options.out);
    put_back_half_replaced(options.out);
  }
  auto resumed = options.memory != nullptr && options.memory->state
                     ? std::optional(Resumed{{}, *options.memory->state})
                     : find_resumed({task, options, group});
  TrainerOptions in_force = options;
  if (options.on_resume && !options.checkpoint.resume.empty())
    options.on_resume(in_force, resumed ? resumed->state.config_json : "");
  Run run{task, in_force, group};
  check_length(run);
  warn_of_test_set(run);
  if (const auto ended = has_ended(run, resumed ? &*resumed : nullptr)) return *ended;
  const auto folder = begin_folder(run, resumed ? &*resumed : nullptr);
  locks.clear();  // the run has its own: what it has replaced is free
  return Trainer(run, std::move(resumed)).run();
}

}  // namespace ddprun::train
