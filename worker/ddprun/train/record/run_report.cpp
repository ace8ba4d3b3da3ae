#include <ddprun/train/record/run_report.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <ctime>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include <ddprun/image/image_files.h>
#include <ddprun/train/optim/monitor.h>

namespace ddprun::train {
namespace {

using report::MetricRow;

/// A chart and the metrics it shows.
struct Kind {
  const char* name;
  const char* title;
  bool (*shows)(const std::string& metric);
};
constexpr Kind kKinds[] = {
    {"loss", "loss", [](const std::string& name) { return name.find("loss") != std::string::npos; }},
    {"accuracy", "accuracy",
     [](const std::string& name) {
       const auto ends = {"acc", "accuracy", "dice", "iou"};
       return std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
     }},
    {"lr", "learning rate", [](const std::string& name) { return name == "lr"; }}};

/// "epoch" if no two rows of the chart have the same one, else "step".
std::string x_axis_of(const std::vector<MetricRow>& rows, const Kind& kind) {
  std::set<double> epochs;
  for (const auto& row : rows) {
    if (std::none_of(row.begin(), row.end(), [&](const auto& figure) { return kind.shows(figure.first); }))
      continue;
    const auto epoch = find_metric(row, "epoch");
    if (!epoch || !epochs.insert(*epoch).second) return "step";
  }
  return "epoch";
}

report::LineChart chart_of(const std::vector<MetricRow>& rows, const Kind& kind) {
  report::LineChart chart{.title = kind.title, .x_label = x_axis_of(rows, kind), .integer_x = true};
  const double first = chart.x_label == "epoch" ? 1 : 0;  // the rows count epochs from 0
  std::map<std::string, std::size_t> index_of;
  for (const auto& row : rows) {
    const auto x = find_metric(row, chart.x_label);
    if (!x) continue;
    for (const auto& [name, value] : row) {
      if (!kind.shows(name)) continue;
      const auto [found, is_new] = index_of.emplace(name, chart.series.size());
      if (is_new) chart.series.push_back({name, {}, {}});
      auto& series = chart.series[found->second];
      series.x.push_back(*x + first);
      series.y.push_back(value);
    }
  }
  const bool of_masks = std::any_of(chart.series.begin(), chart.series.end(), [](const auto& series) {
    return series.name.ends_with("dice") || series.name.ends_with("iou");
  });
  if (of_masks) chart.title = "Dice, IoU and pixel accuracy";
  return chart;
}

/// Alternative text: the last value of each curve.
std::string description_of(const report::LineChart& chart) {
  std::string text = chart.title + " over " + chart.x_label + "s";
  for (const auto& series : chart.series)
    text += "; " + series.name + " ends at " + formatted("%.4g", series.y.back());
  return text;
}

/// "epoch 24" of "000024", "at the end" of "end"
std::string epoch_text(const std::string& stem) {
  const auto first = stem.find_first_not_of('0');
  return stem == "end" ? "at the end" : "epoch " + (first == std::string::npos ? stem : stem.substr(first));
}

/// A file of the run's folder, as the page shows it. throws IoError
report::Figure figure_in(const std::filesystem::path& file) {
  report::Figure figure{"", "image/svg+xml", read_file(file), file.stem()};
  if (file.extension() == ".svg") return figure;
  figure.media_type = "image/png";
  const auto picture = image::decode_png(figure.bytes, file);
  figure.title = picture.title;
  figure.width = picture.width / image::kPixelScale;
  if (file.parent_path().filename() == "epochs")  // 000024.png, end.png
    figure.epoch = figure.description = epoch_text(file.stem());
  for (const auto& [x, y, width, text, wrong] : picture.captions)
    figure.texts.push_back({static_cast<double>(x) / image::kPixelScale,
                            static_cast<double>(y) / image::kPixelScale,
                            static_cast<double>(width) / image::kPixelScale, text, wrong});
  return figure;
}

using nlohmann::ordered_json;
using Rows = std::vector<std::pair<std::string, std::string>>;

/// For people: four digits are enough.
std::string text_of(double value) {
  if (value == std::trunc(value)) return report::number_text(value);
  return formatted(std::abs(value) >= 1000 && std::abs(value) < 1e9 ? "%.0f" : "%.4g", value);
}

std::string text_of(const ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number()) return text_of(value.get<double>());
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// The members as rows; nested ones as "outer.inner", those of the first object in a list "list.0.inner".
void append_rows(const ordered_json& object, const std::string& prefix, Rows& rows) {
  for (const auto& [name, value] : object.items()) {
    if (value.is_object() || (value.is_array() && !value.empty() && value[0].is_object()))
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

/// A text member; empty if it is not text.
std::string member(const ordered_json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

/// ", 3 epochs", if the object has that number.
std::string counted_member(const ordered_json& object, const char* name, const std::string& what) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number_integer()) return "";
  return ", " + found->dump() + " " + what + (*found == 1 ? "" : "s");
}

/// ", 2026-11-23 18:03 UTC, on node1, commit 0123456789ab" from environment.json, as far as available.
std::string describe_origin(const ordered_json& environment) {
  const auto said = [&](const char* before, const std::string& text) {
    return text.empty() ? "" : before + text;
  };
  return said(", ", member(environment, "date")) + said(", on ", member(environment, "host")) +
         said(", commit ", member(environment, "commit").substr(0, 12));
}

/// The contents of a run folder's files; unreadable ones are empty.
struct RunFiles {
  std::string name;
  std::vector<MetricRow> rows;
  std::string summary_json, config, environment_json;
  ordered_json summary, environment;

  /// throws  IoError without metrics.csv
  explicit RunFiles(const std::filesystem::path& folder)
      : name((folder / "").lexically_normal().parent_path().filename().string()),
        rows(report::read_metrics_csv(folder / "metrics.csv")),
        summary_json(newest_summary(folder, rows)),
        config(text_if_any(folder / "config.toml")),
        environment_json(text_if_any(folder / "environment.json")),
        summary(ordered_json::parse(summary_json, nullptr, false)),
        environment(ordered_json::parse(environment_json, nullptr, false)) {}
};

/// A run for page.js.
ordered_json run_for_page(const RunFiles& run) {
  const auto& rows = run.rows;
  ordered_json columns = ordered_json::object();
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (const auto& [metric, value] : rows[i]) {
      auto& column = columns[metric];
      if (column.is_null()) column = std::vector<std::nullptr_t>(rows.size());
      if (std::isfinite(value)) column[i] = value;
    }
  const auto time = run.summary.find("time");
  return {{"name", run.name},
          {"columns", columns},
          {"time", time == run.summary.end() ? ordered_json() : *time},
          {"config", run.config}};
}

std::string runs_for_page(const std::vector<ordered_json>& runs) {
  return ordered_json{{"runs", runs}}.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

/// Those of --profile, of all ranks of the run's last part.
std::vector<report::Section> profiles_in(const std::filesystem::path& folder,
                                         const ordered_json& environment) {
  std::vector<report::Section> sections;
  const auto ranks = environment.find("world_size");
  const int last = ranks != environment.end() && ranks->is_number_integer() ? ranks->get<int>() : 1;
  for (int rank = 0; rank < last; ++rank)
    if (auto text = text_if_any(folder / profile_table_of(rank)); !text.empty())
      sections.push_back({"Profile of rank " + std::to_string(rank), {}, std::move(text)});
  return sections;
}

/// Replaces a summary: the last value of every metric.
ordered_json so_far(const std::vector<MetricRow>& rows, const std::string& task) {
  ordered_json last = {{"task", task}};
  for (const auto& row : rows)
    for (const auto& [name, value] : row) last[name] = value;
  return last;
}

/// The summary as its readers count: in files, epochs begin at 0.
ordered_json with_epochs_from_one(ordered_json summary) {
  const auto count_from_one = [](ordered_json& figures) {
    const auto epoch = figures.find("epoch");
    if (epoch != figures.end() && epoch->is_number()) *epoch = epoch->get<double>() + 1;
  };
  count_from_one(summary);
  for (const char* part : {"best", "last"})
    if (const auto figures = summary.find(part); figures != summary.end()) count_from_one(*figures);
  if (summary.is_object()) summary.erase("epochs_count_from");
  return summary;
}

/// A summary value that is shown large.
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

Rows highlights_of(const ordered_json& summary) {
  Rows rows;
  for (const auto& highlight : kHighlights) {
    const auto found = summary.find(highlight.key);
    if (found == summary.end() || !found->is_number()) continue;
    const bool is_last = summary.contains("best") && highlight.key == std::string("train_loss");
    rows.emplace_back(highlight.label + std::string(is_last ? ", last epoch" : ""),
                      formatted(highlight.format, highlight.scale * found->get<double>()));
  }
  return rows;
}

}  // namespace

std::vector<NamedChart> charts_of(const std::vector<MetricRow>& rows) {
  std::vector<NamedChart> charts;
  for (const auto& kind : kKinds)
    if (auto chart = chart_of(rows, kind); !chart.series.empty())
      charts.push_back({kind.name, std::move(chart)});
  return charts;
}

void write_charts(const std::filesystem::path& folder, const std::vector<NamedChart>& charts) {
  for (const auto& [name, chart] : charts)
    write_figure(folder / (name + ".svg"), report::line_chart_svg(chart));
}

Figure draw_confusion(const report::ConfusionMatrix& matrix, const std::string& title) {
  constexpr int kRight[] = {8, 82, 148}, kWrong[] = {199, 64, 13};
  const int classes = static_cast<int>(matrix.classes.size()), side = std::max(1, 480 / std::max(1, classes));
  Figure figure{image::make_image(classes * side, classes * side, 3, 255),
                report::confusion_matrix_svg(matrix, title)};
  for (const auto& cell : report::cells_of(matrix))
    for (int y = 0; y < side; ++y)
      for (int x = 0; x < side; ++x) {
        auto* pixel = figure.picture.pixel(static_cast<int>(cell.column) * side + x,
                                           static_cast<int>(cell.row) * side + y);
        for (int channel = 0; channel < 3; ++channel)
          pixel[channel] = static_cast<std::uint8_t>(std::lround(
              255 - cell.strength * (255 - (cell.row == cell.column ? kRight : kWrong)[channel])));
      }
  return figure;
}

std::string profile_table_of(int rank) {
  return rank == 0 ? "profile/operators.txt" : "profile/operators_rank" + std::to_string(rank) + ".txt";
}

std::string text_if_any(const std::filesystem::path& file) {
  try {
    return read_file(file);
  } catch (const IoError&) {
    return "";
  }
}

std::string newest_summary(const std::filesystem::path& run_folder, const std::vector<MetricRow>& rows) {
  auto text = text_if_any(run_folder / "summary.json");
  const auto summary = ordered_json::parse(text, nullptr, false);
  const auto last = rows.empty() ? std::nullopt : find_metric(rows.back(), "step");
  if (last && summary.is_object() && summary.contains("steps") && summary["steps"] < *last) return {};
  const auto list = ordered_json::parse(text_if_any(run_folder / "run.json"), nullptr, false);
  const auto branch_of = [&](const char* file) {  // 0: not listed
    const auto files = list.is_object() ? list.value("files", ordered_json()) : ordered_json();
    return files.is_object() && files.contains(file) ? files[file] : ordered_json(0);
  };
  const bool is_earlier =
      branch_of("summary.json") > 0 && branch_of("summary.json") < branch_of("metrics.csv");
  return is_earlier ? std::string() : text;
}

void write_figure(const std::filesystem::path& file, const std::string& bytes) {
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  if (error) throw IoError(file.parent_path(), "cannot create the folder", error.value());
  write_file_atomic(file, bytes);
}

std::vector<report::Figure> report_figures(const std::filesystem::path& folder,
                                           const std::vector<NamedChart>& charts) {
  std::vector<report::Figure> figures;
  std::set<std::string> drawn;
  for (const auto& [name, chart] : charts) {
    auto untitled = chart;  // the page shows the title above it
    untitled.title.clear();
    figures.push_back({.title = chart.title,
                       .media_type = "image/svg+xml",
                       .bytes = report::line_chart_svg(untitled, 600, 380),
                       .description = description_of(chart),
                       .curves = true});
    drawn.insert(name + ".svg");
  }
  std::set<std::filesystem::path> others;
  for (const auto& in : {folder, folder / "epochs"}) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(in, error), end; !error && entry != end;
         entry.increment(error))
      if (const auto& file = entry->path();
          (file.extension() == ".png" || file.extension() == ".svg") && !drawn.contains(file.filename()))
        others.insert(file);
  }
  for (const auto& path : others) {
    try {
      figures.push_back(figure_in(path));
    } catch (const IoError&) {  // the report omits it
    }
  }
  return figures;
}

void write_run_report(const std::filesystem::path& run_folder, const std::filesystem::path& file,
                      const std::string& running) {
  RunFiles run(run_folder);
  const bool ended = running.empty() && !run.summary_json.empty();  // else an earlier attempt's file
  if (!ended) run.summary = so_far(run.rows, running.empty() ? run.name : running);
  if (const auto task = member(run.summary, "task"); !task.empty()) run.name = task;
  report::HtmlReport page;
  page.title = run.name;
  page.subtitle =
      (describe_origin(run.environment) + counted_member(run.summary, "world_size", "rank") +
       counted_member(run.summary, "epochs", "epoch") + counted_member(run.summary, "steps", "step"));
  page.subtitle.erase(0, 2);  // the first comma
  page.command = member(run.environment, "command");
  page.highlights = highlights_of(run.summary);
  page.runs_json = runs_for_page({run_for_page(run)});
  if (running.empty())
    page.figures = report_figures(run_folder / "figures", charts_of(run.rows));
  else
    page.notice = "running, as of " + utc_text(std::time(nullptr), "%H:%M:%S UTC");
  page.sections = profiles_in(run_folder, run.environment);
  const bool readable = !ended || run.summary.is_object();
  const auto summary = readable ? with_epochs_from_one(run.summary).dump() : run.summary_json;
  page.sections.insert(page.sections.begin(), section_of("Summary", summary));
  page.sections.push_back({"Configuration", {}, run.config});
  page.sections.push_back(section_of("Environment", run.environment_json));
  write_file_atomic(file, report::to_html(page));
}

void write_comparison(const std::vector<std::filesystem::path>& run_folders,
                      const std::filesystem::path& file) {
  std::vector<ordered_json> runs;
  report::HtmlReport page;
  for (const auto& folder : run_folders) {
    const RunFiles run(folder);
    runs.push_back(run_for_page(run));
    page.sections.push_back({run.name + describe_origin(run.environment), highlights_of(run.summary), "",
                             static_cast<int>(runs.size()) - 1});
  }
  page.title = formatted("%zu runs", runs.size());
  page.runs_json = runs_for_page(runs);
  write_file_atomic(file, report::to_html(page));
}

}  // namespace ddprun::train
