#include <ddprun/train/loop/tuner.h>

#include <ATen/ops/gradient.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <system_error>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/data/dataset.h>
#include <ddprun/group/collectives.h>
#include <ddprun/report/charts.h>
#include <ddprun/train/loop/epoch_progress.h>
#include <ddprun/train/model/parallel_model.h>
#include <ddprun/train/record/model_summary.h>
#include <ddprun/train/record/rank_resources.h>

namespace ddprun::train {
namespace {

constexpr std::size_t kSkipBegin = 10, kSkipEnd = 1;  // of the losses considered for a suggestion
constexpr double kBeta = 0.98, kDivergence = 4;

/// The options for a search: the schedule and accumulation belong to whole trainings.
TrainerOptions of_search(TrainerOptions options) {
  options.optim.schedule = LrScheduleKind::kNone;
  options.optim.warmup_steps = 0;
  options.accumulate = 1;
  options.cuda_graph = GraphChoice::kOff;
  options.parallel.join = false;
  return options;
}

/// A step on this rank's samples, which start over after the last; returns its loss.
double train_step(ParallelModel& model, const Run& run, std::int64_t number) {
  const auto& set = *run.task.train_set;
  const auto all =
      data::DistributedSampler(set.size(), run.group.size(), run.group.rank(), {.seed = run.options.seed})
          .indices();
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < run.options.batch_size; ++i)
    indices.push_back(all[static_cast<std::size_t>(number * run.options.batch_size + i) % all.size()]);
  model.zero_grad();
  return model.train(set.get_epoch_batch(indices, /*epoch=*/0), /*last=*/true).loss.item<double>();
}

std::string short_number(double value) { return formatted("%.3g", value); }

/// Into --out, or the working directory; there is no run.
void draw(const Run& run, const std::string& name, const report::LineChart& chart) {
  if (!run.on_rank_0()) return;
  auto file = run.options.out / (name + ".svg");
  std::error_code error;  // whatever is there already may be somebody's
  for (int i = 2; std::filesystem::exists(file, error); ++i)
    file = run.options.out / (name + "-" + std::to_string(i) + ".svg");
  if (!run.options.out.empty()) create_folders(run.options.out);
  write_file_atomic(file, report::line_chart_svg(chart));
  log_info("drawn in " + file.string());
}

/// The smoothed losses over the rates, without those far above the first one, which would flatten the rest.
report::LineChart lr_chart(const LrSearch& search, std::optional<double> suggestion) {
  auto losses = search.losses();
  // As Lightning's they are divided by one power too many, which halves the first one: not for the eye.
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto power = std::pow(kBeta, static_cast<double>(i + 1));
    losses[i] *= (1 - power * kBeta) / (1 - power);
  }
  double lowest = losses.front();
  for (const double loss : losses) lowest = std::fmin(lowest, loss);
  const double most = lowest < losses.front() ? losses.front() + (losses.front() - lowest) : HUGE_VAL;
  report::Series curve{"smoothed loss", search.lrs(), losses}, best{"suggestion", {}, {}};
  for (auto& loss : curve.y)
    if (loss > most) loss = std::nan("");
  for (std::size_t i = 0; i < losses.size(); ++i)
    if (search.lrs()[i] == suggestion) best.x.assign(2, *suggestion), best.y = {lowest, losses[i]};
  if (suggestion) best.name += ": --lr " + short_number(*suggestion);
  return {.title = "learning rate finder",
          .x_label = "learning rate",
          .y_label = "loss",
          .series = {curve, best},
          .log_x = true};
}

/// MemAvailable, in MiB.
double free_memory_mb() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, value, unit; file >> name >> value && std::getline(file, unit);)
    if (name == "MemAvailable:") return std::stod(value) / 1024;
  return HUGE_VAL;
}

/// Samples per second; nullopt if they do not fit in memory.
std::optional<double> try_batch_size(ParallelModel& model, const Run& run) {
  constexpr int kSteps = 3;
  try {
    const auto begin = Clock::now();
    for (int step = 0; step < kSteps; ++step) train_step(model, run, step);
    return static_cast<double>(kSteps * run.options.batch_size) / seconds_since(begin);
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    for (const char* part : {"out of memory", "allocate memory", "not enough memory"})
      if (text.find(part) != std::string::npos) return std::nullopt;
    throw;
  } catch (const std::bad_alloc&) {
    return std::nullopt;
  }
}

}  // namespace

