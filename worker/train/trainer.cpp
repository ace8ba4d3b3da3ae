#include "worker/train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include <torch/nn/module.h>

#include "common/logging.h"
#include "common/one_line.h"
#include "worker/data/distributed_sampler.h"
#include "worker/data/loader.h"
#include "worker/ddp/collectives.h"
#include "worker/train/parallel_model.h"
#include "worker/train/progress.h"
#include "worker/train/run_record.h"

namespace ddprun::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Sums over examples, first of one rank, then of all.
struct Totals {
  double loss = 0, correct = 0, samples = 0;

  /// Adds the batch's first `count` examples.
  void add(const StepResult& result, std::int64_t count) {
    loss += result.losses.detach().slice(0, 0, count).sum(torch::kFloat64).item<double>();
    correct += static_cast<double>(result.correct.slice(0, 0, count).sum().item<std::int64_t>());
    samples += static_cast<double>(count);
  }
  Totals over_ranks(const ddp::ProcessGroup& group) const {
    const auto sums = ddp::all_reduce_sum(group, {loss, correct, samples});
    return {sums[0], sums[1], sums[2]};
  }
  double mean_loss() const { return loss / samples; }
  double accuracy() const { return correct / samples; }
};

/// The largest resident set of any rank so far, in MB.
double peak_rss_mb(const ddp::ProcessGroup& group) {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return ddp::all_reduce_max(group, {static_cast<double>(usage.ru_maxrss) / 1024})[0];
}

/// What a report shows of the reduction of gradients; times in ms a step.
nlohmann::ordered_json to_json(const ddp::DistributedDataParallel::Statistics& statistics) {
  const auto ms = [](std::int64_t ns) { return static_cast<double>(ns) / 1e6; };
  return {{"backend", statistics.backend},
          {"bucket_bytes", statistics.bucket_bytes},
          {"forward_ms", ms(statistics.forward_ns)},
          {"backward_ms", ms(statistics.backward_ns)},
          {"communication_ms", ms(statistics.communication_ns)},
          {"overlap_ms", ms(statistics.overlap_ns)}};
}

class Trainer {
 public:
  Trainer(Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group)
      : task_(task),
        options_(options),
        group_(group),
        model_(task, group, options.parallel),
        sampler_(task.train_set->size(), group.size(), group.rank(), {.seed = options.seed}),
        progress_(options.progress && group.rank() == 0) {
    if (group.rank() == 0) record_.emplace(options.out);
  }

  void run() {
    announce();
    for (epoch_ = 0; epoch_ < options_.epochs; ++epoch_) {
      train_epoch();
      model_.synchronize_buffers();
      test_ = evaluate();
      finish_epoch();
    }
    write_summary();
  }

 private:
  void announce() {
    if (group_.rank() != 0) return;
    print("Training " + task_.name + " on " + std::to_string(group_.size()) +
          (group_.size() == 1 ? " rank" : " ranks") + ", " + std::to_string(task_.train_set->size()) +
          " training and " + std::to_string(task_.test_set->size()) + " test examples from " +
          task_.data_source);
  }

  void train_epoch() {
    task_.module->train();
    sampler_.set_epoch(epoch_);
    auto indices = sampler_.indices();
    // Padding is at the end of the sampler's order: trained on, but not counted twice in the metrics.
    std::int64_t to_count = sampler_.num_without_padding(), seen = 0;
    auto join = model_.join();
    if (join) indices.resize(static_cast<std::size_t>(to_count));  // rank 0 has the most
    data::Loader loader(*task_.train_set, std::move(indices), options_.batch_size, options_.loader_threads);
    Totals totals;
    epoch_begin_ = Clock::now();
    for (std::int64_t index = 0; auto batch = loader.next(); ++index) {
      const auto result = train_step(*batch);
      const auto counted = std::min(to_count, batch->size());
      totals.add(result, counted);
      to_count -= counted;
      seen += batch->size();
      const double loss = result.losses.mean().item<double>();
      const bool last = index + 1 == loader.batches();
      if (index % options_.log_interval == 0 || last) log_step(loss, seen);
      show_progress(index + 1, loader.batches(), seen, loss);
    }
    if (join) join->finish();
    progress_.clear();
    train_ = totals.over_ranks(group_);
    const double seconds = seconds_since(epoch_begin_);
    epoch_rate_ = train_.samples / seconds;
    train_seconds_ += seconds;
    trained_samples_ += train_.samples;
  }

  StepResult train_step(const data::Batch& batch) {
    model_.zero_grad();
    auto result = model_.forward(batch);
    model_.backward(result);
    model_.step();
    ++step_;
    options_.heartbeat.beat();
    return result;
  }

