#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace ddprun::serialize {

/// Memory for a copy of a value's tensors, used again by the next copy: a training's state has the same sizes
/// every time.
class SnapshotMemory {
 public:
  /// Begins the next copy: what was taken before is free to be taken again, and must not be used any more.
  void start_over() { next_ = 0; }

  /// Bytes on the CPU, pinned if a GPU is to copy into them: uint8 [count].
  at::Tensor take(std::size_t count, bool pinned);

  std::size_t bytes() const;  ///< of all that is kept

 private:
  struct Buffer {
    at::Tensor bytes;
    bool pinned = false;
  };
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
};

}  // namespace ddprun::serialize
