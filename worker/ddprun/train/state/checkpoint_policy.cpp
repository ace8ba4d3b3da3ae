#include <ddprun/train/state/checkpoint_policy.h>

#include <torch/types.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <regex>
#include <tuple>
#include <variant>

#include <ddprun/common/text.h>
#include <ddprun/serialize/dict_reader.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;
using report::MetricRow;
using Number = std::variant<std::int64_t, double>;

/// As Python's repr(): the shortest digits that read back as the same number.
std::string repr(double value) {
  if (std::isnan(value)) return "nan";
  const double size = std::abs(value);
  const bool fixed = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto how = fixed ? std::chars_format::fixed : std::chars_format::scientific;
  char buffer[32];
  const std::string text(buffer, std::to_chars(buffer, std::end(buffer), value, how).ptr);
  return fixed && text.find('.') == std::string::npos ? text + ".0" : text;
}

/// A part of Python's format specifications: sign, 0, width, .digits, type.
const std::regex kSpec(R"(([-+ ]?)(0?)(\d{0,2})(\.\d{1,2})?(.?))");

/// nullopt where Python rejects that format for that number.
std::optional<std::string> format(const Number& value, const std::string& spec) {
  std::smatch parts;
  if (!std::regex_match(spec, parts, kSpec)) return std::nullopt;
  const auto sign = parts.str(1) == "-" ? "" : parts.str(1);  // Python's default; in C it sets the alignment
  const auto flags = sign + parts.str(2), width = parts.str(3), digits = parts.str(4), type = parts.str(5);
  const auto start = "%" + flags + width;
  const auto* integer = std::get_if<std::int64_t>(&value);
  if (type == "d" || (type.empty() && integer != nullptr)) {
    if (integer == nullptr || !digits.empty()) return std::nullopt;
    return formatted((start + "lld").c_str(), static_cast<long long>(*integer));
  }
  const double number = integer != nullptr ? static_cast<double>(*integer) : std::get<double>(value);
  if (type.empty()) return (digits + width + flags).empty() ? std::optional(repr(number)) : std::nullopt;
  if (type == "%") return formatted((start + digits + "f").c_str(), 100 * number) + "%";
  if (std::string_view("eEfFgG").find(type) == std::string_view::npos) return std::nullopt;
  return formatted((start + digits + type).c_str(), number);
}

bool is_count(std::string_view name) { return name == "epoch" || name == "step"; }

std::string names_of(const MetricRow& metrics) {
  std::vector<std::string> names;
  for (const auto& [name, value] : metrics) names.push_back(name);
  return names.empty() ? "none" : joined(names, ", ");
}

c10::IValue scalar(std::optional<float> value) {
  return value ? c10::IValue(torch::full({}, *value, torch::kFloat32)) : c10::IValue();
}

}  // namespace

std::string checkpoint_name(const std::string& pattern, const MetricRow& metrics, std::int64_t epoch,
                            std::int64_t step) {
  if (pattern.empty()) return checkpoint_name("{epoch}-{step}", metrics, epoch, step);
  const auto refuse = [&](const std::string& expected) { throw CheckpointNameError(pattern, expected); };
  const auto value_of = [&](const std::string& name) -> Number {
    if (is_count(name)) return name == "epoch" ? epoch : step;
    const auto value = find_metric(metrics, name);
    return value ? Number(static_cast<double>(static_cast<float>(*value))) : Number(std::int64_t{0});
  };
  if (pattern.find('/') == std::string::npos && pattern.starts_with('.'))
    refuse("a name that does not begin with '.'");
  std::string result;
  for (std::size_t i = 0; i < pattern.size();) {
    if (pattern[i] == '}') refuse("'{' before '}'");
    if (pattern[i] != '{') {
      result += pattern[i++];
      continue;
    }
    const auto end = pattern.find('}', i);
    if (end == std::string::npos) refuse("'}' after '{'");
    const auto field = pattern.substr(i + 1, end - i - 1);
    const auto colon = field.find(':');
    const auto name = field.substr(0, colon);
    if (name.empty() || name.find('{') != std::string::npos) refuse("a metric's name between '{' and '}'");
    const auto text = format(value_of(name), colon == std::string::npos ? "" : field.substr(colon + 1));
    if (!text) refuse("a format such as " + std::string(is_count(name) ? "02d" : ".2f") + " for " + name);
    result += name + "=" + *text;
    i = end + 1;
  }
  return result;
}

std::vector<std::string> metrics_in(const std::string& pattern) {
  std::vector<std::string> names;
  for (auto begin = pattern.find('{'); begin != std::string::npos; begin = pattern.find('{', begin + 1)) {
    auto name = pattern.substr(begin + 1, pattern.find_first_of(":}", begin) - begin - 1);
    if (!is_count(name)) names.push_back(std::move(name));
  }
  return names;
}

