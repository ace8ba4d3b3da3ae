#include "worker/train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

#include <torch/nn/module.h>

#include "common/errors.h"
#include "common/logging.h"
#include "worker/data/distributed_sampler.h"
#include "worker/data/loader.h"
#include "worker/ddp/collectives.h"
#include "worker/train/callbacks.h"
#include "worker/train/checkpoint_saver.h"
#include "worker/train/evaluation.h"
#include "worker/train/parallel_model.h"
#include "worker/train/run_log.h"
#include "worker/train/stop_agreement.h"

namespace ddprun::train {
namespace {

using Clock = std::chrono::steady_clock;
using Occasion = CheckpointSaver::Occasion;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The largest resident set of any rank so far, in MB.
double peak_rss_mb(const ddp::ProcessGroup& group) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return ddp::all_reduce_max(group, {static_cast<double>(usage.ru_maxrss) / 1024})[0];
}

RunLength run_length(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group) {
  const auto batches = ceil_div(ceil_div(task.train_set->size(), group.size()), options.batch_size);
  return {options.epochs, ceil_div(batches, options.accumulate), options.max_steps};
}

/// throws  UsageError if the run will have no such metric
std::string choose_monitor(const Task& task, const std::string& wanted) {
  if (wanted.empty())
    return task.validation_set ? "val_loss" : task.test_every_epoch ? "test_loss" : "train_loss_epoch";
  auto names = epoch_metrics(task);
  if (!task.test_every_epoch)
    std::erase_if(names, [](const std::string& name) { return name.starts_with("test_"); });
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return wanted;
  std::string all;
  for (const auto& name : names) all += (all.empty() ? "" : ", ") + name;
  throw UsageError("--monitor: this run has no metric '" + wanted + "', expected one of " + all);
}

/// Where an epoch stands on this rank.
struct EpochProgress {
  std::int64_t batch = 0;         ///< batches done
  std::int64_t batches = 0;       ///< in all
  std::int64_t pending = 0;       ///< batches since the last optimizer step
  std::int64_t to_count = 0;      ///< examples that are no padding, still to come
  std::int64_t samples = 0;       ///< of all ranks, done
  double pending_loss = 0;        ///< of the batches since the last optimizer step
  double loss_sum = 0;            ///< of all batches' means
  double seconds_elsewhere = 0;   ///< in validation
  std::int64_t first_batch = 0;   ///< where a resumed one went on
  std::int64_t first_samples = 0;
};

class Trainer {
 public:
  Trainer(Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group)
      : task_(task),
        options_(options),
        group_(group),
        monitor_(choose_monitor(task, options.checkpoint.monitor)),
        resumed_(find_resumed(options, task.name, group)),
        log_(task, options, group, resumed_ ? std::optional(resumed_->state.step) : std::nullopt),
        model_(task, group, options, run_length(task, options, group),
               monitor_mode(options.checkpoint, monitor_)),
        callbacks_(make_callbacks(options, monitor_, group)),
        saver_(options, monitor_, group, model_, callbacks_, log_.record()),
        sampler_(task.train_set->size(), group.size(), group.rank(), {.seed = options.seed}),
        loader_(*task.train_set, {.batch_size = options.batch_size,
                                  .threads = options.loader_threads,
                                  .pin_memory = group.device().is_cuda()}),
        agreement_(group, options.max_seconds) {}

  Ending run() {
    log_.announce();
    if (resumed_) resume();
    else sanity_check();
    while (!over()) train_epoch();
    if (task_.test_set && !task_.test_every_epoch && !terminated_) test_best();
    finish();
    return terminated_ ? Ending::kTerminated : Ending::kComplete;
  }

 private:
  bool over() const {
    return at_.epoch >= options_.epochs || control_.stop_reason() ||
           (options_.max_steps > 0 && at_.step >= options_.max_steps);
  }

  void resume() {
    saver_.resume(*resumed_);
    const auto& state = resumed_->state;
    at_.step = state.step;
    at_.epoch = state.position.epoch;
    resumed_samples_ = state.position.samples;
    resumed_totals_ = totals_of(state, group_);
    if (group_.rank() == 0)
      log_info("resumed from " + resumed_->path.string() + " at step " + std::to_string(at_.step));
    resumed_.reset();  // its tensors have been copied
  }

