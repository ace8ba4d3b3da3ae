#include <ddprun/run/metric_files.h>

#include <algorithm>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include <ATen/ops/scalar_tensor.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/report/tensorboard_sink.h>
#include <ddprun/serialize/dict_reader.h>

namespace ddprun {
namespace {

using report::MetricRow;
using Rows = std::vector<MetricRow>;

/// More than ranks can be apart, and than a power failure usually takes.
constexpr std::size_t kNewestRows = 64;

/// As both have it in the file, in any order.
bool same_row(const MetricRow& a, const MetricRow& b) {
  const auto cells = [](const MetricRow& row) {
    std::map<std::string, std::string> text;
    for (const auto& [name, value] : row) text[name] = report::number_text(value);
    return text;
  };
  return cells(a) == cells(b);
}

std::int64_t step_of(const MetricRow& row) {
  const auto step = std::ranges::find(row, "step", &MetricRow::value_type::first);
  return step == row.end() ? 0 : static_cast<std::int64_t>(step->second);
}

/// Keeps a file that is not this training's.
void move_aside(const std::filesystem::path& path) {
  std::filesystem::path other;
  for (int number = 1; other.empty() || std::filesystem::exists(other); ++number)
    other = path.string() + "." + std::to_string(number);
  std::error_code error;
  std::filesystem::rename(path, other, error);
  if (error) throw IoError(path, "cannot move it to " + other.filename().string(), error.value());
  log_info(path.string() + ": has rows that are not in the checkpoint; it is now " +
           other.filename().string());
}

void create_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError(folder, "cannot create", error.value());
}

}  // namespace

MetricFiles::MetricFiles(const Context& context, Options options)
    : context_(context), options_(std::move(options)) {}

void MetricFiles::File::add(const MetricRow& row) {
  waiting.push_back(row);
  try {
    for (; !waiting.empty(); waiting.pop_front()) write(waiting.front());
  } catch (const IoError& error) {
    if (!std::exchange(failed, true)) log_warning(std::string(error.what()) + "; the training continues");
  }
}

void MetricFiles::add(const MetricRow& row) {
  if (!begun_) begin();
  ++rows_;
  newest_.push_back(row);
  if (newest_.size() > kNewestRows) newest_.pop_front();
  for (auto& file : files_) file.add(row);
}

/// Makes the files have just the rows of this training.
void MetricFiles::begin() {
  begun_ = true;
  files_.clear();
  if (!context_.is_main()) return;
  if (!options_.csv.empty()) begin_csv();
  if (!options_.tensorboard.empty()) begin_tensorboard();
}

/// The file's first rows_, if it is this training's. Those that it lacks are among the newest, or lost.
Rows MetricFiles::earlier_rows() const {
  Rows rows;
  try {
    if (rows_ > 0) rows = report::read_metrics_csv(options_.csv);
  } catch (const IoError& error) {
    log_warning(error.what());
  }
  if (rows.size() > static_cast<std::size_t>(rows_)) rows.resize(static_cast<std::size_t>(rows_));
  const auto before = static_cast<std::size_t>(rows_) - newest_.size();  // the newest
  bool own = rows.size() > before;
  for (auto i = before; own && i < rows.size(); ++i) own = same_row(rows[i], newest_[i - before]);
  if (own || rows_ == 0) return rows;
  return {};
}

void MetricFiles::begin_csv() {
  const auto& path = options_.csv;
  auto rows = earlier_rows();
  if (rows.empty() && std::filesystem::is_regular_file(path) && std::filesystem::file_size(path) > 0)
    move_aside(path);
  const auto lacks = static_cast<std::size_t>(rows_) - rows.size();
  const auto known = std::min(lacks, newest_.size());
  if (lacks > known)
    log_warning(path.string() + ": " + std::to_string(lacks - known) +
                " rows before the checkpoint are lost");
  rows.insert(rows.end(), newest_.end() - static_cast<std::ptrdiff_t>(known), newest_.end());
  rows_ = static_cast<std::int64_t>(rows.size());
  columns_.clear();
  create_folder(std::filesystem::absolute(path).parent_path());
  csv_.reset();
  begins_anew_ = rows.empty();
  for (const auto& row : rows) add_columns(row);
  if (!rows.empty()) csv_ = std::make_unique<report::CsvSink>(path, columns_, rows);
  files_.push_back({[this](const MetricRow& row) { write_csv(row); }});
}

/// returns  whether it has a figure that no earlier row has
bool MetricFiles::add_columns(const MetricRow& row) {
  const auto before = columns_.size();
  for (const auto& [name, value] : row)
    if (std::ranges::find(columns_, name) == columns_.end()) columns_.push_back(name);
  return columns_.size() > before;
}

void MetricFiles::write_csv(const MetricRow& row) {
  begins_anew_ = add_columns(row) || begins_anew_;
  if (begins_anew_) {
    const auto rows = csv_ ? report::read_metrics_csv(options_.csv) : Rows();
    csv_ = std::make_unique<report::CsvSink>(options_.csv, columns_, rows);
    begins_anew_ = false;
  }
  csv_->add(row);
}

/// A new file, which makes TensorBoard forget what the folder's earlier ones have of the newest rows and of
/// later steps, and has the newest again.
void MetricFiles::begin_tensorboard() {
  auto first = newest_.begin();
  // An older row may have the same step as the first of the newest.
  if (static_cast<std::size_t>(rows_) > newest_.size())
    first =
        std::ranges::find_if(newest_, [&](const MetricRow& row) { return step_of(row) != step_of(*first); });
  std::int64_t from = 0;
  if (first != newest_.end())
    from = step_of(*first);
  else if (!newest_.empty())
    from = step_of(newest_.back()) + 1;
  create_folder(options_.tensorboard);
  const auto sink = std::make_shared<report::TensorBoardSink>(options_.tensorboard, from);
  files_.push_back({[sink](const MetricRow& row) { sink->add(row); }});
  for (; first != newest_.end(); ++first) files_.back().add(*first);
}

c10::impl::GenericDict MetricFiles::state_dict() const {
  std::vector<c10::IValue> newest;
  for (const auto& row : newest_) {
    auto figures = train::make_state();
    for (const auto& [name, value] : row) figures.insert(name, value);
    newest.emplace_back(figures);
  }
  return train::make_state({{"rows", rows_}, {"newest", train::make_list(newest)}});
}

void MetricFiles::load_state_dict(const c10::impl::GenericDict& state) {
  const train::DictReader reader(state, "metric files");
  rows_ = reader.integer("rows");
  newest_.clear();
  for (const auto& row : reader.list("newest")) {
    auto& figures = newest_.emplace_back();
    if (!row.isGenericDict()) reader.fail("'newest': expected rows, as dicts of numbers");
    for (const auto& figure : row.toGenericDict())
      figures.emplace_back(figure.key().toStringRef(), figure.value().toDouble());
  }
  if (rows_ < static_cast<std::int64_t>(newest_.size()))
    reader.fail("'rows': expected at least as many as are in 'newest', got " + std::to_string(rows_));
  begin();
  rows_ = context_.broadcast(at::scalar_tensor(rows_, at::kLong)).item<std::int64_t>();
}

}  // namespace ddprun
