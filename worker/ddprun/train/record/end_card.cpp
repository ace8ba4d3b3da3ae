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
  std::vector<std::string> pieces;  // a flag stays on one line with its value
  for (const auto& word : command.words) {
    if (!pieces.empty() && pieces.back().starts_with("--") &&
        pieces.back().find_first_of(" =") == std::string::npos && !word.starts_with("--"))
      pieces.back() += " " + word;
    else
      pieces.push_back(word);
  }
  auto line = padded(command.label);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::size_t end = i + 1 < pieces.size() ? 2 : 0;  // " \"
    if (i > 0 && line.size() + 1 + pieces[i].size() + end > kColumns) {
      lines_.push_back(line + " \\");
      line.assign(kLabel + 2, ' ');
    } else if (i > 0) {
      line += ' ';
    }
    line += pieces[i];
  }
  lines_.push_back(line);
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
