#include <ddprun/train/state/checkpoint_policy.h>

#include <ATen/core/Dict.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include <ddprun/common/errors.h>
#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

float worst(MonitorMode mode) {
  const auto infinity = std::numeric_limits<float>::infinity();
  return mode == MonitorMode::kMin ? infinity : -infinity;
}

std::optional<float> find(const MetricValues& metrics, const std::string& name) {
  for (const auto& [metric, value] : metrics)
    if (metric == name) return static_cast<float>(value);
  return std::nullopt;
}

std::string names_of(const MetricValues& metrics) {
  std::string names;
  for (const auto& metric : metrics) names += (names.empty() ? "" : ", ") + metric.first;
  return names.empty() ? "none" : names;
}

c10::IValue scalar(std::optional<float> value) {
  return value ? c10::IValue(torch::full({}, *value, torch::kFloat32)) : c10::IValue();
}

std::optional<float> optional_number(const DictReader& reader, const std::string& key) {
  if (!reader.has(key)) return std::nullopt;
  return static_cast<float>(reader.number(key));
}

}  // namespace

CheckpointPolicy::CheckpointPolicy(CheckpointPolicyOptions options, FileExists exists)
    : options_(std::move(options)), exists_(std::move(exists)), kth_value_(worst(options_.mode)) {
  const auto k = options_.save_top_k;
  if (k < -1) throw UsageError("save_top_k: expected -1 or more, got " + std::to_string(k));
  if (k > 1 && options_.monitor.empty())
    throw UsageError("save_top_k: expected -1, 0 or 1 without a metric to monitor, got " + std::to_string(k));
}

CheckpointPlan CheckpointPolicy::plan(const MetricValues& metrics, std::int64_t epoch, std::int64_t step,
                                      Occasion occasion) {
  CheckpointPlan plan;
  const bool known = options_.monitor.empty() || find(metrics, options_.monitor).has_value();
  if (step == last_step_saved_ || (occasion == Occasion::kStep && !known)) return plan;
  if (!known && options_.save_top_k != 0)
    throw UsageError("monitor: expected one of the metrics " + names_of(metrics) + ", got '" +
                     options_.monitor + "'");
  plan_top_k(metrics, epoch, step, plan);
  return plan;
}

void CheckpointPolicy::plan_top_k(const MetricValues& metrics, std::int64_t epoch, std::int64_t step,
                                  CheckpointPlan& plan) {
  if (options_.save_top_k == 0) return;
  const auto name =
      checkpoint_name(options_.filename, metrics, epoch, step, options_.auto_insert_metric_name);
  if (options_.monitor.empty()) {
    plan_newest(name, plan);
  } else if (const auto score = *find(metrics, options_.monitor); is_among_top_k(score)) {
    plan_by_score(score, name, plan);
  } else {
    return;
  }
  last_step_saved_ = step;
}

bool CheckpointPolicy::is_among_top_k(float score) const {
  if (options_.save_top_k == -1 || static_cast<std::int64_t>(best_k_.size()) < options_.save_top_k)
    return true;
  return is_better(score, worst_kept().second);
}

std::pair<fs::path, float> CheckpointPolicy::worst_kept() const {  // of equals the first
  return *std::min_element(best_k_.begin(), best_k_.end(),
                           [&](const auto& a, const auto& b) { return is_better(b.second, a.second); });
}

std::pair<fs::path, float> CheckpointPolicy::best_kept() const {  // of equals the first
  return *std::min_element(best_k_.begin(), best_k_.end(),
                           [&](const auto& a, const auto& b) { return is_better(a.second, b.second); });
}

void CheckpointPolicy::plan_by_score(float score, const std::string& name, CheckpointPlan& plan) {
  const auto kept = static_cast<std::int64_t>(best_k_.size());
  const auto k = options_.save_top_k == -1 ? kept + 1 : options_.save_top_k;
  const auto has_path = [](const Path& path) { return [&](const auto& each) { return each.first == path; }; };
  const auto removed = kept == k ? worst_kept().first : Path();
  std::erase_if(best_k_, has_path(removed));
  if (std::isnan(score)) score = worst(options_.mode);

  plan.write = free_path(name, removed);
  current_score_ = score;
  const auto same = std::find_if(best_k_.begin(), best_k_.end(), has_path(plan.write));
  if (same != best_k_.end())
    same->second = score;
  else
    best_k_.emplace_back(plan.write, score);

  if (static_cast<std::int64_t>(best_k_.size()) == k) std::tie(kth_best_path_, kth_value_) = worst_kept();
  std::tie(best_path_, best_score_) = best_kept();
  if (!removed.empty() && may_remove(removed, plan.write)) plan.remove = removed;
}

