#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::report {

/// The figures of one moment of training by name, a row of metrics.csv. Omits unknown figures.
using MetricRow = std::vector<std::pair<std::string, double>>;

/// A figure as text: integers without a fraction, others with nine significant digits; "nan", "inf", "-inf".
std::string number_text(double value);

/// Where rows go. When add() returns, the kernel has the row, so a killed run keeps its measurements. A row
/// that cannot be written whole (full disk) leaves nothing behind, and later rows can be written again.
class MetricSink {
 public:
  virtual ~MetricSink() = default;
  /// throws  IoError
  virtual void add(const MetricRow& row) = 0;
};

/// A file that grows by whole records and never keeps a partial one, even on a full disk.
class AppendFile {
 public:
  /// Creates or replaces the file, starting with these bytes. throws IoError
  ///
  /// begin               nullopt: keeps the file, which ends with a whole record
  /// keep_until_written  a crash leaves either the old file or the new one with these bytes; costs an fsync
  AppendFile(std::filesystem::path path, std::optional<std::string_view> begin,
             bool keep_until_written = false);

  /// Passes the record to the kernel: it survives this process, but not a power failure.
  /// throws  IoError, after removing any partial record
  void append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

 private:
  void open(int truncate);

  std::filesystem::path path_;
  UniqueFd file_;
  std::int64_t size_ = 0;  // bytes of whole records
};

/// Writes rows to a CSV file with fixed columns.
class CsvSink : public MetricSink {
 public:
  /// Creates or replaces the file, starting with a header line. throws IoError
  ///
  /// first  rows to start with, such as a resumed run's earlier ones; replaces an existing file atomically,
  ///        so a crash loses none of them. nullopt: the file has these columns and whole rows, and more
  ///        follow
  CsvSink(const std::filesystem::path& path, std::vector<std::string> columns,
          const std::optional<std::vector<MetricRow>>& first = std::vector<MetricRow>());

  /// Leaves columns empty that the row does not name. Formats numbers with number_text().
  /// throws  IoError; std::logic_error for a name without a column
  void add(const MetricRow& row) override;

 private:
  std::vector<std::string> columns_;
  AppendFile file_;
};

/// Reads the rows of a file that CsvSink wrote, without empty cells and without a truncated last line.
/// throws  IoError if it cannot be read, or naming a line that CsvSink cannot have written
std::vector<MetricRow> read_metrics_csv(const std::filesystem::path& path);

/// The same of a file that JsonlSink wrote; null becomes NaN.
std::vector<MetricRow> read_metrics_jsonl(const std::filesystem::path& path);

/// Writes rows as JSON objects, one per line, in the row's order: {"epoch":0,"step":10,"train_loss":0.41}.
/// Numbers as in the CSV file; NaN and infinities become null.
class JsonlSink : public MetricSink {
 public:
  /// Creates or replaces the file. first: as in CsvSink. throws IoError
  explicit JsonlSink(const std::filesystem::path& path,
                     const std::optional<std::vector<MetricRow>>& first = std::vector<MetricRow>());
  void add(const MetricRow& row) override;

 private:
  AppendFile file_;
};

}  // namespace ddprun::report
