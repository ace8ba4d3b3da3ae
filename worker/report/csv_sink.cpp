#include "worker/report/csv_sink.h"

#include <fcntl.h>
#include <unistd.h>

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
    : path_(std::move(path)),
      columns_(std::move(columns)),
      file_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)) {
  if (!file_) throw IoError(path_, "cannot create", errno);
  std::string line;
  for (const auto& column : columns_) line += (line.empty() ? "" : ",") + column;
  append(line + "\n");
}

void CsvSink::add(const MetricRow& row) {
  std::vector<std::string> cells(columns_.size());
  for (const auto& [name, value] : row) {
    const auto column = std::find(columns_.begin(), columns_.end(), name);
    ensure(column != columns_.end(), "a metric has no column");
    cells[static_cast<std::size_t>(column - columns_.begin())] = format_number(value);
  }
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) line += (i == 0 ? "" : ",") + cells[i];
  append(line + "\n");
}

void CsvSink::append(const std::string& line) {
  const ssize_t written = ::write(file_.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) {
    size_ += written;
    return;
  }
  const int error = written < 0 ? errno : ENOSPC;
  if (::ftruncate(file_.get(), size_) == 0) ::lseek(file_.get(), size_, SEEK_SET);
  throw IoError(path_, "cannot write", error);
}

}  // namespace ddprun::report
