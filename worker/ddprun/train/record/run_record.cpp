#include <ddprun/train/record/run_record.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/image/image_files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/shard_index.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;

/// is_known  it was full the last time, and that is no news
/// returns   0 if write() succeeds, errno if the disk is full
template <typename Write>
int unless_disk_full(Write write, bool is_known = false) {
  try {
    write();
    return 0;
  } catch (const IoError& error) {
    if (error.error_number != ENOSPC && error.error_number != EDQUOT) throw;
    if (!is_known) log_warning(std::string(error.what()) + "; the training continues");
    return error.error_number;
  }
}

bool is_missing(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

/// Starts a metrics file. If it fails, removes a new one, which would look like a run's; and from an earlier
/// one, if the disk is full, the lines after these, which would look like this run's.
template <typename Make>
std::unique_ptr<report::MetricSink> make_or_cut(const fs::path& path, std::optional<std::size_t> lines,
                                                Make make) {
  const bool is_new = is_missing(path);
  try {
    return make();
  } catch (const IoError& error) {
    std::error_code ignored;
    if (is_new) fs::remove(path, ignored);
    if (!is_new && lines && (error.error_number == ENOSPC || error.error_number == EDQUOT)) {
      const auto text = read_file(path);
      std::size_t size = 0, end = 0;
      for (; *lines > 0 && (end = text.find('\n', size)) != std::string::npos; --*lines) size = end + 1;
      fs::resize_file(path, size, ignored);
    }
    throw;
  }
}

}  // namespace

RunRecord::RunRecord(RunFolder& folder) : RunRecord(folder, Options()) {}

RunRecord::RunRecord(RunFolder& folder, Options options)
    : folder_(folder), options_(std::move(options)), writer_(folder) {
  remove_leftovers();
  for (const auto& file : {metrics_path(), jsonl_path()}) folder_.claim(file);
  start_metrics();
  if (!options_.tensorboard) return;
  add_sink([this] {
    std::optional<std::int64_t> purge_from;
    if (options_.resumed_at) purge_from = *options_.resumed_at + 1;
    auto sink = std::make_unique<report::TensorBoardSink>(folder_.path(), purge_from);
    tensorboard_ = sink.get();
    folder_.wrote(sink->path(), {});
    return sink;
  });
}

void RunRecord::start_metrics() {
  std::optional<std::vector<report::MetricRow>> csv, jsonl;
  if (!has_just_the_earlier_rows()) {
    csv = earlier_rows(metrics_path(), report::read_metrics_csv);
    jsonl = earlier_rows(jsonl_path(), report::read_metrics_jsonl);
    if (csv->empty())  // it was lost
      csv = jsonl;
    else if (jsonl->empty())
      jsonl = csv;
    keep_columns_of(*csv);
  }
  rows_ = csv ? static_cast<std::int64_t>(csv->size()) : *options_.resumed_rows;
  const auto lines_of = [](const auto& rows, std::size_t more) {
    return rows ? std::optional(rows->size() + more) : std::nullopt;
  };
  add_sink([this, csv, lines = lines_of(csv, 1)] {
    return make_or_cut(metrics_path(), lines, [&] {
      return std::make_unique<report::CsvSink>(metrics_path(), options_.columns, csv);
    });
  });
  add_sink([this, jsonl, lines = lines_of(jsonl, 0)] {
    return make_or_cut(jsonl_path(), lines,
                       [&] { return std::make_unique<report::JsonlSink>(jsonl_path(), jsonl); });
  });
}

void RunRecord::remove_leftovers() const {
  std::set<fs::path> folders = {folder_.path(), checkpoint_folder()};
  for (const auto& file : folder_.files()) folders.insert(file.parent_path());
  for (const auto& in : folders) {
    std::error_code error;
    for (fs::directory_iterator entry(in, error), end; !error && entry != end; entry.increment(error))
      if (folder_.owns_temporary(entry->path()) && !fs::remove(entry->path(), error) && error)
        throw IoError(entry->path(), "cannot remove what a killed run left behind", error.value());
  }
  folder_.remove_unused_shards();
}

/// Then they need not be parsed and written again, which takes longer the longer the run is.
bool RunRecord::has_just_the_earlier_rows() const {
  if (!options_.resumed_rows || *options_.resumed_rows == 0) return false;
  const auto csv = read_or_empty(metrics_path()), jsonl = read_or_empty(jsonl_path());
  const auto lines = [](const std::string& text) {
    return text.ends_with('\n') ? std::ranges::count(text, '\n') : -1;
  };
  const auto& columns = options_.columns;
  if (!csv.starts_with(joined(columns, ",") + "\n") || lines(csv) != *options_.resumed_rows + 1 ||
      lines(jsonl) != *options_.resumed_rows)
    return false;
  // As many rows may be others: of a full disk, or of a run that was resumed from elsewhere.
  const auto last = split(std::string_view(csv).substr(csv.rfind('\n', csv.size() - 2) + 1), ',');
  const auto step = static_cast<std::size_t>(std::ranges::find(columns, "step") - columns.begin());
  return step < last.size() &&
         std::strtod(last[step].c_str(), nullptr) <= static_cast<double>(*options_.resumed_at);
}

