#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include <ddprun/common/unique_fd.h>

namespace ddprun {

/// The whole file as bytes. throws IoError if it cannot be read or is larger than max_bytes.
std::string read_file(const std::filesystem::path& path, std::size_t max_bytes = std::size_t{1} << 40);

/// The same of a file that is open, from where it stands. path: for the message
std::string read_file(const UniqueFd& fd, const std::filesystem::path& path, std::size_t max_bytes);

/// Opens a regular file for reading. A folder, or what could make its reader wait (a FIFO, a device), is
/// refused at once. throws IoError naming path
UniqueFd open_regular_file(const std::filesystem::path& path);

/// Writes all bytes. False with errno set if that fails: EAGAIN if a descriptor that does not block takes
/// nothing for patience_ms milliseconds (-1: wait forever).
bool write_all(int fd, std::string_view bytes, int patience_ms = -1) noexcept;

/// mode: O_RDONLY or O_WRONLY. throws IoError
UniqueFd open_dev_null(int mode);

/// Replaces path with the given bytes so that a reader, or a crash at any moment, sees the old file or the
/// new one and never a mixture: temporary file beside it, fsync, rename, fsync of the folder.
/// throws IoError naming path; the temporary file is gone then.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// As above for a writer that wants a path: calls write(temporary path), then fsyncs and renames.
template <typename Write>
void replace_file_atomic(const std::filesystem::path& path, Write write);

/// Where temporary files go: $TMPDIR, else /tmp; absolute.
std::filesystem::path temp_folder();

/// A fresh folder (mode 0700), removed with all it holds when this goes. throws IoError
class TempDir {
 public:
  /// In temp_folder(), under a name of its own.
  explicit TempDir(const std::string& prefix = "ddprun");
  /// Under exactly this path, where nothing may be yet.
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

// -- details of replace_file_atomic --
std::filesystem::path temporary_beside(const std::filesystem::path& path);
void commit_file(const std::filesystem::path& temporary, const std::filesystem::path& path);
void discard_file(const std::filesystem::path& temporary) noexcept;

template <typename Write>
void replace_file_atomic(const std::filesystem::path& path, Write write) {
  const auto temporary = temporary_beside(path);
  try {
    write(temporary);
    commit_file(temporary, path);
  } catch (...) {
    discard_file(temporary);
    throw;
  }
}

}  // namespace ddprun
