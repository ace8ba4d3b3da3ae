#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ddprun/common/files.h>
#include <ddprun/group/store.h>

namespace ddprun::ddp {

/// Memory shared by the ranks of one host, with a descriptor of each of their processes. It is anonymous:
/// nothing is left when the last of them ends, however it ends.
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
    bool gone;  // it had ended before it could be opened
  };

  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<Process> processes_;  // by rank
};

/// Zero-filled memory for all ranks of a group, which all call it. Returns nullptr, on every rank, if some
/// cannot see each other's processes: on several hosts, in several containers, or where it is forbidden.
std::unique_ptr<SharedMemory> share_memory(const StorePtr& store, int rank, int size, std::size_t bytes,
                                           bool wanted);

}  // namespace ddprun::ddp
