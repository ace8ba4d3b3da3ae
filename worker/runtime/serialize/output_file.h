#pragma once

#include <cstddef>
#include <filesystem>

#include <ddprun/common/files.h>

namespace ddprun::serialize {

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
