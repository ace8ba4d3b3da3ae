#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include "launcher/events/threads.h"

namespace ddprun::launcher {

/// kUnknown: the file system does not keep owners or modes (SMB, gcsfuse), or makes another user of us (NFS
/// with root_squash), so that it cannot be told who may replace files.
enum class FolderTrust { kSafe, kUnknown, kUnsafe };

/// new_file  a file that we have made there with mode 0600; null: none, and then never kUnknown
FolderTrust folder_trust(const struct stat& folder, const struct stat* new_file, uid_t us);

/// A folder for log files, in which nobody else can replace a file: we own it and it is not world-writable,
/// or it has the sticky bit and is owned by us or root, like /tmp.
class LogFolder {
 public:
  /// Makes the folder and missing folders above it, with mode 0700.
  /// throws IoError, also for an unsafe folder
  explicit LogFolder(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }
  /// False: FolderTrust::kUnknown.
  bool is_safe() const { return is_safe_; }

  /// Opens a folder below this one, and creates missing ones with mode 0700. Existing ones must be safe and
  /// not links. throws IoError
  UniqueFd open_below(const std::filesystem::path& relative) const;

 private:
  std::filesystem::path path_;
  UniqueFd fd_;
  bool is_safe_ = false;
};

/// Makes `latest` beside a job's folder a link to it, unless that name is somebody's or something else's.
void link_latest(const std::filesystem::path& folder);

/// A new file of raw bytes, readable only by us.
///
/// A failed write (a full disk, a quota) causes one warning per file; later writes are still attempted.
class LogFile : public WriteTarget {
 public:
  /// file      inside the folder: relative to it, or with its path
  /// max_size  at this size the file is renamed to FILE.1, replacing an earlier one, and a new one begins, at
  ///           the end of a line if possible; 0: no limit
  /// warn      called with a warning
  /// throws    IoError, also if the file exists
  LogFile(const LogFolder& folder, const std::filesystem::path& file, std::size_t max_size = 0,
          std::function<void(const std::string&)> warn = log_warning);

  void write(std::string_view bytes) override;

  const std::filesystem::path& path() const { return path_; }

 private:
  void append(std::string_view bytes);
  void rotate();
  void warn_once(const char* problem, int error);

  std::filesystem::path path_;  // for messages
  UniqueFd folder_;             // for rotation
  UniqueFd fd_;
  std::size_t max_size_;
  std::size_t size_ = 0;
  bool at_line_start_ = true;
  bool warned_ = false;
  std::function<void(const std::string&)> warn_;
};

}  // namespace ddprun::launcher
