#include "launcher/output/log_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/invariant.h>
#include <ddprun/common/moved_files.h>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr int kFolderFlags = O_PATH | O_DIRECTORY | O_CLOEXEC;
constexpr const char* kUntrusted =
    "expected a folder that belongs to this user and in which others cannot replace files";

UniqueFd open_folder(int parent, const char* name, int flags, const fs::path& path) {
  UniqueFd fd(::openat(parent, name, kFolderFlags | flags));
  if (!fd && errno == ENOENT) {
    if (::mkdirat(parent, name, 0700) != 0 && errno != EEXIST)
      throw IoError(path, "cannot create the log folder", errno);
    fd.reset(::openat(parent, name, kFolderFlags | flags));
  }
  if (!fd) throw IoError(path, "cannot open the log folder", errno);
  return fd;
}

UniqueFd create_file(int folder, const std::string& name) {
  return UniqueFd(::openat(folder, name.c_str(),
                           O_WRONLY | O_APPEND | O_CREAT | O_EXCL | O_NOFOLLOW | O_NOCTTY | O_CLOEXEC, 0600));
}

struct stat status_of(int fd, const fs::path& path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw IoError(path, "cannot stat", errno);
  return info;
}

/// The status of a new file in the folder, which is removed again.
struct stat status_of_new_file(int folder, const fs::path& path) {
  const std::string name = ".ddprun-" + std::to_string(::getpid());
  const UniqueFd file = create_file(folder, name);
  if (!file) throw IoError(path, "cannot create a file here", errno);
  ::unlinkat(folder, name.c_str(), 0);
  return status_of(file.get(), path);
}

/// Whether the folder is safe. throws IoError if it is not, though owners and modes mean something here
bool check_trust(int folder, const fs::path& path) {
  const struct stat info = status_of(folder, path);
  if (folder_trust(info, nullptr, ::geteuid()) == FolderTrust::kSafe) return true;
  const struct stat file = status_of_new_file(folder, path);
  if (folder_trust(info, &file, ::geteuid()) == FolderTrust::kUnsafe) throw IoError(path, kUntrusted);
  return false;
}

/// Whether it is this user's link to a folder of a job, which may be gone.
bool leads_to_job(const fs::path& link) {
  struct stat info {};
  if (::lstat(link.c_str(), &info) != 0 || !S_ISLNK(info.st_mode) || info.st_uid != ::geteuid()) return false;
  constexpr std::size_t kEnd = 9;  // '_' and the digits of the job's id
  const std::string name = fs::read_symlink(link);
  if (name.size() < kEnd || name.find('/') != std::string::npos || name[name.size() - kEnd] != '_' ||
      name.find_last_not_of("0123456789abcdef") + kEnd != name.size())
    return false;
  if (!fs::exists(link)) return true;
  return std::ranges::any_of(folder_entries(link), [](const auto& entry) {
    return entry.filename().string().starts_with("attempt_");
  });
}

bool leads_out(const fs::path& relative) {
  return relative.empty() || relative.is_absolute() || *relative.begin() == "..";
}

}  // namespace

FolderTrust folder_trust(const struct stat& folder, const struct stat* new_file, uid_t us) {
  const bool sticky = (folder.st_mode & S_ISVTX) != 0, for_all = (folder.st_mode & S_IWOTH) != 0;
  const bool ours = folder.st_uid == us || (folder.st_uid == 0 && sticky), closed = !for_all || sticky;
  if (ours && closed) return FolderTrust::kSafe;
  // Our file, made with mode 0600, shows what owners and modes are worth here.
  const bool owner_is_ours = new_file != nullptr && new_file->st_uid == folder.st_uid;
  const bool keeps_no_modes = new_file != nullptr && (new_file->st_mode & S_IWOTH) != 0;
  return (ours || owner_is_ours) && (closed || keeps_no_modes) ? FolderTrust::kUnknown : FolderTrust::kUnsafe;
}