CheckpointPolicy::CheckpointPolicy(CheckpointPolicyOptions options, FileExists exists)
    : options_(std::move(options)), exists_(std::move(exists)) {
  if (options_.save_top_k < -1)
    throw UsageError("save_top_k: expected -1 or more, got " + std::to_string(options_.save_top_k));
}

CheckpointPlan CheckpointPolicy::plan(const MetricRow& metrics, std::int64_t epoch, std::int64_t step,
                                      Occasion occasion) {
  if (occasion < Occasion::kStep || step == last_step_saved_ || options_.save_top_k == 0) return {};
  const auto score = find_metric(metrics, options_.monitor);
  if (!score && occasion == Occasion::kStep) return {};
  if (!score)
    throw UsageError("monitor: expected one of the metrics " + names_of(metrics) + ", got '" +
                     options_.monitor + "'");
  while (best_k_.size() > most_kept())  // of a run that was resumed and kept more: their files stay
    std::erase_if(best_k_, [worst = worst_kept().first](const auto& each) { return each.first == worst; });
  if (best_k_.size() == most_kept() &&
      !is_better(options_.mode, static_cast<float>(*score), worst_kept().second))
    return {};
  last_step_saved_ = step;
  return plan_by_score(static_cast<float>(*score), checkpoint_name(options_.filename, metrics, epoch, step));
}

std::pair<fs::path, float> CheckpointPolicy::best_kept(bool or_worst) const {  // the first of equals
  return *std::min_element(best_k_.begin(), best_k_.end(), [&](const auto& a, const auto& b) {
    return or_worst ? is_better(options_.mode, b.second, a.second)
                    : is_better(options_.mode, a.second, b.second);
  });
}

CheckpointPlan CheckpointPolicy::plan_by_score(float score, const std::string& name) {
  const auto has_path = [](const Path& path) { return [&](const auto& each) { return each.first == path; }; };
  const auto removed = best_k_.size() == most_kept() ? worst_kept().first : Path();
  std::erase_if(best_k_, has_path(removed));
  if (std::isnan(score)) score = worst_value<float>(options_.mode);

  CheckpointPlan plan{free_path(name, removed), {}};
  current_score_ = score;
  const auto same = std::find_if(best_k_.begin(), best_k_.end(), has_path(plan.write));
  if (same != best_k_.end())
    same->second = score;
  else
    best_k_.emplace_back(plan.write, score);

  std::tie(best_path_, best_score_) = best_kept();
  if (!removed.empty() && may_remove(removed, plan.write)) plan.remove = removed;
  return plan;
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
  const bool has_kth = !best_k_.empty() && (options_.save_top_k == -1 || best_k_.size() >= most_kept());
  const auto [kth_path, kth_value] =
      has_kth ? worst_kept() : std::pair(Path(), worst_value<float>(options_.mode));
  return make_state({{"monitor", options_.monitor},
                     {"best_model_score", scalar(best_score_)},
                     {"best_model_path", best_path_.string()},
                     {"current_score", scalar(current_score_)},
                     {"dirpath", options_.folder.string()},
                     {"best_k_models", kept},
                     {"kth_best_model_path", kth_path.string()},
                     {"kth_value", scalar(kth_value)},
                     {"last_model_path", ""}});
}

void CheckpointPolicy::load_state_dict(const c10::impl::GenericDict& state, bool same_run) {
  const DictReader reader(state, "checkpoint policy");
  const auto then = reader.has("dirpath") ? Path(reader.text("dirpath")) : options_.folder;
  const auto here = [&](const Path& path) {
    return same_run && path.parent_path() == then ? options_.folder / path.filename() : path;
  };
  auto loaded = *this;  // all or nothing
  loaded.best_path_ = here(reader.text("best_model_path"));
  if (same_run || then == options_.folder) {
    loaded.best_k_.clear();
    const DictReader scores(reader.dict("best_k_models"), "checkpoint policy: best_k_models");
    for (const auto& path : scores.names())
      loaded.best_k_.emplace_back(here(path), static_cast<float>(scores.number(path)));
    const auto score = [&](const char* name) {
      return reader.has(name) ? std::optional(static_cast<float>(reader.number(name))) : std::nullopt;
    };
    loaded.best_score_ = score("best_model_score");
    loaded.current_score_ = score("current_score");
  }
  *this = std::move(loaded);
}

std::vector<fs::path> CheckpointPolicy::forget_unless(const FileExists& is_kept) {
  std::vector<Path> missing;
  const auto is_missing = [&](const Path& path) { return !path.empty() && !is_kept(path); };
  for (const auto& [path, score] : best_k_)
    if (is_missing(path)) missing.push_back(path);
  std::erase_if(best_k_, [&](const auto& kept) { return is_missing(kept.first); });
  if (!is_missing(best_path_)) return missing;
  if (std::find(missing.begin(), missing.end(), best_path_) == missing.end()) missing.push_back(best_path_);
  best_path_.clear();
  best_score_.reset();
  if (!best_k_.empty()) std::tie(best_path_, best_score_) = best_kept();
  return missing;
}

}  // namespace ddprun::train
