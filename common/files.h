#pragma once

#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ddprun {

/// Owns one file descriptor and closes it.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

/// The whole file as bytes. throws IoError if it cannot be read or is larger than max_bytes.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes = std::size_t{1} << 40);

/// The rest of an open file. path: for the message
std::string read_file(const UniqueFd& fd, const std::filesystem::path& path, std::size_t max_bytes);

/// The whole file, or as much as can be read: for files of /proc, /sys and cgroups that not every kernel or
/// process has. A program's first exception would cost as much as reading many of them.
std::string read_or_empty(const std::filesystem::path& path);

/// Reads up to `size` bytes at an offset of a regular file; returns how many, fewer only at its end.
/// path: for the message. throws IoError
std::size_t read_at(const UniqueFd& fd, std::size_t offset, void* to, std::size_t size,
                    const std::filesystem::path& path);

/// Opens a regular file for reading; refuses a folder, a FIFO or a device. throws IoError naming path
UniqueFd open_regular_file(const std::filesystem::path& path);

/// Writes all bytes. Returns false with errno set on failure: EAGAIN if a non-blocking descriptor takes
/// nothing for patience_ms (-1: wait forever).
bool write_all(int fd, std::string_view bytes, int patience_ms = -1) noexcept;

/// A reader that has gone (| head) is no error. throws IoError
void write_stdout(std::string_view text);

/// mode: O_RDONLY or O_WRONLY. throws IoError
UniqueFd open_dev_null(int mode);

/// Returns an inherited descriptor if it is the writing end of a pipe that does not block, as ddprun's are
/// and those of a program's own children are not: from now on child programs do not inherit it. Otherwise
/// returns -1 and leaves the descriptor alone.
int pipe_to_write_to(std::optional<int> fd);

/// Replaces path with the given bytes. Even after a crash the file is either the old one or the new one:
/// writes a temporary file beside it, fsyncs, renames, fsyncs the folder.
/// throws IoError naming path, and removes the temporary file; also if a device or a pipe is there
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// Whether something is there that a file must not replace, such as /dev/null or the pipe of a shell's
/// >(command). Follows links.
bool is_device_or_pipe(const std::filesystem::path& path);

/// The same for a writer that needs a path: calls write(temporary path).
void replace_file_atomic(const std::filesystem::path& path,
                         const std::function<void(const std::filesystem::path& temporary)>& write);

/// Removes what killed processes of this host have left of such a write: temporary files whose process is
/// gone. An error leaves them.
void remove_dead_temporaries(const std::filesystem::path& path);

/// Waits until the names in a folder are on disk, unless it cannot be read. throws IoError
void sync_folder(const std::filesystem::path& path);

/// Creates a folder and those above it, and waits until the names of new ones are on disk: else a power
/// failure could take them away with everything inside. throws IoError
void create_folders(const std::filesystem::path& path);

/// Locked for this process as long as a copy lives.
using FolderLock = std::shared_ptr<const UniqueFd>;

/// Null if another process has locked the folder. On a file system without locks there is no protection.
/// throws IoError
FolderLock lock_folder(const std::filesystem::path& path);

/// Where temporary files go: $TMPDIR, else /tmp; absolute.
std::filesystem::path temp_folder();

/// A new folder (mode 0700); the destructor removes it with its contents. throws IoError
class TempDir {
 public:
  /// In temp_folder(), under a unique name.
  explicit TempDir(const std::string& prefix = "ddprun");
  /// At this path, which must not exist.
  static TempDir at(const std::filesystem::path& path) { return TempDir(Exactly{path}); }
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Exactly {
    std::filesystem::path path;
  };
  explicit TempDir(const Exactly& wanted);

  std::filesystem::path path_;
};

/// Where LibTorch and data sets are cached: $XDG_CACHE_HOME/ddprun, else $HOME/.cache/ddprun.
std::filesystem::path cache_folder();

}  // namespace ddprun