LogFolder::LogFolder(const fs::path& path) : path_(fs::absolute(path).lexically_normal()) {
  // The user's path may contain links.
  UniqueFd at(::open("/", kFolderFlags));
  fs::path walked = "/";
  for (const fs::path& name : path_.relative_path()) {
    if (name.empty()) continue;  // a trailing slash
    walked /= name;
    at = open_folder(at.get(), name.c_str(), 0, walked);
  }
  is_safe_ = check_trust(at.get(), path_);
  fd_ = std::move(at);
}

UniqueFd LogFolder::open_below(const fs::path& relative) const {
  UniqueFd at(::fcntl(fd_.get(), F_DUPFD_CLOEXEC, 3));
  if (!at) throw IoError(path_, "cannot open", errno);
  fs::path walked = path_;
  for (const fs::path& name : relative) {
    walked /= name;
    at = open_folder(at.get(), name.c_str(), O_NOFOLLOW, walked);
    if (is_safe_ && !check_trust(at.get(), walked)) throw IoError(walked, kUntrusted);
  }
  return at;
}

void link_latest(const fs::path& folder) try {
  const fs::path name = folder.filename(), link = folder.parent_path() / "latest";
  if (fs::symlink_status(link).type() != fs::file_type::not_found && !leads_to_job(link)) return;
  const fs::path next = folder.parent_path() / ("." + name.string());
  fs::create_symlink(name, next);
  if (::rename(next.c_str(), link.c_str()) != 0) ::unlink(next.c_str());
} catch (const fs::filesystem_error&) {  // it is only a help
}

LogFile::LogFile(const LogFolder& folder, const fs::path& file, std::size_t max_size,
                 std::function<void(const std::string&)> warn)
    : path_((folder.path() / file).lexically_normal()), max_size_(max_size), warn_(std::move(warn)) {
  const fs::path relative = path_.lexically_relative(folder.path());
  if (leads_out(relative) || !relative.has_filename())
    throw IoError(path_, "expected a file inside " + folder.path().string());
  UniqueFd parent = folder.open_below(relative.parent_path());
  fd_ = create_file(parent.get(), relative.filename());
  if (!fd_) throw IoError(path_, "cannot create", errno);
  if (max_size_ != 0) folder_ = std::move(parent);
}

void LogFile::write(std::string_view bytes) {
  while (max_size_ != 0 && size_ + bytes.size() > max_size_) {
    const std::size_t room = max_size_ > size_ ? max_size_ - size_ : 0;
    std::size_t part = bytes.substr(0, room).rfind('\n') + 1;  // 0: no line ends there
    if (part == 0 && !(at_line_start_ && size_ > 0)) part = room;
    check_invariant(part <= bytes.size(), "a part of the output ends where it does, or before");
    append(bytes.substr(0, part));
    bytes.remove_prefix(part);
    rotate();
  }
  append(bytes);
}

void LogFile::append(std::string_view bytes) {
  if (bytes.empty()) return;
  at_line_start_ = bytes.back() == '\n';
  size_ += bytes.size();
  if (!write_all(fd_.get(), bytes)) warn_once("cannot write; output is missing here; the job goes on", errno);
}

/// If it fails, the file keeps growing, and rotation is tried again after max_size more bytes.
void LogFile::rotate() {
  size_ = 0;
  at_line_start_ = true;
  const std::string name = path_.filename();
  const std::string older = name + ".1";
  if (::renameat(folder_.get(), name.c_str(), folder_.get(), older.c_str()) != 0)
    return warn_once("cannot rename to .1", errno);
  UniqueFd next = create_file(folder_.get(), name);
  if (!next) return warn_once("cannot begin a new file", errno);
  fd_ = std::move(next);
}

void LogFile::warn_once(const char* problem, int error) {
  if (!std::exchange(warned_, true)) warn_(IoError(path_, problem, error).what());
}

}  // namespace ddprun::launcher