  /// So that a mistake in the validation comes to light at once and not after an epoch.
  void sanity_check() {
    if (!task_.validation_set || options_.sanity_batches == 0) return;
    evaluate(model_, task_, *task_.validation_set, group_, options_, options_.sanity_batches);
  }

  // -- an epoch --

  void begin_epoch() {
    task_.module->train();
    sampler_.set_epoch(at_.epoch, resumed_samples_);
    auto indices = sampler_.indices();
    epoch_ = {};
    // Padding is at the end of the sampler's order: trained on, but not counted twice in the metrics.
    epoch_.to_count = sampler_.num_without_padding();
    if (options_.parallel.join) indices.resize(static_cast<std::size_t>(epoch_.to_count));  // rank 0 has most
    epoch_.samples = epoch_.first_samples = resumed_samples_;
    epoch_.batch = epoch_.first_batch = resumed_samples_ / (group_.size() * options_.batch_size);
    const auto first_size = std::min<std::int64_t>(options_.batch_size, static_cast<std::int64_t>(indices.size()));
    loader_.start_epoch(std::move(indices), at_.epoch);
    epoch_.batches = epoch_.batch + loader_.batches();
    totals_ = {};
    if (!resumed_totals_.empty()) totals_.set_sums(resumed_totals_);
    resumed_samples_ = 0;
    resumed_totals_.clear();
    at_.metrics.clear();
    if (task_.epoch_begin_line) log_.print_own(task_.epoch_begin_line(rank_epoch(first_size)));
    epoch_begin_ = Clock::now();
  }

  void train_epoch() {
    begin_epoch();
    auto join = model_.join();
    bool complete = true;
    while (const auto batch = loader_.next()) {
      const bool stepped = train_batch(*batch);
      if (stepped && !after_step()) {
        complete = epoch_.batch == epoch_.batches;
        break;
      }
    }
    if (join) join->finish();
    log_.clear_bar();
    if (options_.parallel.join && complete) note(agreement_.now());
    if (complete) end_epoch();
  }

  /// True if it was the last of an optimizer step.
  bool train_batch(const data::Batch& batch) {
    const bool last = epoch_.pending + 1 == options_.accumulate || epoch_.batch + 1 == epoch_.batches;
    if (epoch_.pending == 0) model_.zero_grad();
    const auto result = model_.pass(batch, last, options_.accumulate);
    const auto counted = std::min(epoch_.to_count, batch.size());
    totals_.add(result, counted);
    epoch_.to_count -= counted;
    epoch_.samples += batch.size() * group_.size();
    ++epoch_.batch;
    ++epoch_.pending;
    last_losses_.push_back(result.losses.detach().mean());
    if (last) model_.step();
    return last;
  }

  /// This rank's mean over the batches of the step that was just made. Waits for the device.
  double step_loss() {
    double sum = 0;
    for (const auto& loss : last_losses_) sum += loss.item<double>();
    return sum / static_cast<double>(last_losses_.size());
  }

  /// False if the training is to end here.
  bool after_step() {
    ++at_.step;
    epoch_.pending = 0;
    options_.heartbeat.beat();
    const auto in_epoch = ceil_div(epoch_.batch, options_.accumulate) - 1;
    if (in_epoch % options_.log_interval == 0 || epoch_.batch == epoch_.batches) log_step();
    if (log_.bar_is_due()) show_progress();
    if (task_.epoch_end_line)
      for (const auto& loss : last_losses_) epoch_.loss_sum += loss.item<double>();
    last_losses_.clear();
    for (const auto& callback : callbacks_) callback->on_step(at_, control_);
    const bool last = epoch_.batch == epoch_.batches;
    if (options_.val_every_steps > 0 && at_.step % options_.val_every_steps == 0) validate_within_epoch();
    if (options_.parallel.join) return true;
    const auto requests = agreement_.after_step();
    note(requests);
    const auto every = options_.checkpoint.every_steps;
    if (requests.save || requests.terminate) {
      if (!last) save(Occasion::kNow);
    } else if (every > 0 && at_.step % every == 0 && !last) {
      save(Occasion::kStep);
    }
    if (!over()) return true;
    if (!last && !terminated_) save(Occasion::kNow);
    return false;
  }

  void note(const Requests& requests) {
    if (requests.terminate) {
      terminated_ = true;
      control_.request_stop("SIGTERM");
    }
    if (requests.out_of_time) control_.request_stop("--max-time is over");
  }

