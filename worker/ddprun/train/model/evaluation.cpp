#include <ddprun/train/model/evaluation.h>

#include <algorithm>
#include <stdexcept>

#include <torch/nn/module.h>

#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/loader.h>
#include <ddprun/group/collectives.h>

namespace ddprun::train {

Totals::Totals(const std::vector<std::string>& measures) {
  for (const auto& name : measures) measures_.emplace_back(name, Mean());
}

void Totals::add(const BatchResult& result, std::int64_t count) {
  loss_.add(result.losses.detach(), count);
  const auto same = [](const auto& own, const auto& added) { return own.first == added.first; };
  if (!std::ranges::equal(measures_, result.measures, same))
    throw std::invalid_argument("a batch's result must have its task's measures, in the same order");
  for (std::size_t i = 0; i < measures_.size(); ++i)
    measures_[i].second.add(result.measures[i].second, count);
}

std::vector<double> Totals::sums() const {
  auto sums = loss_.sums();
  for (const auto& [name, mean] : measures_)
    for (const auto value : mean.sums()) sums.push_back(value);
  return sums;
}

void Totals::set_sums(const std::vector<double>& sums) {
  const auto expected = 2 * (1 + measures_.size());
  if (sums.size() != expected)
    throw std::invalid_argument("totals: expected " + std::to_string(expected) + " sums, got " +
                                std::to_string(sums.size()));
  loss_.set_sums({sums[0], sums[1]});
  for (std::size_t i = 0; i < measures_.size(); ++i)
    measures_[i].second.set_sums({sums[2 * i + 2], sums[2 * i + 3]});
}

std::string Totals::first_measure() const {
  if (measures_.empty()) return "";
  return formatted("%.40s %.4f", measures_[0].first.c_str(), measures_[0].second.value());
}

void Totals::append_to(report::MetricRow& row, const std::string& set, const std::string& loss) const {
  row.emplace_back(loss.empty() ? set + "_loss" : loss, mean_loss());
  for (const auto& [name, mean] : measures_) row.emplace_back(set + "_" + name, mean.value());
}

std::optional<Evaluation> evaluate(ParallelModel& model, const Run& run, const data::Dataset& set,
                                   const std::function<void()>& after_batch, std::int64_t max_batches,
                                   const std::function<bool()>& leave) {
  const auto& task = run.task;
  task.module->eval();
  // A sharded model needs equally many batches on every rank: the sampler pads.
  const data::DistributedSampler padded(set.size(), run.group.size(), run.group.rank(), {.shuffle = false});
  auto to_count = padded.num_without_padding();
  auto indices = padded.indices();
  if (!model.is_sharded()) indices.resize(static_cast<std::size_t>(to_count));
  data::Loader loader(set, std::move(indices), task.eval_batch_size, run.options.loader_threads,
                      run.group.device());
  Evaluation found{Totals(task.measures)};
  const auto classes = static_cast<std::int64_t>(task.class_names.size());
  if (classes > 1) found.confusion.emplace(classes);
  const auto fewest = set.size() / run.group.size();  // examples on a rank
  std::int64_t shown = 0;
  for (std::int64_t number = 0; max_batches == 0 || number < max_batches; ++number) {
    const auto batch = loader.next();
    if (!batch) break;
    const auto counted = std::min(to_count, batch->size());
    const auto result = model.evaluate(*batch);
    found.totals.add(result, counted);
    if (found.confusion) found.confusion->add(result.scores, batch->target, counted);
    if (shown < task.shown_samples) found.shown.push_back({*batch, result});
    shown += batch->size();
    to_count -= counted;
    after_batch();
    if (leave && number * task.eval_batch_size < fewest && leave()) return std::nullopt;
  }
  const auto sum = [&](std::vector<double> own) { return ddp::all_reduce_sum(run.group, std::move(own)); };
  if (found.confusion)
    sum_over_ranks(sum, found.totals, *found.confusion);
  else
    sum_over_ranks(sum, found.totals);
  return found;
}

}  // namespace ddprun::train
