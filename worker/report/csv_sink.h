#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/unique_fd.h"

namespace ddprun::report {

/// The figures of one moment of training, by name: a row of metrics.csv.
using MetricRow = std::vector<std::pair<std::string, double>>;

/// Writes rows to a CSV file with fixed columns. Every row is on its way to disk when add() returns, so that
/// a killed run keeps what it measured.
class CsvSink {
 public:
  /// Starts the file anew with a header line. throws IoError
  CsvSink(std::filesystem::path path, std::vector<std::string> columns);

  /// A column that the row does not name stays empty. Integers are written without a fraction, other numbers
  /// with nine significant digits. throws IoError, std::logic_error for a name that is no column
  void add(const MetricRow& row);

 private:
  void append(const std::string& line);

  std::filesystem::path path_;
  std::vector<std::string> columns_;
  UniqueFd file_;
  std::int64_t size_ = 0;  // bytes of whole lines
};

}  // namespace ddprun::report
