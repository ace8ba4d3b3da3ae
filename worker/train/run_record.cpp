#include "worker/train/run_record.h"

#include <cerrno>
#include <utility>

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

}  // namespace

RunRecord::RunRecord(std::filesystem::path folder)
    : folder_(std::move(folder)),
      metrics_(metrics_path(), {"epoch", "step", "lr", "train_loss", "train_loss_epoch", "train_acc",
                                "test_loss", "test_acc", "samples_per_second"}) {}

void RunRecord::add_metrics(const report::MetricRow& row) {
  unless_disk_full([&] { metrics_.add(row); });
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
