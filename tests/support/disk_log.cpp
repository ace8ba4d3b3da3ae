// LD_PRELOAD, or linked with a test: appends each change in the folder $DDPRUN_TEST_DISK_FOLDER to the file
// $DDPRUN_TEST_DISK_LOG, in the order in which they happen, over all threads and processes.
#include "tests/support/disk_log.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

namespace {

using ddprun::test::DiskChange;

bool is_inside(std::string_view path) {
  const char* folder = std::getenv("DDPRUN_TEST_DISK_FOLDER");
  if (folder == nullptr || !path.starts_with(folder)) return false;
  path.remove_prefix(std::strlen(folder));
  return path.empty() || path.starts_with('/');
}

std::string path_of(int fd) {
  std::array<char, 4096> path{};
  const auto link = "/proc/self/fd/" + std::to_string(fd);
  const auto size = ::readlink(link.c_str(), path.data(), path.size());
  return {path.data(), size < 0 ? 0 : static_cast<std::size_t>(size)};
}

std::string absolute(int at, const char* name) {
  std::filesystem::path path(name);
  if (path.is_relative()) {
    std::array<char, 4096> here{};
    const std::string base = at == AT_FDCWD ? (::getcwd(here.data(), here.size()), here.data()) : path_of(at);
    path = base / path;
  }
  auto text = path.lexically_normal().string();
  while (text.size() > 1 && text.ends_with('/')) text.pop_back();
  return text;
}

/// While it lives, no other thread or process changes anything in the folder.
class Turn {
 public:
  Turn() : lock_(mutex()) {
    log_ = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, std::getenv("DDPRUN_TEST_DISK_LOG"),
                                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    struct flock whole {};
    whole.l_type = F_WRLCK;
    while (::fcntl(log_, F_SETLKW, &whole) != 0)
      if (errno != EINTR) std::abort();
  }
  ~Turn() {
    const int error = errno;
    ::close(log_);  // and unlocks it
    errno = error;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  void note(DiskChange change, std::string_view path, std::string_view other = {},
            std::string_view data = {}) {
    const int error = errno;
    change.path_size = static_cast<std::uint32_t>(path.size());
    change.other_size = static_cast<std::uint32_t>(other.size());
    change.data_size = data.size();
    std::string record(reinterpret_cast<const char*>(&change), sizeof change);
    record.append(path).append(other).append(data);
    for (std::string_view left = record; !left.empty();) {
      const auto written = ::syscall(SYS_write, log_, left.data(), left.size());
      if (written < 0) std::abort();
      left.remove_prefix(static_cast<std::size_t>(written));
    }
    errno = error;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex all;
    return all;
  }

  std::unique_lock<std::mutex> lock_;
  int log_ = -1;
};

std::uint64_t inode_of(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 ? info.st_ino : 0;
}

std::uint64_t inode_of(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

/// open() opens it, and may create or truncate it.
template <typename Open>
auto opened(const std::string& path, bool truncates, Open open) {
  Turn turn;
  const bool existed = inode_of(path) != 0;
  const auto result = open();
  const int error = errno;
  const auto inode = inode_of(path);
  if (!existed && inode != 0) turn.note({.kind = DiskChange::kCreate, .inode = inode}, path);
  if (existed && truncates) turn.note({.kind = DiskChange::kTruncate, .inode = inode}, path);
  errno = error;
  return result;
}

int open_at(int at, const char* name, int flags, mode_t mode) {
  const auto open = [&] { return static_cast<int>(::syscall(SYS_openat, at, name, flags, mode)); };
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return open();
  const auto path = absolute(at, name);
  return is_inside(path) ? opened(path, (flags & O_TRUNC) != 0, open) : open();
}

FILE* open_stream(const char* name, const char* mode, const char* function) {
  using Function = FILE* (*)(const char*, const char*);
  const auto real = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, function));
  const auto path = absolute(AT_FDCWD, name);
  if (mode[0] == 'r' || !is_inside(path)) return real(name, mode);
  return opened(path, mode[0] == 'w', [&] { return real(name, mode); });
}

/// write() writes at the file's position and returns how many bytes; data(count) are these bytes.
template <typename Write, typename Data>
ssize_t written(int fd, off_t offset, Write write, Data data) {
  const auto path = path_of(fd);
  if (!is_inside(path)) return write();
  Turn turn;
  const ssize_t count = write();
  const int error = errno;
  if (count > 0) {
    const auto at = offset >= 0 ? offset : ::lseek(fd, 0, SEEK_CUR) - count;
    turn.note({.kind = DiskChange::kWrite, .inode = inode_of(fd), .at = static_cast<std::uint64_t>(at)}, path,
              {}, data(static_cast<std::size_t>(count)));
  }
  errno = error;
  return count;
}

/// What was copied from another file.
ssize_t copied(int from, const off64_t* from_at, int to, const off64_t* to_at, auto copy) {
  const off64_t begin = from_at != nullptr ? *from_at : ::lseek(from, 0, SEEK_CUR);
  return written(to, to_at != nullptr ? *to_at : -1, copy, [&](std::size_t count) {
    std::string data(count, '\0');
    if (::pread(from, data.data(), count, begin) != static_cast<ssize_t>(count)) std::abort();
    return data;
  });
}

template <typename Change>
int changed(DiskChange::Kind kind, const std::string& path, const std::string& other, Change change) {
  if (!is_inside(path) && !is_inside(other)) return change();
  Turn turn;
  const int result = change();
  if (result != 0) return result;
  const bool makes = kind == DiskChange::kMakeFolder;
  turn.note({.kind = kind, .inode = makes ? inode_of(path) : 0}, path, other);
  return result;
}

int remove_at(int at, const char* name, int flags) {
  return changed(DiskChange::kRemove, absolute(at, name), "",
                 [&] { return static_cast<int>(::syscall(SYS_unlinkat, at, name, flags)); });
}

int rename_at(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  return changed(DiskChange::kRename, absolute(from_at, from), absolute(to_at, to),
                 [&] { return static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, flags)); });
}

