#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace ddprun::serialize {

/// Returns the values of a tensor that is about to be written, for tensors whose storage has a size but no
/// memory, so that a file can be larger than memory. Empty: all tensors have memory.
using ValueOf = std::function<at::Tensor(const at::Tensor&)>;

/// Memory for a copy of a value's tensors, reused by the next copy: a training's state has the same sizes
/// every time.
class SnapshotMemory {
 public:
  /// Begins the next copy and invalidates buffers taken earlier.
  void start_over() { next_ = 0; }

  /// A CPU buffer, uint8 [count]; pinned if a GPU copies into it.
  at::Tensor take(std::size_t count, bool pinned);

  std::size_t bytes() const;  ///< of all buffers

 private:
  struct Buffer {
    at::Tensor bytes;
    bool pinned = false;
  };
  std::vector<Buffer> buffers_;
  std::size_t next_ = 0;
};

/// A copy of a value that pickles to what torch.load(weights_only=True) reads: lists and dicts of untyped
/// elements, text in UTF-8, tensors detached and on the CPU. Tensors keep sharing memory, except for views
/// that together need less than half of it: these are cloned.
///
/// throws  std::invalid_argument for a kind of value that cannot be written
c10::IValue portable_value(const c10::IValue& value);

/// The same, but tensors do not share memory with the value's, which may change while the copy is written.
/// Waits for the GPU if tensors are on one.
///
/// memory  holds the copy's tensors; they are valid until memory.start_over()
c10::IValue snapshot(const c10::IValue& value, SnapshotMemory& memory);

}  // namespace ddprun::serialize
