#pragma once

#include <filesystem>
#include <vector>

#include "worker/image/confusion_matrix.h"
#include "worker/image/image_grid.h"
#include "worker/image/line_chart.h"
#include "worker/report/html_report.h"
#include "worker/report/metric_sink.h"

namespace ddprun::train {

/// The curves that the rows hold: every name with "loss"; every "_acc", "_dice", "_iou" and their like; "lr".
/// Drawn over epochs where each has one row an epoch, else over steps. A chart without a curve is left out.
struct RunCharts {
  struct Named {
    std::string name;  ///< "loss", "accuracy", "lr"
    image::LineChart chart;
  };
  std::vector<Named> charts;
};
RunCharts charts_of(const std::vector<report::MetricRow>& rows);

/// Writes FOLDER/<name>.png for each. throws IoError
void write_charts(const std::filesystem::path& folder, const RunCharts& charts);

/// FOLDER/samples.png, FOLDER/confusion.png. throws IoError
void write_samples(const std::filesystem::path& folder, const std::vector<image::Tile>& tiles);
void write_confusion(const std::filesystem::path& folder, const image::ConfusionMatrix& matrix);

/// For the report: the charts as SVG, then the other PNG files of the folder by name.
std::vector<report::Figure> report_figures(const std::filesystem::path& folder, const RunCharts& charts);

}  // namespace ddprun::train
