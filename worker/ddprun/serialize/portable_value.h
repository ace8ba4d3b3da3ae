#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddprun/common/files.h>

namespace ddprun::serialize {

/// Returns the values of a tensor that is about to be written, for tensors whose storage has a size but no
/// memory, so that a file can be larger than memory. Empty: all tensors have memory.
using ValueOf = std::function<at::Tensor(const at::Tensor&)>;

/// Memory for a copy of a value's tensors, reused by the next copy: a training's state has the same sizes
/// every time.
class StagingMemory {
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
c10::IValue stage(const c10::IValue& value, StagingMemory& memory);

/// What files call an element type; empty where a format has no name for it.
struct DtypeNames {
  std::string_view storage;      ///< Python's older, typed storages: "torch.FloatStorage"
  std::string_view dtype;        ///< "torch.float32"
  std::string_view safetensors;  ///< "F32"
  c10::ScalarType type;
};
DtypeNames names_of(c10::ScalarType dtype);

/// The element type with this name; nullopt if none. "torch.storage.UntypedStorage" holds bytes.
///
/// kind  which of the names, such as &DtypeNames::dtype
std::optional<c10::ScalarType> dtype_named(std::string_view name, std::string_view DtypeNames::*kind);

/// What is wrong with these bools, nullopt if nothing: bytes other than 0 and 1 are undefined behaviour.
std::optional<std::string> bad_bools(const void* bytes, std::size_t count);

/// A new file to append to. Remembers its first error instead of throwing it, because PyTorchStreamWriter's
/// destructor keeps writing and an exception there would end the program.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);

  /// Always returns count.
  std::size_t append(const void* bytes, std::size_t count);

  /// Waits until everything is on disk and drops it from the page cache, so that readers read the disk.
  void settle();

  int error() const { return error_; }  ///< errno; 0: none

 private:
  UniqueFd fd_;
  int error_;
};

}  // namespace ddprun::serialize