void CheckpointPolicy::plan_newest(const std::string& name, CheckpointPlan& plan) {
  const auto previous = best_path_;
  plan.write = best_path_ = free_path(name, previous);
  if (options_.save_top_k == 1 && !previous.empty() && may_remove(previous, plan.write))
    plan.remove = previous;
}

fs::path CheckpointPolicy::free_path(const std::string& name, const Path& reusable) const {
  auto path = options_.folder / (name + options_.extension);
  for (int version = 1; exists_(path) && path != reusable; ++version)
    path = options_.folder / (name + "-v" + std::to_string(version) + options_.extension);
  return path;
}

bool CheckpointPolicy::may_remove(const Path& previous, const Path& current) const {
  if (previous == current) return false;
  const auto whole = [](const Path& path) { return fs::absolute(path).lexically_normal(); };
  const auto file = whole(previous), folder = whole(options_.folder);
  if (!options_.resumed_from.empty() && file == whole(options_.resumed_from)) return false;
  const auto inside = file.lexically_relative(folder);
  return !inside.empty() && *inside.begin() != "..";
}

c10::impl::GenericDict CheckpointPolicy::state_dict() const {
  auto kept = make_state();
  for (const auto& [path, score] : best_k_) kept.insert(path.string(), scalar(score));
  auto state = make_state();
  state.insert("monitor", options_.monitor.empty() ? c10::IValue() : c10::IValue(options_.monitor));
  state.insert("best_model_score", scalar(best_score_));
  state.insert("best_model_path", best_path_.string());
  state.insert("current_score", scalar(current_score_));
  state.insert("dirpath", options_.folder.string());
  state.insert("best_k_models", kept);
  state.insert("kth_best_model_path", kth_best_path_.string());
  state.insert("kth_value", scalar(kth_value_));
  state.insert("last_model_path", std::string());
  return state;
}

void CheckpointPolicy::load_state_dict(const c10::impl::GenericDict& state) {
  const DictReader reader(state, "checkpoint policy");
  const Path best_path = reader.text("best_model_path");
  if (!reader.has("dirpath") || Path(reader.text("dirpath")) == options_.folder) {
    decltype(best_k_) kept;
    const auto models = reader.dict("best_k_models");
    const DictReader scores(models, "checkpoint policy: best_k_models");
    for (const auto& item : models) {
      if (!item.key().isString()) scores.fail("expected paths as keys, got " + item.key().tagKind());
      const auto path = item.key().toStringRef();
      kept.emplace_back(path, static_cast<float>(scores.number(path)));
    }
    const auto best_score = optional_number(reader, "best_model_score");
    const auto kth_value = static_cast<float>(reader.number("kth_value"));
    const Path kth_best_path = reader.text("kth_best_model_path");
    best_k_ = std::move(kept);
    best_score_ = best_score;
    kth_value_ = kth_value;
    kth_best_path_ = kth_best_path;
  }
  best_path_ = best_path;
}

std::vector<fs::path> CheckpointPolicy::forget_missing() {
  std::vector<Path> missing;
  const auto is_missing = [&](const Path& path) { return !path.empty() && !exists_(path); };
  for (const auto& [path, score] : best_k_)
    if (is_missing(path)) missing.push_back(path);
  std::erase_if(best_k_, [&](const auto& kept) { return is_missing(kept.first); });
  if (is_missing(kth_best_path_)) {
    kth_best_path_.clear();
    kth_value_ = worst(options_.mode);
  }
  if (!is_missing(best_path_)) return missing;
  if (std::find(missing.begin(), missing.end(), best_path_) == missing.end()) missing.push_back(best_path_);
  best_path_.clear();
  best_score_.reset();
  if (!best_k_.empty()) std::tie(best_path_, best_score_) = best_kept();
  return missing;
}

}  // namespace ddprun::train
