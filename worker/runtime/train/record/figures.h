#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/image/line_chart.h>
#include <ddprun/report/html_report.h>
#include <ddprun/report/metric_sink.h>

namespace ddprun::train {

/// A chart and the name of its file: "loss", "accuracy", "lr".
struct NamedChart {
  std::string name;
  image::LineChart chart;
};

/// The curves that the rows hold: losses (names with "loss"), shares (names that end in "acc", "accuracy",
/// "dice" or "iou") and the learning rate ("lr"), each a chart if there is a figure for it at all. Drawn over
/// "epoch" if no two rows of a chart share one, else over "step".
std::vector<NamedChart> charts_of(const std::vector<report::MetricRow>& rows);

/// Writes FOLDER/<name>.png for each, making the folder. throws IoError
void write_charts(const std::filesystem::path& folder, const std::vector<NamedChart>& charts);

/// Writes the PNG file's bytes as FOLDER/<name>.png, making the folder. throws IoError
void write_figure(const std::filesystem::path& folder, const std::string& name, const std::string& png);

/// For the report page: the charts as SVG, then the folder's other PNG files by name. A file that cannot be
/// read is left out.
std::vector<report::Figure> report_figures(const std::filesystem::path& folder,
                                           const std::vector<NamedChart>& charts);

}  // namespace ddprun::train
