#pragma once

#include <string>
#include <vector>

#include <ddprun/report/metric_sink.h>
#include <ddprun/train/model/trainer_options.h>
#include <ddprun/train/optim/monitor.h>

namespace ddprun::train {

/// What a run's log ends with: results, files and the next commands, in two columns.
class EndCard {
 public:
  /// Omits a line without text.
  void add(const std::string& label, const std::string& text);
  /// On one line, however long it is: so it can be copied from behind what ddprun puts before a line.
  void add(const NextCommand& command);

  /// At most 80 columns with what ddprun puts before a line, except for commands and single long words.
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

/// "val_loss 0.3279, val_acc 0.8812"; empty if the row has no figure of this set
std::string figures_text(const report::MetricRow& row, const std::string& set);

/// The first row with the best finite value of the metric; empty if there is none.
report::MetricRow best_row(const std::vector<report::MetricRow>& rows, const std::string& metric,
                           MonitorMode mode);

}  // namespace ddprun::train
