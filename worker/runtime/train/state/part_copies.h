#pragma once

#include <atomic>
#include <string>

#include <ddprun/group/process_group.h>
#include <ddprun/train/state/memory_file.h>

namespace ddprun::train {

/// Copies of the ranks' parts of the state on other nodes, over connections of their own. For a round; every
/// rank makes one.
class PartCopies {
 public:
  /// distance  rank r's copy is with rank r + distance
  /// file      where this rank keeps the other's
  PartCopies(const ddp::ProcessGroup& group, int distance, MemoryFile& file);
  /// What is under way in exchange() fails. Nothing may call it any more.
  ~PartCopies();

  /// Sends this rank's and keeps the other rank's. Every rank calls it equally often, in any thread.
  void exchange(const MemoryFile::Record& own);

  /// Whether a connection is lost.
  bool failed() const { return failed_; }
  /// Fails what is under way.
  void abort();

 private:
  std::string exchange_bytes(const std::string& own);

  const ddp::ProcessGroup group_;
  const int to_, from_;
  MemoryFile& file_;
  std::atomic<bool> failed_ = false;
};

}  // namespace ddprun::train
