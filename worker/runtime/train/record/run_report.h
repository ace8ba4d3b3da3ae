#pragma once

#include <filesystem>
#include <string>

namespace ddprun::train {

/// The text of the report.
struct RunReport {
  std::string title;             ///< "mnist"
  std::string subtitle;          ///< "2 ranks, 5 epochs, finished 2026-11-21 14:03 UTC"
  std::string summary_json;      ///< as in summary.json
  std::string config_toml;       ///< as in config.toml
  std::string environment_json;  ///< as in environment.json
};

/// Draws RUN_FOLDER/figures/{loss,accuracy,lr}.png from RUN_FOLDER/metrics.csv, and writes
/// RUN_FOLDER/report.html with them, the figures that exist already (samples, confusion) and the report's
/// text. Invalid JSON is shown as text. throws  IoError
void write_run_report(const std::filesystem::path& run_folder, const RunReport& report);

}  // namespace ddprun::train
