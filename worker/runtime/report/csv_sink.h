#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/report/append_file.h>
#include <ddprun/report/metric_sink.h>

namespace ddprun::report {

/// Writes rows to a CSV file with fixed columns.
class CsvSink : public MetricSink {
 public:
  /// Starts the file anew with a header line. throws IoError
  ///
  /// first  rows that it begins with, such as a resumed run's earlier ones; the file that was there is
  ///        replaced at one stroke, so that a crash loses none of them
  CsvSink(const std::filesystem::path& path, std::vector<std::string> columns,
          const std::vector<MetricRow>& first = {});

  /// A column that the row does not name stays empty. Integers are written without a fraction, other numbers
  /// with nine significant digits. throws IoError, std::logic_error for a name that is no column
  void add(const MetricRow& row) override;

 private:
  std::vector<std::string> columns_;
  AppendFile file_;
};

/// The rows of a file that CsvSink wrote, without the empty cells. A last line that was cut off is left out.
/// throws  IoError if it cannot be read, or naming the line that is none of CsvSink's
std::vector<MetricRow> read_metrics_csv(const std::filesystem::path& path);

}  // namespace ddprun::report
