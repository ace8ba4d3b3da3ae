#include "worker/train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "common/files.h"
#include "worker/data/distributed_sampler.h"
#include "worker/data/loader.h"
#include "worker/ddp/collectives.h"
#include "worker/ddp/distributed_data_parallel.h"
#include "worker/report/csv_sink.h"
#include "worker/train/checkpoint.h"
#include "worker/train/progress.h"

namespace ddprun::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Sums over examples, first of one rank, then of all.
struct Totals {
  double loss = 0, correct = 0, samples = 0;

  void add(const StepResult& result, std::int64_t batch_size) {
    loss += result.loss.item<double>() * static_cast<double>(batch_size);
    correct += static_cast<double>(result.correct.item<std::int64_t>());
    samples += static_cast<double>(batch_size);
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
  std::vector<double> by_rank(static_cast<std::size_t>(group.size()), 0);
  by_rank[static_cast<std::size_t>(group.rank())] = static_cast<double>(usage.ru_maxrss) / 1024;
  by_rank = ddp::all_reduce_sum(group, std::move(by_rank));
  return *std::max_element(by_rank.begin(), by_rank.end());
}

class Trainer {
 public:
  Trainer(Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group)
      : task_(task),
        options_(options),
        group_(group),
        ddp_(*task.module, group),
        sampler_(task.train_set->size(), group.size(), group.rank(), {.seed = options.seed}),
        progress_(options.progress && group.rank() == 0) {
    if (group.rank() == 0)
      metrics_.emplace(options.out / "metrics.csv",
                       std::vector<std::string>{"epoch", "step", "lr", "train_loss", "train_loss_epoch",
                                                "train_acc", "test_loss", "test_acc", "samples_per_second"});
  }

  void run() {
    announce();
    for (epoch_ = 0; epoch_ < options_.epochs; ++epoch_) {
      train_epoch();
      ddp_.synchronize_buffers();
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
    data::Loader loader(*task_.train_set, sampler_.indices(), options_.batch_size, options_.loader_threads);
    Totals totals;
    epoch_begin_ = Clock::now();
    for (std::int64_t index = 0; auto batch = loader.next(); ++index) {
      const auto result = train_step(*batch);
      totals.add(result, batch->size());
      const bool last = index + 1 == loader.batches();
      if (index % options_.log_interval == 0 || last) log_step(result, totals.samples);
      show_progress(index + 1, loader.batches(), totals, result);
    }
    progress_.clear();
    train_ = totals.over_ranks(group_);
    const double seconds = seconds_since(epoch_begin_);
    epoch_rate_ = train_.samples / seconds;
    train_seconds_ += seconds;
    trained_samples_ += train_.samples;
  }

  StepResult train_step(const data::Batch& batch) {
    task_.optimizer->zero_grad();
    auto result = ddp_.forward([&] { return task_.step(batch); });
    result.loss.backward();
    task_.optimizer->step();
    ++step_;
    return result;
  }

  /// samples  seen by this rank in this epoch; every rank has seen as many
  void log_step(const StepResult& result, double samples) {
    const double loss = ddp::all_reduce_sum(group_, {result.loss.item<double>()})[0] / group_.size();
    if (group_.rank() != 0) return;
    const auto total = task_.train_set->size();
    const auto done = std::min(total, static_cast<std::int64_t>(samples) * group_.size());
    print(task_.train_line({epoch_, done, total, loss}));
    metrics_->add({{"epoch", epoch_}, {"step", step_}, {"lr", learning_rate()}, {"train_loss", loss}});
  }

  void show_progress(std::int64_t done, std::int64_t total, const Totals& totals, const StepResult& result) {
    const double seconds = seconds_since(epoch_begin_);
    progress_.update({"epoch " + std::to_string(epoch_ + 1) + "/" + std::to_string(options_.epochs), done,
                      total, seconds, totals.samples * group_.size() / seconds, result.loss.item<double>()});
  }

  /// Each test example once, whatever the number of ranks.
  Totals evaluate() {
    torch::NoGradGuard no_grad;
    task_.module->eval();
    data::Loader loader(*task_.test_set,
                        data::exact_share(task_.test_set->size(), group_.size(), group_.rank()),
                        kTestBatchSize, options_.loader_threads);
    Totals totals;
    while (auto batch = loader.next()) totals.add(task_.step(*batch), batch->size());
    return totals.over_ranks(group_);
  }

  void finish_epoch() {
    if (group_.rank() != 0) return;
    char line[160];
    std::snprintf(line, sizeof line, "Test set: Average loss: %.4f, Accuracy: %.0f/%.0f (%.2f%%)",
                  test_.mean_loss(), test_.correct, test_.samples, 100 * test_.accuracy());
    print(line);
    metrics_->add({{"epoch", epoch_},
                   {"step", step_},
                   {"lr", learning_rate()},
                   {"train_loss_epoch", train_.mean_loss()},
                   {"train_acc", train_.accuracy()},
                   {"test_loss", test_.mean_loss()},
                   {"test_acc", test_.accuracy()},
                   {"samples_per_second", epoch_rate_}});
    save_checkpoint(checkpoint_path(),
                    {*task_.module, *task_.optimizer, epoch_, step_, options_.config_json});
  }

  void write_summary() {
    const double peak = peak_rss_mb(group_);
    if (group_.rank() != 0) return;
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
                                            {"checkpoint", checkpoint_path().string()},
                                            {"peak_rss_mb", peak}};
    write_file_atomic(options_.out / "summary.json", summary.dump(2) + "\n");
    print("checkpoint: " + checkpoint_path().string());
    print("metrics:    " + (options_.out / "metrics.csv").string());
    print("summary:    " + (options_.out / "summary.json").string());
  }

  std::filesystem::path checkpoint_path() const { return options_.out / "checkpoints" / "last.pt"; }
  double learning_rate() const { return task_.optimizer->param_groups().front().options().get_lr(); }

  void print(const std::string& line) {
    progress_.clear();
    std::cout << line << std::endl;
  }

  static constexpr std::int64_t kTestBatchSize = 500;

  Task& task_;
  const TrainerOptions& options_;
  const ddp::ProcessGroup& group_;
  ddp::DistributedDataParallel ddp_;
  data::DistributedSampler sampler_;
  Progress progress_;
  std::optional<report::CsvSink> metrics_;  // rank 0 only

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