std::string rounded_text(double value) {
  return value < 999.5 ? short_number(value) : with_commas(std::llround(value));
}

std::optional<double> LrSearch::next_lr() const {
  const auto step = static_cast<std::int64_t>(losses_.size());
  if (diverged_ || step >= steps_) return std::nullopt;
  const auto part = step == 0 ? 0 : static_cast<double>(step + 1) / static_cast<double>(steps_);
  return min_lr_ * std::pow(max_lr_ / min_lr_, part);
}

void LrSearch::add(double loss) {
  lrs_.push_back(next_lr().value());
  const auto step = losses_.size() + 1;
  average_ = kBeta * average_ + (1 - kBeta) * loss;
  const double smoothed = average_ / (1 - std::pow(kBeta, static_cast<double>(step + 1)));
  diverged_ = step > 1 && smoothed > kDivergence * best_;
  if (step == 1 || smoothed < best_) best_ = smoothed;
  losses_.push_back(smoothed);
}

std::optional<double> LrSearch::suggestion() const {
  std::vector<double> lrs, losses;
  for (std::size_t i = kSkipBegin; i + kSkipEnd < losses_.size(); ++i)
    if (std::isfinite(losses_[i])) lrs.push_back(lrs_[i]), losses.push_back(losses_[i]);
  if (losses.size() < 2) return std::nullopt;
  const auto slopes = at::gradient(torch::tensor(losses, torch::kFloat64))[0];  // by step, not by rate
  return lrs[static_cast<std::size_t>(slopes.argmin().item<std::int64_t>())];
}

std::optional<double> find_lr(const Task& task, const TrainerOptions& options,
                              const ddp::ProcessGroup& group) {
  const auto in_force = of_search(options);
  const Run run{task, in_force, group};
  ParallelModel model(run);
  task.module->train();
  std::vector<double> factors;
  auto& groups = model.optimization().optimizer().param_groups();
  for (const auto& one : groups) factors.push_back(one.options().get_lr() / groups[0].options().get_lr());
  LrSearch search;
  while (const auto lr = search.next_lr()) {
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i].options().set_lr(*lr * factors[i]);
    search.add(ddp::all_reduce_sum(
                   group, {train_step(model, run, static_cast<std::int64_t>(search.losses().size()))})[0] /
               group.size());
    in_force.heartbeat.beat();
  }
  const auto suggestion = search.suggestion();
  draw(run, "lr_finder", lr_chart(search, suggestion));
  if (run.on_rank_0())
    log_info(suggestion ? "suggested learning rate: --lr " + short_number(*suggestion)
                        : "no suggestion: the loss diverged too early to see where it falls");
  return suggestion;
}

std::int64_t find_batch_size(const Task& task, const TrainerOptions& options,
                             const ddp::ProcessGroup& group) {
  if (group.size() > 1)
    throw UsageError("--find-batch-size: expected one rank, got " + std::to_string(group.size()));
  auto in_force = of_search(options);
  const Run run{task, in_force, group};
  ParallelModel model(run);
  task.module->train();
  ResourceUsage usage;
  report::Series speeds{"samples/s", {}, {}};
  std::int64_t largest = 0;
  std::string why = "the training set has no more samples";
  const double before = usage.sample()[kPeakRss];
  for (in_force.batch_size = 2; in_force.batch_size <= task.train_set->size(); in_force.batch_size *= 2) {
    const auto speed = try_batch_size(model, run);
    const auto after = usage.sample()[kPeakRss];
    why = "batches of " + std::to_string(in_force.batch_size) + " do not fit in memory";
    if (!speed) break;
    largest = in_force.batch_size;
    log_info("batches of " + std::to_string(largest) + ": " + rounded_text(*speed) + " samples/s, " +
             rounded_text(after) + " MiB");
    speeds.x.push_back(static_cast<double>(largest));
    speeds.y.push_back(*speed);
    why = "the next would take more than the free memory";
    if (group.device().is_cpu() && 2 * (after - before) > free_memory_mb()) break;
    why = "the training set has no more samples";
    in_force.heartbeat.beat();
  }
  draw(run, "batch_size_finder",
       {.title = "batch size finder",
        .x_label = "batch size",
        .y_label = "samples/s",
        .series = {speeds},
        .log_x = true});
  log_info("suggested batch size: --batch-size " + std::to_string(largest) + " (" + why + ")");
  return largest;
}

}  // namespace ddprun::train
