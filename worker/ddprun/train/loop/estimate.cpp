#include <ddprun/train/loop/estimate.h>

#include <algorithm>
#include <set>

#include <torch/nn/module.h>

#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/loader.h>
#include <ddprun/group/collectives.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/model/run.h>

namespace ddprun::train {
namespace {

constexpr int kWarmUp = 3, kMeasured = 10;

/// Batches of the first epoch, starting over at its end.
class Batches {
 public:
  Batches(const Run& run)
      : sampler_(run.task.train_set->size(), run.group.size(), run.group.rank(), {.seed = run.options.seed}),
        loader_(*run.task.train_set, {.batch_size = run.options.batch_size,
                                      .threads = run.options.loader_threads,
                                      .device = run.group.device()}) {}

  data::Batch next() {
    auto batch = loader_.next();
    if (!batch) {
      loader_.start_epoch(sampler_.indices());
      batch = loader_.next();
    }
    return *std::move(batch);
  }

 private:
  data::DistributedSampler sampler_;
  data::Loader loader_;
};

/// Seconds per batch on this rank. reduce: whether the ranks' gradients are reduced
double measure(ParallelModel& model, Batches& batches, int count, bool reduce) {
  const auto begin = Clock::now();
  for (int step = 0; step < count; ++step) {
    model.zero_grad();
    model.train(batches.next(), reduce).loss.item<double>();  // waits for the device
  }
  return seconds_since(begin) / count;
}

/// "12.3 ms", "4.56 s", "12 min", "3.4 h"
std::string time_text(double seconds) {
  if (seconds < 1) return formatted("%.1f ms", 1000 * seconds);
  if (seconds < 120) return formatted("%.1f s", seconds);
  if (seconds < 7200) return formatted("%.0f min", seconds / 60);
  return formatted("%.1f h", seconds / 3600);
}

}  // namespace

double seconds_per_batch(const MeasuredSteps& measured, int ranks) {
  const auto share = [](int of) { return static_cast<double>(of - 1) / of; };
  if (measured.ranks == 1) return measured.batch;
  const double exchange = std::max(measured.batch - measured.batch_alone, 0.0);
  return measured.batch - exchange + exchange * share(ranks) / share(measured.ranks);
}

std::string estimate_table(const MeasuredSteps& measured, std::int64_t samples, std::int64_t batch_size,
                           std::int64_t epochs) {
  std::set<int> rows = {1, 2, 4, 8, measured.ranks};
  const double alone = seconds_per_batch(measured, 1);
  std::string table = formatted("%ld training samples, batches of %ld on each rank; measured: %d batches\n\n",
                                samples, batch_size, kMeasured) +
                      "ranks   batches     time    an epoch     " + std::to_string(epochs) +
                      " epochs   efficiency\n";
  for (const int ranks : rows) {
    const double batch = seconds_per_batch(measured, ranks);
    const auto per_rank = (samples + ranks - 1) / ranks, batches = (per_rank + batch_size - 1) / batch_size;
    const double epoch = batch * static_cast<double>(batches);
    table += formatted("%5d %9ld %8s %11s %12s        %3.0f %%%s\n", ranks, batches, time_text(batch).c_str(),
                       time_text(epoch).c_str(), time_text(epoch * static_cast<double>(epochs)).c_str(),
                       100 * alone / batch, ranks == measured.ranks ? "   measured" : "");
  }
  table +=
      "\nbatches: in an epoch, on each rank; time: of one batch. Assumes that more ranks compute\n"
      "as fast as these, and that exchanging gradients costs a ring's share, (ranks - 1) / ranks.\n"
      "Leaves out validation, tests and checkpoints.\n";
  if (measured.ranks == 1)
    table +=
        "One rank exchanges nothing: ddprun --nproc-per-node=2 worker ... --estimate measures\n"
        "what the exchange costs.\n";
  return table;
}

std::string estimate(const Task& task, const TrainerOptions& options, const ddp::ProcessGroup& group) {
  const Run run{task, options, group};
  ParallelModel model(run);
  Batches batches(run);
  task.module->train();
  measure(model, batches, kWarmUp, true);
  const double with = measure(model, batches, kMeasured, true);
  const double without = group.size() == 1 ? with : measure(model, batches, kMeasured, false);
  const auto slowest = ddp::all_reduce_max(group, {with, without});
  return estimate_table({group.size(), slowest[0], slowest[1]}, task.train_set->size(), options.batch_size,
                        options.epochs);
}

}  // namespace ddprun::train