  /// loss  this rank's mean over its batch
  /// seen  examples of this epoch by this rank; every rank has seen as many
  void log_step(double loss, std::int64_t seen) {
    // Where ranks may have made another number of steps, nobody can be asked: rank 0 tells its own.
    if (!options_.parallel.join) loss = ddp::all_reduce_sum(group_, {loss})[0] / group_.size();
    if (!record_) return;
    const auto total = task_.train_set->size();
    print(task_.train_line({epoch_, std::min(total, seen * group_.size()), total, loss}));
    warn_unless_finite("training loss", loss);
    record_->add_metrics(
        {{"epoch", epoch_}, {"step", step_}, {"lr", model_.learning_rate()}, {"train_loss", loss}});
  }

  void show_progress(std::int64_t done, std::int64_t total, std::int64_t seen, double loss) {
    const double seconds = seconds_since(epoch_begin_);
    progress_.update({"epoch " + std::to_string(epoch_ + 1) + "/" + std::to_string(options_.epochs), done,
                      total, seconds, static_cast<double>(seen * group_.size()) / seconds, loss});
  }

  /// Each test example counts once, whatever the number of ranks.
  Totals evaluate() {
    task_.module->eval();
    // A sharded model needs as many batches on every rank: its sampler pads.
    const data::DistributedSampler padded(task_.test_set->size(), group_.size(), group_.rank(),
                                          {.shuffle = false});
    auto to_count = padded.num_without_padding();
    auto indices = padded.indices();
    if (!model_.is_sharded()) indices.resize(static_cast<std::size_t>(to_count));
    data::Loader loader(*task_.test_set, std::move(indices), kTestBatchSize, options_.loader_threads);
    Totals totals;
    while (auto batch = loader.next()) {
      const auto counted = std::min(to_count, batch->size());
      totals.add(model_.evaluate(*batch), counted);
      to_count -= counted;
      options_.heartbeat.beat();
    }
    return totals.over_ranks(group_);
  }

  void finish_epoch() {
    const auto state = model_.state();  // of all ranks
    if (!record_) return;
    char line[160];
    std::snprintf(line, sizeof line, "Test set: Average loss: %.4f, Accuracy: %.0f/%.0f (%.2f%%)",
                  test_.mean_loss(), test_.correct, test_.samples, 100 * test_.accuracy());
    print(line);
    warn_unless_finite("test loss", test_.mean_loss());
    record_->add_metrics({{"epoch", epoch_},
                          {"step", step_},
                          {"lr", model_.learning_rate()},
                          {"train_loss_epoch", train_.mean_loss()},
                          {"train_acc", train_.accuracy()},
                          {"test_loss", test_.mean_loss()},
                          {"test_acc", test_.accuracy()},
                          {"samples_per_second", epoch_rate_}});
    record_->save({state.model, state.optimizer, epoch_, step_, options_.config_json});
  }

  void write_summary() {
    const double peak = peak_rss_mb(group_);
    if (!record_) return;
    const nlohmann::ordered_json summary = {{"task", task_.name},
                                            {"world_size", group_.size()},
                                            {"epochs", options_.epochs},
                                            {"steps", step_},
                                            {"seconds", seconds_since(begin_)},
                                            {"samples_per_second", trained_samples_ / train_seconds_},
                                            {"train_loss", train_.mean_loss()},
                                            {"train_acc", train_.accuracy()},
                                            {"test_loss", test_.mean_loss()},
                                            {"test_acc", test_.accuracy()},
                                            {"checkpoint", record_->checkpoint_path().string()},
                                            {"peak_rss_mb", peak},
                                            {"ddp", to_json(model_.statistics())}};
    // A path is bytes, JSON is UTF-8.
    record_->finish(summary.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    print("checkpoint: " + record_->checkpoint_path().string());
    print("metrics:    " + record_->metrics_path().string());
    print("summary:    " + record_->summary_path().string());
  }

  /// Once a run: what comes after a loss that is no number is no training any more.
  void warn_unless_finite(const std::string& what, double loss) {
    if (std::isfinite(loss) || warned_) return;
    warned_ = true;
    log_warning("the " + what + " is " + std::to_string(loss) + " at step " + std::to_string(step_) +
                ": the training has diverged; a smaller --lr may help");
  }

  void print(const std::string& line) {
    progress_.clear();
    std::cout << one_line(line) << std::endl;
  }

  static constexpr std::int64_t kTestBatchSize = 500;

  Task& task_;
  const TrainerOptions& options_;
  const ddp::ProcessGroup& group_;
  ParallelModel model_;
  data::DistributedSampler sampler_;
  Progress progress_;
  std::optional<RunRecord> record_;  // rank 0 only

  bool warned_ = false;
  std::int64_t epoch_ = 0, step_ = 0;
  Totals train_, test_;  // of the last epoch, over all ranks
  double epoch_rate_ = 0, train_seconds_ = 0, trained_samples_ = 0;
  Clock::time_point begin_ = Clock::now(), epoch_begin_ = begin_;
};

}  // namespace

std::uint64_t rank_seed(std::uint64_t seed, int rank) {
  return seed + static_cast<std::uint64_t>(rank) * 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
}

void fit(Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group) {
  Trainer(task, options, group).run();
}

}  // namespace ddprun::train
