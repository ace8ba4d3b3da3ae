#include "worker/train/run_record.h"

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/errors.h"
#include "common/files.h"
#include "common/logging.h"

namespace ddprun::train {
namespace {

/// 0 if write() succeeds, the error number if the disk is full; throws on.
template <typename Write>
int unless_disk_full(Write write) {
  try {
    write();
    return 0;
  } catch (const IoError& error) {
    if (error.error_number != ENOSPC && error.error_number != EDQUOT) throw;
    log_warning(std::string(error.what()) + "; the training goes on");
    return error.error_number;
  }
}

/// Removes the file if it is there, and what is left of killed attempts at writing it.
void remove_with_leftovers(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> doomed = {path};
  const auto temporary = "." + path.filename().string() + ".tmp.";  // as temporary_beside() names it
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path.parent_path(), error), end; !error && entry != end;
       entry.increment(error))
    if (entry->path().filename().string().starts_with(temporary)) doomed.push_back(entry->path());
  for (const auto& file : doomed)
    if (!std::filesystem::remove(file, error) && error)
      throw IoError(file, "cannot remove this of an earlier run", error.value());
}

}  // namespace

RunRecord::RunRecord(std::filesystem::path folder) : folder_(std::move(folder)) {
  // The earlier run's end and weights are not this one's.
  for (const auto& path : {metrics_path(), summary_path(), checkpoint_path()}) remove_with_leftovers(path);
  unless_disk_full([&] { metrics(); });
}

/// Starts the file if need be; an empty one, which would pass for a run's, is not left behind.
report::CsvSink& RunRecord::metrics() {
  if (metrics_) return *metrics_;
  try {
    return metrics_.emplace(
        metrics_path(), std::vector<std::string>{"epoch", "step", "lr", "train_loss", "train_loss_epoch",
                                                 "train_acc", "test_loss", "test_acc", "samples_per_second"});
  } catch (const IoError&) {
    std::error_code ignored;
    std::filesystem::remove(metrics_path(), ignored);
    throw;
  }
}

void RunRecord::add_metrics(const report::MetricRow& row) {
  unless_disk_full([&] { metrics().add(row); });
}

void RunRecord::save(const TrainingState& state) {
  disk_error_ = unless_disk_full([&] { save_checkpoint(checkpoint_path(), state); });
  saved_ = saved_ || disk_error_ == 0;
}

void RunRecord::finish(const std::string& json) {
  unless_disk_full([&] { write_file_atomic(summary_path(), json); });
  if (!saved_)
    throw IoError(checkpoint_path(), "no checkpoint could be written in the whole run", disk_error_);
}

}  // namespace ddprun::train
