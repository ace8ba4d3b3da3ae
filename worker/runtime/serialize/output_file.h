#pragma once

#include <cstddef>
#include <filesystem>

#include <ddprun/common/unique_fd.h>

namespace ddprun::serialize {

/// A new file to append to whose first error is kept instead of thrown: PyTorchStreamWriter's destructor
/// writes on, and would end the program.
class OutputFile {
 public:
  explicit OutputFile(const std::filesystem::path& path);

  /// returns  count, always
  std::size_t append(const void* bytes, std::size_t count);

  /// Waits until all of it is on disk, and lets go of it in memory: who reads it now reads the disk.
  void settle();

  int error() const { return error_; }  ///< an errno; 0 if all went well

 private:
  UniqueFd fd_;
  int error_;
};

}  // namespace ddprun::serialize
