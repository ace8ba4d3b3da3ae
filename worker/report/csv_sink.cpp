#include "worker/report/csv_sink.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include "common/errors.h"

namespace ddprun::report {
namespace {

std::string format_number(double value) {
  char text[32];
  const bool integer = std::isfinite(value) && value == std::trunc(value) && std::abs(value) < 1e15;
  std::snprintf(text, sizeof text, integer ? "%.0f" : "%.9g", value);
  return text;
}

}  // namespace

CsvSink::CsvSink(std::filesystem::path path, std::vector<std::string> columns)
    : path_(std::move(path)), columns_(std::move(columns)), file_(path_) {
  std::string line;
  for (const auto& column : columns_) line += (line.empty() ? "" : ",") + column;
  file_ << line << std::endl;
  if (!file_) throw IoError(path_, "cannot write", errno);
}

void CsvSink::add(const MetricRow& row) {
  std::vector<std::string> cells(columns_.size());
  for (const auto& [name, value] : row) {
    const auto column = std::find(columns_.begin(), columns_.end(), name);
    ensure(column != columns_.end(), "a metric has no column");
    cells[static_cast<std::size_t>(column - columns_.begin())] = format_number(value);
  }
  for (std::size_t i = 0; i < cells.size(); ++i) file_ << (i == 0 ? "" : ",") << cells[i];
  file_ << std::endl;
  if (!file_) throw IoError(path_, "cannot write", errno);
}

}  // namespace ddprun::report
