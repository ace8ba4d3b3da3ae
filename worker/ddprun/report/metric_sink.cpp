#include <ddprun/report/metric_sink.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <system_error>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun::report {
namespace {

std::string line_of(const MetricRow& row, const std::vector<std::string>& columns) {
  std::vector<std::string> cells(columns.size());
  for (const auto& [name, value] : row) {
    const auto column = std::find(columns.begin(), columns.end(), name);
    ensure(column != columns.end(), "a metric has no column");
    cells[static_cast<std::size_t>(column - columns.begin())] = number_text(value);
  }
  return joined(cells, ",") + "\n";
}

std::string line_of(const MetricRow& row) {
  std::string line = "{";
  for (const auto& [name, value] : row)
    line += (line.size() == 1 ? "" : ",") + nlohmann::json(name).dump() + ":" +
            (std::isfinite(value) ? number_text(value) : "null");
  return line + "}\n";
}

constexpr std::size_t kMostBytes = std::size_t{1} << 30;

/// Without a truncated last line.
std::vector<std::string> lines_of(const std::filesystem::path& path) {
  auto lines = split(read_file(path, kMostBytes), '\n');
  lines.pop_back();
  return lines;
}

using Rows = std::optional<std::vector<MetricRow>>;

/// The file that these lines begin; nullopt: it has them.
AppendFile begin_file(const std::filesystem::path& path, std::string text, const Rows& rows,
                      const auto& line_of_row) {
  if (!rows) return {path, std::nullopt};
  for (const auto& row : *rows) text += line_of_row(row);
  return {path, text, /*keep_until_written=*/!rows->empty()};
}

}  // namespace

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";  // regardless of its sign bit
  const bool integer = std::isfinite(value) && value == std::trunc(value) && std::abs(value) < 1e15;
  return integer ? formatted("%.0f", value + 0.0) : formatted("%.9g", value);  // no "-0"
}

AppendFile::AppendFile(std::filesystem::path path, std::optional<std::string_view> begin,
                       bool keep_until_written)
    : path_(std::move(path)) {
  if (begin && keep_until_written) write_file_atomic(path_, *begin);
  const bool starts = begin && !keep_until_written;
  const bool is_new = starts && !std::filesystem::exists(path_);
  open(starts ? O_TRUNC : 0);
  if (!starts) {
    size_ = static_cast<std::int64_t>(std::filesystem::file_size(path_));
    return;
  }
  try {
    append(*begin);
  } catch (const IoError&) {
    std::error_code ignored;
    if (is_new) std::filesystem::remove(path_, ignored);
    throw;
  }
}

void AppendFile::open(int truncate) {
  file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | truncate, 0644));
  if (!file_) throw IoError(path_, "cannot create", errno);
}

void AppendFile::append(std::string_view record) {
  if (!write_all(file_.get(), record)) {
    const int error = errno;
    [[maybe_unused]] const int ignored = ::ftruncate(file_.get(), size_);
    throw IoError(path_, "cannot write", error);
  }
  size_ += static_cast<std::int64_t>(record.size());
}

CsvSink::CsvSink(const std::filesystem::path& path, std::vector<std::string> columns, const Rows& first)
    : columns_(std::move(columns)),
      file_(begin_file(path, joined(columns_, ",") + "\n", first,
                       [&](const MetricRow& row) { return line_of(row, columns_); })) {}

void CsvSink::add(const MetricRow& row) { file_.append(line_of(row, columns_)); }

std::vector<MetricRow> read_metrics_csv(const std::filesystem::path& path) {
  const auto lines = lines_of(path);
  std::vector<std::string> columns;
  std::vector<MetricRow> rows;
  for (std::size_t number = 1; number <= lines.size(); ++number) {
    const auto cells = split(lines[number - 1], ',');
    if (number == 1) {
      columns = cells;
      continue;
    }
    const auto wrong = [&](const std::string& what) {
      return IoError(path, formatted("line %zu: ", number) + what);
    };
    if (cells.size() != columns.size())
      throw wrong(
          formatted("expected %zu cells, as in the first line, got %zu", columns.size(), cells.size()));
    MetricRow row;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (cells[i].empty()) continue;
      char* end_of_number = nullptr;
      const double value = std::strtod(cells[i].c_str(), &end_of_number);
      if (*end_of_number != '\0') throw wrong("expected a number, got '" + cells[i] + "'");
      row.emplace_back(columns[i], value);
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<MetricRow> read_metrics_jsonl(const std::filesystem::path& path) {
  std::vector<MetricRow> rows;
  for (const auto& line : lines_of(path)) try {
      auto& row = rows.emplace_back();
      const auto object = nlohmann::ordered_json::parse(line);
      for (const auto& [name, value] : object.items())
        row.emplace_back(name, value.is_null() ? std::nan("") : value.get<double>());
    } catch (const nlohmann::json::exception&) {
      throw IoError(path, formatted("line %zu: expected a JSON object of numbers", rows.size()));
    }
  return rows;
}

JsonlSink::JsonlSink(const std::filesystem::path& path, const Rows& first)
    : file_(begin_file(path, "", first, [](const MetricRow& row) { return line_of(row); })) {}

void JsonlSink::add(const MetricRow& row) { file_.append(line_of(row)); }

}  // namespace ddprun::report