int link_at(int from_at, const char* from, int to_at, const char* to, int flags) {
  return changed(DiskChange::kLink, absolute(from_at, from), absolute(to_at, to),
                 [&] { return static_cast<int>(::syscall(SYS_linkat, from_at, from, to_at, to, flags)); });
}

int make_folder_at(int at, const char* name, mode_t mode) {
  return changed(DiskChange::kMakeFolder, absolute(at, name), "",
                 [&] { return static_cast<int>(::syscall(SYS_mkdirat, at, name, mode)); });
}

int synced(int fd, long call) {
  const auto path = path_of(fd);
  if (!is_inside(path)) return static_cast<int>(::syscall(call, fd));
  Turn turn;
  const auto result = static_cast<int>(::syscall(call, fd));
  if (result == 0) turn.note({.kind = DiskChange::kSync, .inode = inode_of(fd)}, path);
  return result;
}

int truncated(int fd, off_t size) {
  const auto path = path_of(fd);
  if (!is_inside(path)) return static_cast<int>(::syscall(SYS_ftruncate, fd, size));
  Turn turn;
  const auto result = static_cast<int>(::syscall(SYS_ftruncate, fd, size));
  if (result == 0)
    turn.note({.kind = DiskChange::kTruncate, .inode = inode_of(fd), .at = static_cast<std::uint64_t>(size)},
              path);
  return result;
}

mode_t mode_of(int flags, va_list rest) {
  return (flags & O_CREAT) != 0 ? static_cast<mode_t>(va_arg(rest, int)) : 0;
}

}  // namespace

