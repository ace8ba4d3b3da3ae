#include <ddprun/train/record/run_report.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/report/html_report.h>
#include <ddprun/report/metric_sink.h>
#include <ddprun/train/record/figures.h>

namespace ddprun::train {
namespace {

using nlohmann::ordered_json;
using Rows = std::vector<std::pair<std::string, std::string>>;

std::string text_of(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return report::number_text(value.get<double>());
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// The object's members as rows; nested ones as "outer.inner".
void append_rows(const ordered_json& object, const std::string& prefix, Rows& rows) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object())
      append_rows(value, prefix + name + ".", rows);
    else
      rows.emplace_back(prefix + name, text_of(value));
  }
}

report::Section section_of(const std::string& title, const std::string& json) {
  report::Section section{title, {}, ""};
  const auto value = ordered_json::parse(json, nullptr, false);
  if (value.is_object())
    append_rows(value, "", section.rows);
  else
    section.text = json;
  return section;
}

/// A value of the summary that is shown large.
struct Highlight {
  const char* key;
  const char* label;
  double scale;
  const char* format;
};
constexpr Highlight kHighlights[] = {{"test_acc", "test accuracy", 100, "%.2f %%"},
                                     {"val_acc", "validation accuracy", 100, "%.2f %%"},
                                     {"test_dice", "test Dice", 1, "%.4f"},
                                     {"val_dice", "validation Dice", 1, "%.4f"},
                                     {"test_iou", "test IoU", 1, "%.4f"},
                                     {"val_iou", "validation IoU", 1, "%.4f"},
                                     {"test_loss", "test loss", 1, "%.4g"},
                                     {"val_loss", "validation loss", 1, "%.4g"},
                                     {"train_loss", "training loss", 1, "%.4g"},
                                     {"samples_per_second", "samples a second", 1, "%.0f"},
                                     {"seconds", "seconds", 1, "%.1f"},
                                     {"peak_rss_mb", "peak memory, MiB", 1, "%.0f"}};

Rows highlights_of(const std::string& summary_json) {
  const auto summary = ordered_json::parse(summary_json, nullptr, false);
  Rows rows;
  if (!summary.is_object()) return rows;
  for (const auto& highlight : kHighlights) {
    const auto found = summary.find(highlight.key);
    if (found == summary.end() || !found->is_number()) continue;
    char text[48];
    std::snprintf(text, sizeof text, highlight.format, highlight.scale * found->get<double>());
    rows.emplace_back(highlight.label, text);
  }
  return rows;
}

}  // namespace

void write_run_report(const std::filesystem::path& run_folder, const RunReport& report) {
  const auto figures = run_folder / "figures";
  const auto charts = charts_of(report::read_metrics_csv(run_folder / "metrics.csv"));
  write_charts(figures, charts);
  report::HtmlReport page{
      report.title, report.subtitle, highlights_of(report.summary_json), report_figures(figures, charts), {}};
  page.sections = {section_of("Summary", report.summary_json),
                   {"Configuration", {}, report.config_toml},
                   section_of("Environment", report.environment_json)};
  write_file_atomic(run_folder / "report.html", report::to_html(page));
}

}  // namespace ddprun::train
