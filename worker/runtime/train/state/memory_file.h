#pragma once

#include <cstdint>
#include <future>
#include <optional>
#include <string>

#include <ATen/core/ivalue.h>

#include <ddprun/serialize/portable_value.h>

namespace ddprun::train {

/// A training's newest state in memory that ddprun holds (DDPRUN_STATE_FD, --recover=rank): a file without a
/// name that outlives every worker of the node. Has room for two states, so that the older one stays whole
/// while the newer one is written, in the background.
class MemoryFile {
 public:
  /// fd  stays open; nothing is kept if it is not a file, as the variable may be left over from elsewhere
  explicit MemoryFile(int fd);
  /// Waits until the state is written.
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  /// Whether the last state is written.
  bool idle() const;

  /// Copies the state, and writes it in the background after the last one. Without room for it, as with a
  /// memory limit, warns once and keeps the states before.
  ///
  /// head  what tells states apart, in a few bytes
  void write(const std::string& head, const c10::IValue& state);

  struct Record {
    std::string head, state;  ///< the state pickled
  };
  /// The newest; nullopt: there is none that is whole.
  std::optional<Record> read() const;

 private:
  struct Slot;
  std::optional<Slot> newest() const;
  void put(const std::string& head, const std::string& state);

  int fd_ = -1;
  serialize::SnapshotMemory memory_;
  bool warned_ = false;
  std::future<void> writing_;
};

}  // namespace ddprun::train