  void log_step() {
    double loss = step_loss();
    // Where ranks may have made another number of steps, nobody can be asked: rank 0 tells its own.
    if (!options_.parallel.join) loss = ddp::all_reduce_sum(group_, {loss})[0] / group_.size();
    if (group_.rank() != 0) return;
    const auto total = task_.train_set->size();
    if (task_.train_line)
      log_.print(task_.train_line({at_.epoch, std::min(total, epoch_.samples), total, loss}));
    log_.warn_unless_finite("training loss", loss, at_.step);
    log_.row({{"epoch", at_.epoch}, {"step", at_.step}, {"lr", model_.learning_rate()}, {"train_loss", loss}});
  }

  void show_progress() {
    const double seconds = seconds_since(epoch_begin_) - epoch_.seconds_elsewhere;
    BarState bar;
    bar.label = "epoch " + std::to_string(at_.epoch + 1) + "/" + std::to_string(options_.epochs);
    bar.done = epoch_.batch;
    bar.total = epoch_.batches;
    bar.first = epoch_.first_batch;
    bar.seconds = seconds;
    bar.samples_per_second = static_cast<double>(epoch_.samples - epoch_.first_samples) / seconds;
    bar.loss = step_loss();
    bar.accuracy = totals_.accuracy();
    log_.bar(bar);
  }

  RankEpoch rank_epoch(std::int64_t batch_size) const {
    return {group_.rank(),
            group_.device().is_cuda() ? "GPU" : "CPU",
            at_.epoch,
            options_.epochs,
            batch_size,
            epoch_.batches,
            epoch_.loss_sum / static_cast<double>(std::max<std::int64_t>(1, epoch_.batch - epoch_.first_batch))};
  }

  // -- validation and what follows it --

  Totals validate(const data::Dataset& set, const char* name, report::MetricRow& row) {
    model_.synchronize_buffers();
    auto totals =
        model_.with_averages([&] { return evaluate(model_, task_, set, group_, options_); });
    totals.append_to(row, std::string(name) + "_loss", std::string(name) + "_acc");
    return totals;
  }

  void validate_within_epoch() {
    if (!task_.validation_set) return;
    const auto begin = Clock::now();
    at_.metrics = {{"epoch", at_.epoch}, {"step", at_.step}, {"lr", model_.learning_rate()}};
    const auto totals = validate(*task_.validation_set, "val", at_.metrics);
    task_.module->train();
    log_.test_line("Validation", totals);
    log_.row(at_.metrics);
    for (const auto& callback : callbacks_) callback->on_validation(at_, control_);
    save(Occasion::kValidation);
    epoch_.seconds_elsewhere += seconds_since(begin);
  }

  void end_epoch() {
    const double seconds = seconds_since(epoch_begin_) - epoch_.seconds_elsewhere;
    if (task_.epoch_end_line) log_.print_own(task_.epoch_end_line(rank_epoch(0)));
    train_ = totals_.over_ranks(group_);
    const auto trained = static_cast<double>(
        std::min(task_.train_set->size(), epoch_.samples) - epoch_.first_samples);
    train_seconds_ += seconds;
    trained_samples_ += trained;
    report::MetricRow row = {{"epoch", at_.epoch}, {"step", at_.step}, {"lr", model_.learning_rate()}};
    train_->append_to(row, "train_loss_epoch", "train_acc");
    const bool validates = options_.val_every_steps == 0;
    if (task_.validation_set && validates) {
      validation_ = validate(*task_.validation_set, "val", row);
      log_.test_line("Validation", *validation_);
    }
    if (task_.test_set && task_.test_every_epoch) {
      test_ = validate(*task_.test_set, "test", row);
      log_.test_line("Test", *test_);
      log_.warn_unless_finite("test loss", test_->mean_loss(), at_.step);
    }
    row.emplace_back("samples_per_second", trained / seconds);
    log_.row(row);
    finish_epoch(std::move(row), validates);
  }

