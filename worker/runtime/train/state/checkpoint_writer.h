#pragma once

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <ATen/core/ivalue.h>

#include <ddprun/serialize/snapshot_memory.h>
#include <ddprun/train/state/checkpoint.h>

namespace ddprun::train {

/// Writes checkpoints in a thread of its own: the training waits for a copy of its state in memory only.
///
///   CheckpointWriter writer;
///   writer.write(state, {{folder / "last.pt", folder / "epoch=3.pt"}, {folder / "epoch=1.pt"}});
///   ... the next step may change the tensors ...
///   writer.flush();
///
/// One copy is kept, and its memory used again. A request that comes while another is being written waits for
/// it: each carries deletions that were decided for it, so none may be left out, and memory stays bounded.
/// Who would rather skip one asks busy().
class CheckpointWriter {
 public:
  struct Request {
    std::vector<std::filesystem::path> paths;        ///< the state is written to each, in this order
    std::vector<std::filesystem::path> doomed = {};  ///< deleted once the first is on disk and verified
  };

  CheckpointWriter();
  /// Waits until the request under way is done; its errors are lost unless flush() was called.
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Copies the state and returns; each file is then written atomically and read again for its CRC-32. A file
  /// to be deleted that is not there, or that is among paths, is passed over. throws  as check(), and then
  /// the state is not written
  void write(const TrainingState& state, Request request);

  /// Whether a request is being written.
  bool busy() const;

  /// throws  what went wrong with an earlier request, once: IoError
  void check();

  /// Waits until everything is on disk. throws  as check()
  void flush();

  /// After flush(), whether it threw or not: the first file of the last request is on disk, and what was to
  /// make way for it is gone.
  bool wrote_first() const { return wrote_first_; }

  /// The same, but for errors, and lets go of the copy: what follows needs the memory.
  void release_memory();

 private:
  void run();
  void carry_out(const Request& request);
  void wait_until_idle(std::unique_lock<std::mutex>& lock);
  void rethrow();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Request> request_;  // being written
  c10::IValue snapshot_;            // of the state to be written
  serialize::SnapshotMemory memory_;
  std::exception_ptr error_;
  bool wrote_first_ = false;  // changed while request_ is there
  bool ending_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace ddprun::train