extern "C" {

// NOLINTBEGIN
#define OPEN(name)                               \
  int name(const char* path, int flags, ...) {   \
    va_list rest;                                \
    va_start(rest, flags);                       \
    const auto mode = mode_of(flags, rest);      \
    va_end(rest);                                \
    return open_at(AT_FDCWD, path, flags, mode); \
  }
#define OPEN_AT(name)                                  \
  int name(int at, const char* path, int flags, ...) { \
    va_list rest;                                      \
    va_start(rest, flags);                             \
    const auto mode = mode_of(flags, rest);            \
    va_end(rest);                                      \
    return open_at(at, path, flags, mode);             \
  }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)
// NOLINTEND

FILE* fopen(const char* path, const char* mode) { return open_stream(path, mode, "fopen"); }
FILE* fopen64(const char* path, const char* mode) { return open_stream(path, mode, "fopen64"); }

ssize_t write(int fd, const void* bytes, size_t size) {
  return written(
      fd, -1, [&] { return static_cast<ssize_t>(::syscall(SYS_write, fd, bytes, size)); },
      [&](std::size_t count) { return std::string_view(static_cast<const char*>(bytes), count); });
}

ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) {
  return written(
      fd, at, [&] { return static_cast<ssize_t>(::syscall(SYS_pwrite64, fd, bytes, size, at)); },
      [&](std::size_t count) { return std::string_view(static_cast<const char*>(bytes), count); });
}
ssize_t pwrite64(int fd, const void* bytes, size_t size, off64_t at) { return pwrite(fd, bytes, size, at); }

ssize_t writev(int fd, const iovec* parts, int number) {
  return written(
      fd, -1, [&] { return static_cast<ssize_t>(::syscall(SYS_writev, fd, parts, number)); },
      [&](std::size_t count) {
        std::string data;
        for (int i = 0; i < number; ++i)
          data.append(static_cast<const char*>(parts[i].iov_base), parts[i].iov_len);
        return data.substr(0, count);
      });
}

ssize_t sendfile64(int to, int from, off64_t* at, size_t size) {
  return copied(from, at, to, nullptr,
                [&] { return static_cast<ssize_t>(::syscall(SYS_sendfile, to, from, at, size)); });
}
ssize_t sendfile(int to, int from, off_t* at, size_t size) { return sendfile64(to, from, at, size); }

ssize_t copy_file_range(int from, off64_t* from_at, int to, off64_t* to_at, size_t size, unsigned flags) {
  return copied(from, from_at, to, to_at, [&] {
    return static_cast<ssize_t>(::syscall(SYS_copy_file_range, from, from_at, to, to_at, size, flags));
  });
}

int ftruncate(int fd, off_t size) noexcept { return truncated(fd, size); }
int ftruncate64(int fd, off64_t size) noexcept { return truncated(fd, size); }
int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int unlink(const char* path) noexcept { return remove_at(AT_FDCWD, path, 0); }
int unlinkat(int at, const char* path, int flags) noexcept { return remove_at(at, path, flags); }
int rmdir(const char* path) noexcept { return remove_at(AT_FDCWD, path, AT_REMOVEDIR); }
int remove(const char* path) noexcept {
  const int result = remove_at(AT_FDCWD, path, 0);
  return result != 0 && errno == EISDIR ? remove_at(AT_FDCWD, path, AT_REMOVEDIR) : result;
}

int rename(const char* from, const char* to) noexcept { return rename_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_at, const char* from, int to_at, const char* to) noexcept {
  return rename_at(from_at, from, to_at, to, 0);
}
int link(const char* from, const char* to) noexcept { return link_at(AT_FDCWD, from, AT_FDCWD, to, 0); }
int linkat(int from_at, const char* from, int to_at, const char* to, int flags) noexcept {
  return link_at(from_at, from, to_at, to, flags);
}
int mkdir(const char* path, mode_t mode) noexcept { return make_folder_at(AT_FDCWD, path, mode); }
int mkdirat(int at, const char* path, mode_t mode) noexcept { return make_folder_at(at, path, mode); }

}  // extern "C"
