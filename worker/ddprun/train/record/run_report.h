#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/image/image.h>
#include <ddprun/report/charts.h>
#include <ddprun/report/html_report.h>
#include <ddprun/report/metric_sink.h>

namespace ddprun::train {

/// A chart and its file name without extension: "loss", "accuracy", "lr".
struct NamedChart {
  std::string name;
  report::LineChart chart;
};

/// One chart each for losses (names with "loss"), shares (names ending in "acc", "accuracy", "dice" or "iou")
/// and the learning rate ("lr"), if the rows have such values. The x axis is "epoch" if every row of a chart
/// has a different one, else "step".
std::vector<NamedChart> charts_of(const std::vector<report::MetricRow>& rows);

/// Writes FOLDER/NAME.svg for each; creates the folder. throws IoError
void write_charts(const std::filesystem::path& folder, const std::vector<NamedChart>& charts);

/// A picture that is drawn as an SVG file, and with fewer details as pixels for TensorBoard, or as pixels
/// alone.
struct Figure {
  image::Image picture;
  std::string svg = {};  ///< empty: the picture is the file
};

/// The matrix, with its counts; as pixels without them.
/// throws  std::invalid_argument as report::cells_of()
Figure draw_confusion(const report::ConfusionMatrix& matrix, const std::string& title);

/// Writes a file; creates the folder. throws IoError
void write_figure(const std::filesystem::path& file, const std::string& bytes);

/// For the report: the charts, then the folder's other SVG and PNG files by name, if they can be read. Those
/// in its folder epochs/, 000024.png and end.png, are for the slider.
std::vector<report::Figure> report_figures(const std::filesystem::path& folder,
                                           const std::vector<NamedChart>& charts);

/// The file of a rank's profile in its run's folder.
std::string profile_table_of(int rank);

/// The file's text; empty if it cannot be read.
std::string text_if_any(const std::filesystem::path& file);

/// summary.json; empty if there is none, or if it says how the run had ended before it was resumed.
///
/// rows  the run's metrics
std::string newest_summary(const std::filesystem::path& run_folder,
                           const std::vector<report::MetricRow>& rows);

/// Writes a run's page from the files in its folder; all but metrics.csv may be missing. Invalid JSON is
/// shown as text.
///
/// running  the task of an unfinished run: the page shows its progress, without pictures, and reloads every
///          few seconds
/// throws   IoError
void write_run_report(const std::filesystem::path& run_folder, const std::filesystem::path& file,
                      const std::string& running = "");

/// Writes a page with the curves of several runs on top of each other, and the differences in configuration.
/// throws  IoError, including for a run without metrics.csv
void write_comparison(const std::vector<std::filesystem::path>& run_folders,
                      const std::filesystem::path& file);

}  // namespace ddprun::train
