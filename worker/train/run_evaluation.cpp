#include "worker/train/run_evaluation.h"

#include <algorithm>

namespace ddprun::train {

RunEvaluation::RunEvaluation(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group,
                             ParallelModel& model, RunLog& log)
    : task_(task), options_(options), group_(group), model_(model), log_(log) {}

void RunEvaluation::sanity_check() {
  if (!task_.validation_set || options_.sanity_batches == 0) return;
  evaluate(model_, task_, *task_.validation_set, group_, options_, options_.sanity_batches);
}

Totals RunEvaluation::evaluate_set(const data::Dataset& set, const std::string& name,
                                   report::MetricRow& row) {
  model_.synchronize_buffers();
  auto totals = model_.with_averages([&] { return evaluate(model_, task_, set, group_, options_); });
  totals.append_to(row, name);
  return totals;
}

report::MetricRow RunEvaluation::new_row(const TrainState& at) const {
  return {{"epoch", at.epoch}, {"step", at.step}, {"lr", model_.learning_rate()}};
}

report::MetricRow RunEvaluation::within_epoch(const TrainState& at) {
  auto row = new_row(at);
  validation_ = evaluate_set(*task_.validation_set, "val", row);
  log_.validation_line(*validation_);
  log_.row(row);
  return row;
}

report::MetricRow RunEvaluation::end_of_epoch(const TrainState& at, const Epoch& epoch) {
  train_ = epoch.totals.over_ranks(group_);
  train_seconds_ += epoch.seconds;
  trained_samples_ += epoch.samples;
  auto row = new_row(at);
  train_->append_to(row, "train", "train_loss_epoch");
  const bool validates = task_.validation_set && options_.val_every_steps == 0;
  if (validates) {
    validation_ = evaluate_set(*task_.validation_set, "val", row);
    log_.validation_line(*validation_);
  }
  if (task_.test_set && task_.test_every_epoch) {
    test_ = evaluate_set(*task_.test_set, "test", row);
    log_.test_line(*test_);
    log_.warn_unless_finite("test loss", test_->mean_loss(), at.step);
  }
  row.emplace_back("samples_per_second", epoch.samples / epoch.seconds);
  log_.row(row);
  if (validation_ && !validates) validation_->append_to(row, "val");
  return row;
}

void RunEvaluation::test_at_end(const TrainState& at, const std::filesystem::path& best) {
  if (!task_.test_set || task_.test_every_epoch) return;
  report::MetricRow row = {{"epoch", std::max<std::int64_t>(0, at.epoch - 1)}, {"step", at.step}};
  if (best.empty()) {
    test_ = evaluate_set(*task_.test_set, "test", row);
  } else {
    log_.print("best checkpoint: " + best.string());
    model_.load_weights_of_rank_0(group_.rank() == 0 ? read_checkpoint(best) : TrainingState(), best);
    test_ = evaluate(model_, task_, *task_.test_set, group_, options_);
    test_->append_to(row, "test");
  }
  log_.test_line(*test_);
  log_.row(row);
}

void RunEvaluation::tell(RunFigures& figures) const {
  figures.train = train_;
  figures.validation = validation_;
  figures.test = test_;
  figures.samples_per_second = trained_samples_ / train_seconds_;
}

}  // namespace ddprun::train
