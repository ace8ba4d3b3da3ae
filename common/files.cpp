#include <ddprun/common/files.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>

namespace ddprun {
namespace {

constexpr int kPatienceMs = 5000;

void sync_path(const std::filesystem::path& path, int flags) {
  const UniqueFd fd(::open(path.c_str(), flags | O_CLOEXEC));
  if (!fd) throw IoError(path, "cannot open", errno);
  // Some file systems have no fsync for folders (EINVAL): then there is nothing to wait for.
  if (::fsync(fd.get()) != 0 && errno != EINVAL) throw IoError(path, "cannot write to disk", errno);
}

}  // namespace

std::string read_file(const std::filesystem::path& path, std::size_t max_bytes) {
  // Does not wait for a FIFO's writer.
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) throw IoError(path, "cannot open", errno);
  return read_file(fd, path, max_bytes);
}

std::string read_file(const UniqueFd& fd, const std::filesystem::path& path, std::size_t max_bytes) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) throw IoError(path, "is a folder, expected a file");
  std::string bytes;
  if (info.st_size > 0) bytes.reserve(std::min(static_cast<std::size_t>(info.st_size), max_bytes));
  char buffer[1 << 16];
  for (;;) {
    // A regular file is always ready; a FIFO is once it has data or its last writer has left.
    pollfd readable{fd.get(), POLLIN, 0};
    if (::poll(&readable, 1, kPatienceMs) == 0)
      throw IoError(path, "expected a file, got nothing to read in 5 s");
    const ssize_t n = TEMP_FAILURE_RETRY(::read(fd.get(), buffer, sizeof buffer));
    if (n < 0) throw IoError(path, "cannot read", errno);
    if (n == 0) return bytes;
    bytes.append(buffer, static_cast<std::size_t>(n));
    if (bytes.size() > max_bytes)
      throw IoError(path, "is larger than " + std::to_string(max_bytes) + " bytes, the most that is allowed");
  }
}

