#pragma once

#include <atomic>
#include <string>

#include <ddprun/group/process_group.h>
#include <ddprun/train/state/memory_file.h>

namespace ddprun::train {

/// Copies the ranks' parts of the state to other nodes, over separate connections. Every rank makes one per
/// round.
class PartCopies {
 public:
  /// distance  rank r + distance keeps rank r's copy
  /// file      where this rank keeps the other's
  PartCopies(const ddp::ProcessGroup& group, int distance, MemoryFile& file);
  /// A running exchange() fails. No further calls are allowed.
  ~PartCopies();

  /// Sends this rank's part and keeps the other rank's. Every rank calls it equally often, on any thread.
  void exchange(const MemoryFile::Record& own);

  /// Whether a connection is lost.
  bool failed() const { return failed_; }
  /// Fails a running exchange().
  void abort();

 private:
  std::string exchange_bytes(const std::string& own);

  const ddp::ProcessGroup group_;
  const int to_, from_;
  MemoryFile& file_;
  std::atomic<bool> failed_ = false;
};

}  // namespace ddprun::train
