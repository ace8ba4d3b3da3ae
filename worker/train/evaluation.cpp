#include "worker/train/evaluation.h"

#include <algorithm>

#include <torch/nn/module.h>

#include "worker/data/distributed_sampler.h"
#include "worker/data/loader.h"
#include "worker/ddp/collectives.h"
#include "worker/train/noted_signals.h"

namespace ddprun::train {

void Totals::add(const StepResult& result, std::int64_t count) {
  loss_.add(result.losses.detach(), count);
  if (!result.correct.defined()) return;
  has_accuracy_ = true;
  accuracy_.add_correct(result.correct, count);
}

std::vector<double> Totals::sums() const {
  auto sums = loss_.sums();
  for (const auto value : accuracy_.sums()) sums.push_back(value);
  return sums;
}

void Totals::set_sums(const std::vector<double>& sums) {
  loss_.set_sums({sums[0], sums[1]});
  accuracy_.set_sums({sums[2], sums[3]});
  has_accuracy_ = sums[3] > 0;
}

Totals Totals::over_ranks(const ddp::ProcessGroup& group) const {
  Totals all;
  all.set_sums(ddp::all_reduce_sum(group, sums()));
  return all;
}

std::optional<double> Totals::accuracy() const {
  if (!has_accuracy_) return std::nullopt;
  return accuracy_.value();
}

double Totals::correct() const { return accuracy_.sums()[0]; }

void Totals::append_to(report::MetricRow& row, const std::string& loss, const std::string& accuracy) const {
  row.emplace_back(loss, mean_loss());
  if (has_accuracy_) row.emplace_back(accuracy, accuracy_.value());
}

Totals evaluate(ParallelModel& model, const Task& task, const data::Dataset& set,
                const ddp::ProcessGroup& group, const TrainerOptions& options, std::int64_t max_batches) {
  task.module->eval();
  // A sharded model needs as many batches on every rank: its sampler pads.
  const data::DistributedSampler padded(set.size(), group.size(), group.rank(), {.shuffle = false});
  auto to_count = padded.num_without_padding();
  auto indices = padded.indices();
  if (!model.is_sharded()) indices.resize(static_cast<std::size_t>(to_count));
  data::Loader loader(set, std::move(indices), task.eval_batch_size, options.loader_threads);
  Totals totals;
  for (std::int64_t number = 0; max_batches == 0 || number < max_batches; ++number) {
    const auto batch = loader.next();
    if (!batch) break;
    const auto counted = std::min(to_count, batch->size());
    totals.add(model.evaluate(*batch), counted);
    to_count -= counted;
    options.heartbeat.beat();
    note_progress();
  }
  return totals.over_ranks(group);
}

}  // namespace ddprun::train
