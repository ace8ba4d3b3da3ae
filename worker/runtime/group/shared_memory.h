#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ddprun/common/unique_fd.h>
#include <ddprun/group/store.h>

namespace ddprun::ddp {

/// Memory that the ranks of one host share, and a descriptor of each of their processes. It has no name:
/// nothing is left of it when the last of them ends, however it ends.
class SharedMemory {
 public:
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::byte* data() const { return data_; }

  /// Whether that rank's process has ended.
  bool has_ended(int rank) const;

 private:
  friend std::unique_ptr<SharedMemory> share_memory(const StorePtr&, int, int, std::size_t, bool);
  SharedMemory() = default;

  struct Process {
    UniqueFd descriptor;
    bool gone;  // before there was one
  };

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<Process> processes_;  // of the ranks
};

/// Memory for all ranks of a group, filled with zeros. Every rank of the group calls it.
///
/// returns  nullptr, on every rank, if they do not all see each other's processes: they are on several hosts,
///          in several containers, or the system forbids it
std::unique_ptr<SharedMemory> share_memory(const StorePtr& store, int rank, int size, std::size_t bytes,
                                           bool wanted);

}  // namespace ddprun::ddp
