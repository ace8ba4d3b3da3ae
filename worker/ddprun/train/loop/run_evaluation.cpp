#include <ddprun/train/loop/run_evaluation.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <ddprun/common/text.h>
#include <ddprun/group/collectives.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/loop/checkpoint_saver.h>
#include <ddprun/train/loop/stop_signals.h>
#include <ddprun/train/optim/monitor.h>

namespace ddprun::train {
namespace {

constexpr int kDrawRest = 20;  // drawing takes at most a twentieth of the time

std::vector<Evaluated> on_cpu(const std::vector<Evaluated>& evaluated) {
  const auto to_cpu = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.detach().cpu() : tensor;
  };
  std::vector<Evaluated> copies;
  for (const auto& [batch, result] : evaluated) {
    BatchResult copy{to_cpu(result.losses), {}, to_cpu(result.scores)};
    for (const auto& [name, values] : result.measures) copy.measures.emplace_back(name, to_cpu(values));
    copies.push_back({batch.mapped(to_cpu), std::move(copy)});
  }
  return copies;
}

/// Whether the report's slider shows this epoch, from 1: 1, 2, 3, 4, 6, 8, 12, 16, 24, ... Most changes
/// early, and of a long run there are still few.
bool is_shown_epoch(std::int64_t epoch) {
  while (epoch % 2 == 0) epoch /= 2;
  return epoch == 1 || epoch == 3;
}

}  // namespace

RunEvaluation::RunEvaluation(const Run& run, ParallelModel& model, RankResources& resources, RunLog& log,
                             std::function<bool()> leave)
    : run_(run), model_(model), resources_(resources), log_(log), leave_(std::move(leave)) {}

std::optional<Evaluation> RunEvaluation::evaluate(const data::Dataset& set, std::int64_t max_batches) {
  const auto after_batch = [this] {
    run_.options.heartbeat.beat();
    note_progress(Work::kEvaluation);
  };
  begin_work(Work::kEvaluation);
  return train::evaluate(model_, run_, set, after_batch, max_batches, max_batches > 0 ? nullptr : leave_);
}

void RunEvaluation::sanity_check() {
  const auto batches = run_.options.sanity_batches;
  if (run_.task.validation_set && batches > 0) evaluate(*run_.task.validation_set, batches);
}

bool RunEvaluation::evaluate_set(Set which, const TrainState& at, report::MetricRow& row, bool with_line) {
  const SecondsAdded seconds(evaluation_seconds_);
  const bool test = which == Set::kTest;
  samples_.reset();
  last_.reset();  // frees its memory first
  last_ = evaluate(test ? *run_.task.test_set : *run_.task.validation_set);
  if (!last_) return false;
  last_set_ = which;
  drawn_ = false;
  (test ? test_ : validation_) = last_->totals;
  last_->totals.append_to(row, test ? "test" : "val");
  if (with_line) log_.result_line(test ? "Test set" : "Validation", last_->totals);
  if (test && run_.task.test_every_epoch)
    log_.warn_unless_finite("test loss", last_->totals.mean_loss(), at.step);
  if (draw_is_due()) draw_last(at.step);
  return true;
}

bool RunEvaluation::evaluate_now(Set which, const TrainState& at, report::MetricRow& row, bool with_line) {
  return model_.with_averages([&] {
    model_.synchronize_buffers();  // those of the averages: a checkpoint contains them
    return evaluate_set(which, at, row, with_line);
  });
}

report::MetricRow RunEvaluation::new_row(const TrainState& at) const {
  return {{"epoch", at.epoch}, {"step", at.step}, {"lr", model_.learning_rate()}};
}

std::optional<report::MetricRow> RunEvaluation::within_epoch(const TrainState& at) {
  auto row = new_row(at);
  if (!evaluate_now(Set::kValidation, at, row)) return std::nullopt;
  log_.row(row);
  return row;
}

std::optional<report::MetricRow> RunEvaluation::end_of_epoch(const TrainState& at, const Epoch& epoch) {
  train_ = epoch.totals;
  sum_over_ranks([&](std::vector<double> own) { return resources_.sum(std::move(own), true); }, *train_);
  auto row = new_row(at);
  train_->append_to(row, "train", "train_loss_epoch");
  const bool validates = run_.task.validation_set && run_.options.val_every_steps == 0;
  const bool one_line = run_.task.line_per_epoch;
  if (validates && !evaluate_now(Set::kValidation, at, row, !one_line)) return std::nullopt;
  if (one_line) log_.epoch_line(at.epoch, row);
  if (validates && is_shown_epoch(at.epoch + 1)) draw_epoch(formatted("%06ld", at.epoch + 1), at.step);
  if (run_.task.test_set && run_.task.test_every_epoch && !evaluate_now(Set::kTest, at, row))
    return std::nullopt;
  train_seconds_ += epoch.seconds;
  trained_samples_ += epoch.samples;
  if (epoch.samples > 0) row.emplace_back("samples_per_second", epoch.samples / epoch.seconds);
  for (auto& figure : ddp_times(model_.statistics())) row.push_back(std::move(figure));
  for (auto& figure : resources_.take_row()) row.push_back(std::move(figure));
  log_.row(row);
  if (validation_ && !validates) validation_->append_to(row, "val");
  return row;
}

