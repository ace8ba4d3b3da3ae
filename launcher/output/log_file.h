#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

/// A folder in which log files are made. Nobody else may be able to exchange what is in it: it belongs to us
/// and is not writable for all, or has the sticky bit and belongs to us or root (such as /tmp).
class LogFolder {
 public:
  /// Makes the folder, and those above it that are missing, with mode 0700.
  /// throws IoError, also for a folder that we must not trust
  explicit LogFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  /// The folder below this one that `relative` names. What is missing of it is made with mode 0700; what is
  /// there must be a folder of ours, no link. throws IoError
  UniqueFd open_below(const std::filesystem::path& relative) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
};

/// A file of bytes as they came, readable only to us, that no earlier file or link of that name can be.
///
/// A write that fails (a full disk, a quota) is a warning, once a file: the job is worth more than its log.
/// Every later write is tried.
class LogFile {
 public:
  /// file      inside the folder: relative to it, or with its path
  /// max_size  from this size on the file is renamed to FILE.1, replacing an earlier one, and begun anew, at
  ///           the end of a line if it can be; 0: it grows
  /// throws    IoError, also if the file exists
  LogFile(const LogFolder& folder, const std::filesystem::path& file, std::size_t max_size = 0);

  void write(std::string_view bytes);

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(std::string_view bytes);
  void rotate();
  void warn_once(const char* problem, int error);

  std::filesystem::path path_;  // for messages
  UniqueFd folder_;             // if the file is to be rotated
  UniqueFd fd_;
  std::size_t max_size_;
  std::size_t size_ = 0;
  bool at_line_start_ = true;
  bool warned_ = false;
};

}  // namespace ddprun::launcher
