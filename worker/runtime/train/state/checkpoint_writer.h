#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include <ddprun/serialize/portable_value.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/run_folder.h>

namespace ddprun::train {

/// Writes checkpoints on a background thread: the training waits only for a copy of its state in memory.
///
///   CheckpointWriter writer(run_folder);
///   writer.write(state, {{folder / "last.pt", folder / "epoch=3.pt"}, {folder / "epoch=1.pt"}});
///   ... the next step may change the tensors ...
///   writer.flush();
///
/// Keeps one copy and reuses its memory. A request waits for the previous one, because every request carries
/// its own deletions and memory must stay bounded. Check busy() to skip one instead.
class CheckpointWriter {
 public:
  struct Request {
    std::vector<std::filesystem::path> paths;  ///< written in this order; all have one extension
    /// Deleted once the first is on disk and verified, if they are the run's.
    std::vector<std::filesystem::path> doomed = {};
    /// Called in the background before the first is written: waits for the ranks' shards, and returns the new
    /// TrainingState::shards. give_up() is true once the writer ends.
    std::function<std::string(const std::function<bool()>& give_up)> finish_shards = {};
  };

  /// folder  the run's, which outlives it
  explicit CheckpointWriter(RunFolder& folder) : folder_(folder) {}
  /// Waits for the current request; its errors are lost unless flush() was called.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Copies the state and returns; each file is then written atomically and read back to verify its CRC-32.
  /// Ignores files to delete that do not exist or are among paths.
  /// throws  IoError of an earlier request, once; this state is then not written
  void write(const TrainingState& state, Request request);

  /// Whether a request is being written.
  bool busy() const;

  /// Waits until everything is on disk. throws  as write()
  void flush();

  /// After flush(), even if it threw: whether the first file of the last request is on disk and `doomed`
  /// deleted.
  bool wrote_first() const { return wrote_first_; }

  /// Waits, ignoring errors, and frees the copy.
  void release_memory();

 private:
  void carry_out(const Request& request);
  void wait() const;

  RunFolder& folder_;
  c10::IValue snapshot_;  // of the state being written
  serialize::SnapshotMemory memory_;
  bool wrote_first_ = false;  // changes only while writing
  std::atomic<bool> ending_ = false;
  std::future<void> writing_;
};

}  // namespace ddprun::train