/// Rows of the resumed run, up to its checkpoint. throws  IoError if the file is there and cannot be read
template <typename Read>
std::vector<report::MetricRow> RunRecord::earlier_rows(const fs::path& file, Read read) {
  if (!options_.resumed_at || is_missing(file)) return {};
  try {
    std::vector<report::MetricRow> rows = read(file);
    const auto at = static_cast<double>(*options_.resumed_at);
    std::int64_t number = 0;
    std::erase_if(rows, [&](const report::MetricRow& row) {
      const bool later = options_.resumed_rows && number++ >= *options_.resumed_rows;
      return std::any_of(row.begin(), row.end(), [&](const auto& figure) {
        return figure.first == "step" && (figure.second > at || (later && figure.second == at));
      });
    });
    return rows;
  } catch (const IoError& error) {
    if (error.error_number != 0) throw;
    log_warning(std::string(error.what()) + "; a copy of the file is kept beside it");
    folder_.keep_earlier(file);
    return {};
  }
}

/// A run with other ranks or flags may have had other columns.
void RunRecord::keep_columns_of(const std::vector<report::MetricRow>& rows) {
  auto& columns = options_.columns;
  for (const auto& row : rows)
    for (const auto& [name, value] : row)
      if (std::find(columns.begin(), columns.end(), name) == columns.end()) columns.push_back(name);
}

report::MetricSink& RunRecord::Sink::started() {
  if (!sink) sink = make();
  return *sink;
}

void RunRecord::add_sink(std::function<std::unique_ptr<report::MetricSink>()> make) {
  sinks_.push_back({std::move(make)});
  sinks_.back().disk_full = unless_disk_full([&] { sinks_.back().started(); }) != 0;
}

void RunRecord::add_metrics(const report::MetricRow& row) {
  ++rows_;
  for (auto& sink : sinks_)
    sink.disk_full = unless_disk_full([&] { sink.started().add(row); }, sink.disk_full) != 0;
  if (pending_ && !writer_.busy()) settle();
}

void RunRecord::add_figure(const std::string& name, const std::string& tag, std::int64_t step,
                           const Figure& figure) {
  unless_disk_full([&] {
    const auto& picture = figure.picture;
    const auto png = image::encode_png(picture);
    const auto file = folder_.path() / "figures" / (name + (figure.svg.empty() ? ".png" : ".svg"));
    folder_.claim(file);
    write_figure(file, figure.svg.empty() ? png : figure.svg);
    if (tensorboard_)
      tensorboard_->add_image(tag, step, png, picture.width, picture.height, picture.channels);
  });
}

void RunRecord::add_text(const std::string& tag, const std::string& markdown) {
  if (tensorboard_)
    unless_disk_full([&] { tensorboard_->add_text(tag, options_.resumed_at.value_or(0), markdown); });
}

std::vector<fs::path> RunRecord::begin_shards(const fs::path& checkpoint, std::int64_t step) {
  std::vector<fs::path> paths;
  const int error = unless_disk_full([&] { paths = folder_.begin_shards(checkpoint, step); });
  if (error != 0) {
    disk_error_ = error;
    saved_ = saved_ && !options_.save_last && !is_due(checkpoint);
  }
  return paths;
}

bool RunRecord::is_due(const fs::path& checkpoint) const {
  return (checkpoint.stem() == "last") == options_.save_last;
}

bool RunRecord::has_checkpoint() const {
  return std::ranges::any_of(folder_.files(), [this](const auto& file) {
    return file.parent_path() == checkpoint_folder() && is_checkpoint_name(file) && !is_missing(file);
  });
}

void RunRecord::save(const TrainingState& state, CheckpointWriter::Request request,
                     std::function<void()> undo) {
  for (auto* paths : {&request.paths, &request.doomed})
    std::erase_if(*paths, [](const fs::path& path) { return path.empty(); });
  settle();
  std::error_code ignored;  // the write will fail
  fs::create_directory(checkpoint_folder(), ignored);
  pending_ = true;
  due_ = std::ranges::any_of(request.paths, [this](const auto& path) { return is_due(path); });
  undo_ = std::move(undo);
  writer_.write(state, std::move(request));
}

bool RunRecord::save_weights(const fs::path& path, const c10::IValue& model) {
  return unless_disk_full([&] {
           folder_.claim(path);
           serialize::write_pt(path, model);
         }) == 0;
}

void RunRecord::flush() {
  settle();
  writer_.release_memory();
}

void RunRecord::settle() {
  if (!std::exchange(pending_, false)) return;
  const auto undo = std::exchange(undo_, nullptr);
  disk_error_ = unless_disk_full([&] { writer_.flush(); });
  saved_ = due_ && options_.save_last ? disk_error_ == 0
           : due_                     ? writer_.wrote_first()
                                      : saved_ || writer_.wrote_first();
  if (undo && !writer_.wrote_first()) undo();
}

void RunRecord::finish(const std::string& json, bool expects_checkpoint) {
  flush();
  unless_disk_full([&] {
    folder_.claim(summary_path());
    write_file_atomic(summary_path(), json);
  });
  const bool resumed = options_.resumed_at.has_value();
  if (saved_ || !expects_checkpoint || (resumed && disk_error_ == 0)) return;
  throw IoError(options_.save_last ? checkpoint_path() : checkpoint_folder(),
                has_checkpoint() ? "the run's last checkpoint was not written; the existing one is older"
                : resumed        ? "no checkpoint was written since the run was resumed"
                                 : "no checkpoint was written in the whole run",
                disk_error_);
}

}  // namespace ddprun::train
