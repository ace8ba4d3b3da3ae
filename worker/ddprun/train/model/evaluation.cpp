#include <ddprun/train/model/evaluation.h>

#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>
#include <ddprun/data/loader.h>
#include <ddprun/group/collectives.h>

namespace ddprun::train {
namespace {

/// Of a single sample; without a number, it is the worst.
double score_of(const Evaluated& sample) {
  const auto score = sample.result.measures.at(0).second.item<double>();
  return std::isnan(score) ? -std::numeric_limits<double>::infinity() : score;
}

/// Adds the batch's samples to those kept, of which the worst stay.
void keep_worst(std::vector<Evaluated>& kept, const Task& task, Evaluated batch, std::int64_t counted) {
  for (auto& [name, values] : batch.result.measures) values = values.cpu();
  for (std::int64_t i = 0; i < counted; ++i) {
    auto sample = task.sample_of(batch, i);
    kept.insert(std::ranges::upper_bound(kept, score_of(sample), {}, score_of), std::move(sample));
    if (std::cmp_greater(kept.size(), task.shown_samples)) kept.pop_back();
  }
}

using Tensors = c10::List<at::Tensor>;

/// For unpacked(): result and batch, each as a list.
std::string packed(const std::vector<Evaluated>& samples) {
  c10::impl::GenericList all(at::AnyType::get());
  const auto add = [&](const std::vector<at::Tensor>& tensors) {
    Tensors copies;  // without the rest of the memory that a view has a part of
    for (const auto& tensor : tensors) copies.push_back(tensor.detach().cpu().clone());
    all.push_back(copies);
  };
  for (const auto& [batch, result] : samples) {
    std::vector<at::Tensor> results = {result.losses, result.scores};
    for (const auto& [name, values] : result.measures) results.push_back(values);
    add(results);
    add(batch.tensors());
    add(batch.shown);
  }
  const auto bytes = torch::jit::pickle_save(all);
  return {bytes.begin(), bytes.end()};
}

std::vector<Evaluated> unpacked(const std::string& bytes) {
  const auto value = torch::jit::pickle_load({bytes.begin(), bytes.end()});
  const auto all = value.toListRef();
  const auto vector_at = [&](std::size_t i) { return all[i].toTensorVector(); };
  std::vector<Evaluated> samples;
  for (std::size_t i = 0; i < all.size(); i += 3) {
    const auto results = vector_at(i), tensors = vector_at(i + 1);
    BatchResult result{results.at(0), {}, results.at(1)};
    for (std::size_t k = 2; k < results.size(); ++k) result.measures.emplace_back("", results[k]);
    samples.push_back({{tensors.at(0), tensors.at(1), {tensors.begin() + 2, tensors.end()}, vector_at(i + 2)},
                       std::move(result)});
  }
  return samples;
}

}  // namespace

std::vector<Evaluated> worst_of_all(const ddp::ProcessGroup& group, const std::vector<Evaluated>& own,
                                    std::int64_t count) {
  std::vector<std::pair<double, std::size_t>> found;  // scores and ranks
  for (std::int64_t i = 0; i < count; ++i) {
    const bool any = std::cmp_less(i, own.size());
    const auto scores = ddp::all_gather(
        group, any ? score_of(own[static_cast<std::size_t>(i)]) : std::numeric_limits<double>::quiet_NaN());
    for (std::size_t rank = 0; rank < scores.size(); ++rank)
      if (!std::isnan(scores[rank])) found.emplace_back(scores[rank], rank);
  }
  std::ranges::stable_sort(found);
  if (std::cmp_greater(found.size(), count)) found.resize(static_cast<std::size_t>(count));
  const auto of_this = std::ranges::count(found, static_cast<std::size_t>(group.rank()),
                                          [](const auto& each) { return each.second; });
  std::vector<std::vector<Evaluated>> by_rank;
  for (const auto& bytes : ddp::all_gather(group, packed({own.begin(), own.begin() + of_this})))
    by_rank.push_back(unpacked(bytes));
  std::vector<std::size_t> next(by_rank.size());
  std::vector<Evaluated> worst;
  for (const auto& [score, rank] : found) worst.push_back(std::move(by_rank[rank][next[rank]++]));
  return worst;
}

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
    if (task.sample_of)
      keep_worst(found.shown, task, {*batch, result}, counted);
    else if (shown < task.shown_samples)
      found.shown.push_back({*batch, result});
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
