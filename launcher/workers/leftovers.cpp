#include "launcher/workers/leftovers.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ddprun-";

/// The name of a locked file in the folder of a running ddprun. It differs between machines, which may share
/// the folder, and from one start of a machine to the next. The file is empty: on a disk that discards freed
/// blocks removing a single one takes milliseconds.
const std::string& mark_name() {
  static const std::string boot(trimmed(read_or_empty("/proc/sys/kernel/random/boot_id")));
  static const std::string name = boot.empty() ? "" : "in_use-" + boot;  // "": no file has this name
  return name;
}

/// Whether the folder is a job's whose ddprun has ended.
bool is_abandoned(const fs::path& path) {
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!folder || ::fstat(folder.get(), &info) != 0 || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0)
    return false;
  const UniqueFd mark(
      ::openat(folder.get(), mark_name().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  return mark && ::flock(mark.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace

std::string temp_name(const std::string& job_id) { return std::string(kPrefix) + job_id; }

UniqueFd mark_in_use(const fs::path& folder) {
  const auto unlocked = folder / "new";
  UniqueFd mark(::open(unlocked.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool locked = mark && ::flock(mark.get(), LOCK_EX | LOCK_NB) == 0;
  // Only now, because a mark without a lock means that nobody uses the folder.
  if (locked) [[maybe_unused]]
    const int ignored = ::rename(unlocked.c_str(), (folder / mark_name()).c_str());
  return mark;
}

std::vector<std::string> remove_leftovers(const fs::path& own) {
  std::vector<std::string> jobs;
  std::error_code error;
  for (fs::directory_iterator entry(own.parent_path(), error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(kPrefix) || entry->path() == own || !is_abandoned(entry->path())) continue;
    std::error_code ignored;
    fs::remove_all(entry->path(), ignored);
    jobs.push_back(name.substr(kPrefix.size()));
  }
  return jobs;
}

}  // namespace ddprun::launcher
