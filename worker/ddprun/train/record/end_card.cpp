#include <ddprun/train/record/end_card.h>

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <ddprun/common/text.h>

namespace ddprun::train {
namespace {

// ddprun puts "[default0]:" before each line.
constexpr std::size_t kColumns = 80 - 11, kLabel = 14;

std::string padded(const std::string& label) {
  const auto begin = "  " + label;
  return begin + std::string(kLabel > begin.size() ? kLabel - begin.size() : 1, ' ');
}

}  // namespace

void EndCard::add(const std::string& label, const std::string& text) {
  auto begin = padded(label);
  for (const auto& line : wrapped(text, kColumns - kLabel)) {
    lines_.push_back(begin + line);
    begin.assign(kLabel, ' ');
  }
}

void EndCard::add(const NextCommand& command) {
  lines_.push_back(padded(command.label) + joined(command.words, " "));
}

std::string figures_text(const report::MetricRow& row, const std::string& set) {
  std::string text;
  for (const auto& [name, value] : row)
    if (name.starts_with(set + "_"))
      text += (text.empty() ? "" : ", ") + name + (std::isnan(value) ? " nan" : formatted(" %.4g", value));
  return text;
}

report::MetricRow best_row(const std::vector<report::MetricRow>& rows, const std::string& metric,
                           MonitorMode mode) {
  const report::MetricRow* best = nullptr;
  for (const auto& row : rows) {
    const auto value = find_metric(row, metric);
    if (!value || !std::isfinite(*value)) continue;
    if (best == nullptr || is_better(mode, *value, *find_metric(*best, metric))) best = &row;
  }
  return best == nullptr ? report::MetricRow() : *best;
}

}  // namespace ddprun::train
