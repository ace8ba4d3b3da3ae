#include "launcher/workers/guard.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>
#include <memory>
#include <system_error>

#include <ddprun/common/text.h>
#include "launcher/workers/job_processes.h"
#include "launcher/workers/process.h"

namespace ddprun::launcher {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "ddprun-";

/// The start of the machine: other machines may share the folder for temporary files.
const std::string& boot() {
  static const std::string id = read_or_empty("/proc/sys/kernel/random/boot_id").substr(0, 8);
  return id;
}

/// Whether the folder is a job's whose ddprun has ended: nobody holds it, and it is too old for a ddprun that
/// has made it and is about to.
bool is_abandoned(const fs::path& path) {
  constexpr time_t kStarts = 10;
  const UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  return folder && ::fstat(folder.get(), &info) == 0 && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0 && info.st_mtime + kStarts < ::time(nullptr) &&
         ::flock(folder.get(), LOCK_EX | LOCK_NB) == 0;
}

/// Reads messages until ddprun is gone: a group to watch, or minus a group to forget.
std::vector<pid_t> read_until_launcher_is_gone(int pipe) {
  std::vector<pid_t> groups;
  for (;;) {
    pid_t message = 0;  // writes this small are atomic
    if (TEMP_FAILURE_RETRY(::read(pipe, &message, sizeof message)) != sizeof message) return groups;
    if (message > 0)
      groups.push_back(message);
    else
      std::erase(groups, -message);
  }
}

[[noreturn]] void run_guard(int pipe, const std::filesystem::path& folder, const std::string& job_id) {
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::setsid();
  ::prctl(PR_SET_NAME, "ddprun-guard");
  [[maybe_unused]] const int ignored = ::chdir("/");  // keep no mount point busy
  ::dup2(pipe, STDIN_FILENO);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
  close_all_above_stderr();
  kill_job(read_until_launcher_is_gone(STDIN_FILENO), job_id);
  std::error_code ignored_error;
  std::filesystem::remove_all(folder, ignored_error);
  ::_exit(0);
}

}  // namespace

/// A process may fork while we look, or be inside execve without an environment to read: repeats until two
/// passes find nothing.
void kill_job(const std::vector<pid_t>& groups, const std::string& job_id) {
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  int rounds_without = 0;
  for (int round = 0; round < 100 && rounds_without < 2; ++round) {
    const auto left = processes_of_job(job_id);
    for (const pid_t pid : left) ::kill(pid, SIGKILL);
    rounds_without = left.empty() ? rounds_without + 1 : 0;
    ::usleep(1000);
  }
}

std::string temp_name(const std::string& job_id) { return std::string(kPrefix) + job_id + "." + boot(); }

UniqueFd hold(const fs::path& folder) {
  UniqueFd held(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!held) throw std::system_error(errno, std::generic_category(), folder.string());
  ::flock(held.get(), LOCK_EX | LOCK_NB);  // where this fails it fails for remove_leftovers(), too
  return held;
}

void remove_leftovers(const fs::path& folder) {
  const std::string ending = "." + boot();
  const std::shared_ptr<DIR> all(::opendir(folder.c_str()), [](DIR* opened) {
    if (opened != nullptr) ::closedir(opened);
  });
  while (const dirent* entry = all && ending.size() > 1 ? ::readdir(all.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kPrefix) || !name.ends_with(ending) || !is_abandoned(folder / name)) continue;
    std::error_code ignored;
    fs::remove_all(folder / name, ignored);
  }
}

Guard::Guard(const std::filesystem::path& folder, const std::string& job_id) : job_id_(job_id) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  UniqueFd reading(ends[0]);
  pipe_.reset(ends[1]);
  // ddprun never waits for the guard: if someone freezes it, we lose messages, not the job.
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  for (const pid_t child : children([](pid_t) { return true; })) earlier_.insert(child);
  has_strangers_ = !earlier_.empty();
  pid_ = ::fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "cannot start the guard process");
  if (pid_ == 0) {
    pipe_.reset();
    run_guard(reading.get(), folder, job_id);
  }
}

Guard::~Guard() {
  // If it was killed and reaped, its pid may belong to another process.
  if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
  ::kill(pid_, SIGKILL);
  TEMP_FAILURE_RETRY(::waitpid(pid_, nullptr, 0));
}

bool Guard::is_of_job(pid_t child) const {
  // Each worker has its own session, and nobody can leave it for ours.
  if (child == pid_ || earlier_.count(child) != 0 || ::getsid(child) == ::getsid(0)) return false;
  return !has_strangers_ ||
         read_or_empty("/proc/" + std::to_string(child) + "/environ").find(job_id_) != std::string::npos;
}

// EPIPE means that the guard was killed: the parent-death signals remain.
void Guard::watch(pid_t group) {
  [[maybe_unused]] const ssize_t ignored = ::write(pipe_.get(), &group, sizeof group);
}

void Guard::forget(pid_t group) { watch(-group); }

}  // namespace ddprun::launcher
