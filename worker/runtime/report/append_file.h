#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include <ddprun/common/unique_fd.h>

namespace ddprun::report {

/// A file that grows by whole records and is never left with a part of one, even by a full disk.
class AppendFile {
 public:
  /// Starts the file anew with these bytes. throws IoError
  ///
  /// keep_until_written  a crash leaves the old file or the new one with these bytes; costs an fsync
  AppendFile(std::filesystem::path path, std::string_view begin, bool keep_until_written = false);

  /// Hands the record to the system: it outlives this process, if not the machine's power.
  /// throws  IoError; what was written of it is taken back
  void append(std::string_view record);

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  std::int64_t size_ = 0;  // bytes of whole records
};

}  // namespace ddprun::report
