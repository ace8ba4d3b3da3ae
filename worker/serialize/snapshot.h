#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

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
  std::vector<at::Tensor> buffers_;
  std::size_t next_ = 0;
};

/// A copy of a value in the form of portable_value(), whose tensors share no memory with the value's: these
/// may change while the copy is written. Waits for the GPU where tensors are on one.
///
/// memory  what the copy's tensors lie in; they are valid until memory.start_over()
/// throws  as portable_value()
c10::IValue snapshot(const c10::IValue& value, SnapshotMemory& memory);

}  // namespace ddprun::serialize
