#pragma once

#include <ATen/core/ivalue.h>

#include <sys/types.h>
#include <atomic>
#include <cstdint>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/serialize/portable_value.h>

namespace ddprun::train {

/// A training's newest state in memory that ddprun holds (DDPRUN_STATE_FD, --recover=rank): a file without a
/// name that outlives the worker. Has room for two states, so that the older one stays whole while the newer
/// one is written, in the background.
class MemoryFile {
 public:
  /// fd     stays open; nothing is kept unless it is a file, as the variable may be left over from elsewhere
  /// begin  where the states begin in the file: several of these may share it, far apart
  explicit MemoryFile(int fd, off_t begin = 0);
  /// Waits until the state is written.
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  struct Record {
    std::string head, state;  ///< what tells states apart, in a few bytes; the pickled state
  };

  /// Whether the last state is written and there is room for the next.
  bool idle() const;
  /// Waits until it is.
  void wait() const;

  /// Copies the state, and writes it in the background after the previous one. Without room for it, such as
  /// under a memory limit, warns once and keeps the earlier states.
  ///
  /// copied   called once the state is copied; if it throws, nothing is written
  /// written  called in the background once it is written; with null on failure
  void write(const std::string& head, const c10::IValue& state, const std::function<void()>& copied = {},
             const std::function<void(const Record*)>& written = {});
  /// Writes it at once.
  void put(const Record& record);

  /// The newest whole state; nullopt: none.
  std::optional<Record> read() const;
  /// The heads of the one or two whole states, newest first. Waits until the last is written.
  std::vector<std::string> heads() const;
  /// Drops the states with this head, and damaged ones.
  void forget(const std::string& head);

 private:
  struct Slot;
  std::vector<Slot> slots() const;
  std::optional<Record> contents(const Slot& slot) const;
  bool write_slot(const Slot& slot);
  void give_up(const std::string& problem);

  int fd_ = -1;
  off_t begin_;
  serialize::SnapshotMemory memory_;
  bool warned_ = false;
  std::future<void> writing_;
};

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