void RunEvaluation::evaluate_at_end(const TrainState& at, CheckpointSaver& saver) {
  leave_ = nullptr;
  auto best = saver.best_path();
  for (std::string problem; !best.empty(); best = saver.best_path_without(best, problem))
    if (problem = model_.load_weights_of(best); problem.empty()) break;
  const bool tests = run_.task.test_set && !run_.task.test_every_epoch;
  report::MetricRow row = {{"epoch", std::max<std::int64_t>(0, at.epoch - 1)}, {"step", at.step}};
  if (!best.empty()) {
    log_.print("best checkpoint: " + best.string());
    report::MetricRow known;  // rows have it where it was measured
    if (run_.task.validation_set) evaluate_set(Set::kValidation, at, known);
    if (run_.task.test_set) evaluate_set(Set::kTest, at, tests ? row : known);
  } else if (tests) {
    evaluate_now(Set::kTest, at, row);
  }
  if (tests) log_.row(row);
}

void RunEvaluation::resume(const report::MetricRow& metrics) {
  Totals latest(run_.task.measures);
  report::MetricRow names;
  latest.append_to(names, "val");
  std::vector<double> sums;
  for (const auto& [name, unknown] : names) {
    const auto value = find_metric(metrics, name);
    if (!value) return;
    sums.insert(sums.end(), {*value, 1});
  }
  latest.set_sums(sums);
  validation_ = latest;
}

bool RunEvaluation::has_diverged(const TrainState& at) const {
  const auto is_bad = [](const auto& figure) {
    return figure.first.find("loss") != std::string::npos && !std::isfinite(figure.second);
  };
  return std::ranges::any_of(at.metrics, is_bad) || (test_ && !std::isfinite(test_->mean_loss()));
}

Ending RunEvaluation::ending(const TrainState& at) const {
  return ddp::any_rank_true(run_.group, has_diverged(at)) && !run_.options.allow_nan ? Ending::kDiverged
                                                                                     : Ending::kComplete;
}

void RunEvaluation::add_to(RunSummary& summary, const TrainState& at) const {
  summary.last = at.metrics;
  summary.diverged = has_diverged(at);
  summary.train = train_;
  summary.validation = validation_;
  summary.test = test_;
  summary.samples_per_second = trained_samples_ / train_seconds_;
  const auto& best = summary.best_checkpoint;
  if (best.empty() || !run_.on_rank_0()) return;
  summary.best = metrics_of(to_training_state(serialize::peek_pt(best), best));
  if (test_ && !run_.task.test_every_epoch) test_->append_to(summary.best, "test");
}

void RunEvaluation::show_training(const data::Batch& batch, const BatchResult& result) {
  if (run_.task.draw_samples && run_.on_rank_0()) trained_ = on_cpu({{batch, result}});
}

void RunEvaluation::draw_figures(std::int64_t step) {
  if (!trained_.empty())
    log_.figure("training_samples", "train_samples", step,
                [&] { return Figure{run_.task.draw_samples(trained_, "training set")}; });
  if (last_ && !drawn_) draw_last(step);
  if (last_) draw_epoch("end", step);
}

bool RunEvaluation::draw_is_due() const {
  const bool due = Clock::now() >= draw_at_;
  return run_.task.sample_of ? ddp::any_rank_true(run_.group, due && run_.on_rank_0()) : due;
}

const std::vector<Evaluated>& RunEvaluation::samples() {
  if (!samples_)
    samples_ = run_.task.sample_of ? worst_of_all(run_.group, last_->shown, run_.task.shown_samples)
                                   : on_cpu(last_->shown);
  return *samples_;
}

void RunEvaluation::draw_epoch(const std::string& name, std::int64_t step) {
  if (!run_.task.draw_epoch || !run_.options.report) return;
  const auto& worst = samples();
  log_.figure("epochs/" + name, "val_epochs", step, [&] { return Figure{run_.task.draw_epoch(worst)}; });
}

void RunEvaluation::draw_last(std::int64_t step) {
  const auto begin = Clock::now();
  const bool test = last_set_ == Set::kTest;
  const std::string tag = test ? "test_" : "val_", set = test ? "test set" : "validation set";
  if (run_.task.sample_of && run_.options.report) samples();
  if (run_.task.draw_samples)
    log_.figure("samples", tag + "samples", step,
                [&] { return Figure{run_.task.draw_samples(samples(), set)}; });
  if (last_->confusion)
    log_.figure("confusion", tag + "confusion", step, [&] {
      const auto counts = last_->confusion->sums();
      return draw_confusion({run_.task.class_names, {counts.begin(), counts.end()}},
                            "confusion matrix of the " + set);
    });
  drawn_ = true;
  draw_at_ = Clock::now() + kDrawRest * (Clock::now() - begin);
}

}  // namespace ddprun::train
