#pragma once

#include <filesystem>
#include <string>

namespace ddprun::train {

/// What the page says of a run beside its curves and pictures.
struct RunReport {
  std::string title;             ///< "mnist"
  std::string subtitle;          ///< "2 ranks, 5 epochs, finished 2026-11-21 14:03 UTC"
  std::string summary_json;      ///< as in summary.json
  std::string config_toml;       ///< as in config.toml
  std::string environment_json;  ///< as in environment.json
};

/// Draws RUN_FOLDER/figures/{loss,accuracy,lr}.png from RUN_FOLDER/metrics.csv, and writes
/// RUN_FOLDER/report.html with them, with the figures that are there already (samples, confusion) and with
/// what the report says. JSON that is none is shown as it is.
///
/// throws  IoError
void write_run_report(const std::filesystem::path& run_folder, const RunReport& report);

}  // namespace ddprun::train
