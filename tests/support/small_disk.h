#pragma once

// A disk that is really full.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <string>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::test {

/// Fills the file's disk to the last byte.
inline void fill_disk(const std::filesystem::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const std::string page(4096, 'x');
  while (::write(fd.get(), page.data(), page.size()) > 0) continue;
}

/// Runs check() in its own process, on a disk of this size. Skips where mounting is not allowed.
inline void on_a_small_disk(const std::filesystem::path& folder, const char* size,
                            const std::function<void(const std::filesystem::path& disk)>& check) {
  if (::getuid() != 0) skip("needs root to make a small disk");
  const auto disk = folder.string();
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, size) != 0)
      ::_exit(122);
    try {
      check(disk);
      ::_exit(0);
    } catch (const std::exception& error) {
      ::_exit(::write(STDERR_FILENO, error.what(), std::string(error.what()).size()) > 0 ? 1 : 2);
    }
  }
  int status = -1;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  if (status == W_EXITCODE(122, 0)) skip("this machine lets nobody mount a disk");
  CHECK(status == 0);
}

}  // namespace ddprun::test