std::string read_or_empty(const std::filesystem::path& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text;
  char buffer[1 << 14];
  for (ssize_t n = 0; fd && (n = ::read(fd.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(n));
  return text;
}

std::size_t read_at(const UniqueFd& fd, std::size_t offset, void* to, std::size_t size,
                    const std::filesystem::path& path) {
  std::size_t done = 0;
  while (done < size) {
    const ssize_t n = TEMP_FAILURE_RETRY(
        ::pread(fd.get(), static_cast<char*>(to) + done, size - done, static_cast<off_t>(offset + done)));
    if (n < 0) throw IoError(path, "cannot read", errno);
    if (n == 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

int pipe_to_write_to(std::optional<int> fd) {
  struct stat info {};
  if (!fd || ::fstat(*fd, &info) != 0 || !S_ISFIFO(info.st_mode)) return -1;
  const int flags = ::fcntl(*fd, F_GETFL);
  if (flags < 0 || (flags & O_ACCMODE) != O_WRONLY || (flags & O_NONBLOCK) == 0) return -1;
  ::fcntl(*fd, F_SETFD, FD_CLOEXEC);
  return *fd;
}

bool write_all(int fd, std::string_view bytes, int patience_ms) noexcept {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd writable{fd, POLLOUT, 0};
      if (::poll(&writable, 1, patience_ms) == 0) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void write_stdout(std::string_view text) {
  if (!write_all(STDOUT_FILENO, text) && errno != EPIPE) throw IoError("stdout", "cannot write", errno);
}

UniqueFd open_dev_null(int mode) {
  UniqueFd fd(::open("/dev/null", mode | O_CLOEXEC));
  if (!fd) throw IoError("/dev/null", "cannot open", errno);
  return fd;
}

UniqueFd open_regular_file(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!fd) throw IoError(path, "cannot open", errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw IoError(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) throw IoError(path, "is a folder, expected a file");
  if (!S_ISREG(info.st_mode)) throw IoError(path, "is a FIFO or a device, expected a regular file");
  return fd;
}

bool is_device_or_pipe(const std::filesystem::path& path) {
  constexpr int kLinks = 40;  // as many as the kernel follows
  std::error_code error;
  auto at = path;
  for (int i = 0; i < kLinks && !error; ++i) {
    const auto folder = std::filesystem::canonical(at.has_parent_path() ? at.parent_path() : ".", error);
    if (folder.native().starts_with("/proc/")) return true;  // an open one: /dev/stdout
    if (!error) at = folder / std::filesystem::read_symlink(folder / at.filename(), error);
  }
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

void replace_file_atomic(const std::filesystem::path& path,
                         const std::function<void(const std::filesystem::path& temporary)>& write) {
  if (is_device_or_pipe(path))
    throw IoError(path, "is a device or a pipe, which a file cannot replace; expected the name of a file");
  const auto temporary =
      path.parent_path() / ("." + path.filename().string() + ".tmp." + std::to_string(::getpid()));
  try {
    write(temporary);
    sync_path(temporary, O_RDONLY);
    if (::rename(temporary.c_str(), path.c_str()) != 0) throw IoError(path, "cannot replace", errno);
    sync_path(path.has_parent_path() ? path.parent_path() : ".", O_RDONLY | O_DIRECTORY);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void remove_dead_temporaries(const std::filesystem::path& path) {
  const std::string prefix = "." + path.filename().string() + ".tmp.";
  std::error_code error;
  const auto folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(prefix)) continue;
    const auto pid = parse_integer(name.substr(prefix.size()), 1, INT_MAX);
    if (pid && ::kill(*pid, 0) != 0 && errno == ESRCH) ::unlink(entry->path().c_str());
  }
}

void write_file_atomic(const std::filesystem::path& path, std::string_view bytes) {
  replace_file_atomic(path, [&](const std::filesystem::path& temporary) {
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!fd) throw IoError(path, "cannot create", errno);
    if (!write_all(fd.get(), bytes)) throw IoError(path, "cannot write", errno);
  });
}

void sync_folder(const std::filesystem::path& path) try {
  sync_path(path.empty() ? "." : path, O_RDONLY | O_DIRECTORY);
} catch (const IoError& error) {
  if (error.error_number != EACCES) throw;
}

void create_folders(const std::filesystem::path& path) {
  std::error_code error;
  std::vector<std::filesystem::path> changed;
  for (auto at = path; !at.empty() && !std::filesystem::is_directory(at, error); at = at.parent_path())
    changed.push_back(at.parent_path());
  if (changed.empty()) return;
  std::filesystem::create_directories(path, error);
  if (error) throw IoError(path, "cannot create the folder", error.value());
  for (const auto& folder : changed) sync_folder(folder);
}

FolderLock lock_folder(const std::filesystem::path& path) {
  static std::mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::weak_ptr<const UniqueFd>> locked;
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat of_folder {};
  if (!fd || ::fstat(fd.get(), &of_folder) != 0) throw IoError(path, "cannot open the folder", errno);
  const std::lock_guard guard(mutex);
  auto& own = locked[{of_folder.st_dev, of_folder.st_ino}];
  auto lock = own.lock();
  if (lock != nullptr) return lock;
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return nullptr;
    log_warning(IoError(path, "cannot be locked, so nothing keeps another run out of it", errno).what());
  }
  own = lock = std::make_shared<const UniqueFd>(std::move(fd));
  return lock;
}

std::filesystem::path temp_folder() {
  const char* folder = std::getenv("TMPDIR");
  return std::filesystem::absolute(folder == nullptr || *folder == '\0' ? "/tmp" : folder);
}

TempDir::TempDir(const std::string& prefix) {
  const auto folder = temp_folder();
  std::string pattern = folder / (prefix + "-XXXXXX");
  if (::mkdtemp(pattern.data()) == nullptr)
    throw IoError(folder, "cannot create a temporary folder here ($TMPDIR)", errno);
  path_ = pattern;
}

TempDir::TempDir(const Exactly& wanted) {
  if (::mkdir(wanted.path.c_str(), 0700) != 0)
    throw IoError(wanted.path.parent_path(), "cannot create a temporary folder here ($TMPDIR)", errno);
  path_ = wanted.path;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path cache_folder() {
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg != nullptr && *xdg != '\0')
    return std::filesystem::path(xdg) / "ddprun";
  const char* home = std::getenv("HOME");
  return std::filesystem::path(home != nullptr ? home : "/") / ".cache" / "ddprun";
}

}  // namespace ddprun