  void finish_epoch(report::MetricRow row, bool validates) {
    if (!validates)  // what the last validation within the epoch gave is the newest there is
      for (const auto& [name, value] : at_.metrics)
        if (name.starts_with("val_")) row.emplace_back(name, value);
    at_.metrics = std::move(row);
    model_.end_epoch(at_.metric(monitor_));
    if (validates)
      for (const auto& callback : callbacks_) callback->on_validation(at_, control_);
    const auto epoch = at_.epoch;
    epoch_.samples = 0;
    totals_ = {};
    next_epoch_ = epoch + 1;
    const bool ends = next_epoch_ >= options_.epochs || control_.stop_reason() || over();
    if (epoch % options_.checkpoint.save_every == 0 || ends)
      save(validates ? Occasion::kValidation : Occasion::kStep);
    at_.epoch = next_epoch_;
  }

  void save(Occasion occasion) {
    model_.synchronize_buffers();
    const Position position{next_epoch_ > at_.epoch ? next_epoch_ : at_.epoch, epoch_.samples};
    saver_.save(at_, position, totals_.sums(), occasion);
  }

  void test_best() {
    const auto best = saver_.best_path();
    if (!best.empty()) {
      TrainingState state;
      if (group_.rank() == 0) state = read_checkpoint(best);
      model_.load_weights_of_rank_0(state, best);
      log_.print("testing the best checkpoint: " + best.string());
      test_ = evaluate(model_, task_, *task_.test_set, group_, options_);
    } else {
      report::MetricRow unused;
      test_ = validate(*task_.test_set, "test", unused);
    }
    report::MetricRow row = {{"epoch", std::max<std::int64_t>(0, at_.epoch - 1)}, {"step", at_.step}};
    test_->append_to(row, "test_loss", "test_acc");
    log_.test_line("Test", *test_);
    log_.row(row);
  }

  void finish() {
    const double peak = peak_rss_mb(group_);
    const auto best = saver_.best_path();
    if (control_.stop_reason()) log_.print("stopped at step " + std::to_string(at_.step) + ": " + *control_.stop_reason());
    nlohmann::ordered_json summary = {{"task", task_.name},
                                      {"world_size", group_.size()},
                                      {"epochs", at_.epoch},
                                      {"steps", at_.step},
                                      {"seconds", seconds_since(begin_)},
                                      {"samples_per_second", trained_samples_ / train_seconds_}};
    const auto add = [&](const std::optional<Totals>& totals, const std::string& set) {
      if (!totals) return;
      summary[set + "_loss"] = totals->mean_loss();
      if (const auto accuracy = totals->accuracy()) summary[set + "_acc"] = *accuracy;
    };
    add(train_, "train");
    add(validation_, "val");
    add(test_, "test");
    summary["checkpoint"] = saver_.last_path().string();
    if (!best.empty()) summary["best_checkpoint"] = best.string();
    if (control_.stop_reason()) summary["stopped"] = *control_.stop_reason();
    if (options_.precision.precision == Precision::k16Mixed) {
      summary["loss_scale"] = model_.optimization().loss_scale();
      summary["skipped_steps"] = model_.optimization().skipped_steps();
    }
    summary["peak_rss_mb"] = peak;
    summary["ddp"] = to_json(model_.statistics());
    log_.finish(summary, saver_.last_path());
  }

  Task& task_;
  const TrainerOptions& options_;
  const ddp::ProcessGroup& group_;
  const std::string monitor_;
  std::optional<Resumed> resumed_;
  RunLog log_;
  ParallelModel model_;
  CheckpointSaver::Callbacks callbacks_;
  CheckpointSaver saver_;
  data::DistributedSampler sampler_;
  data::Loader loader_;
  StopAgreement agreement_;

  TrainState at_;
  Control control_;
  EpochProgress epoch_;
  std::int64_t next_epoch_ = 0;
  std::int64_t resumed_samples_ = 0;
  std::vector<double> resumed_totals_;
  std::vector<at::Tensor> last_losses_;  // of the step's batches
  bool terminated_ = false;
  Totals totals_;                                 // of this epoch and rank
  std::optional<Totals> train_, validation_, test_;  // the newest, over all ranks
  double train_seconds_ = 0, trained_samples_ = 0;
  Clock::time_point begin_ = Clock::now(), epoch_begin_ = begin_;
};

}  // namespace

std::uint64_t rank_seed(std::uint64_t seed, int rank) {
  return seed + static_cast<std::uint64_t>(rank) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
}

Ending fit(Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group) {
  return Trainer(task, options, group).run();
}

}  // namespace ddprun::train
