// LD_PRELOAD: the disk takes five seconds for the first checkpoint that a process writes.
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <string_view>

extern "C" int fsync(int fd) {
  static std::atomic<bool> first = true;
  std::array<char, 4096> path{};
  const auto link = "/proc/self/fd/" + std::to_string(fd);
  const auto size = ::readlink(link.c_str(), path.data(), path.size());
  const std::string_view name(path.data(), size < 0 ? 0 : static_cast<std::size_t>(size));
  if (name.find("/checkpoints/") != std::string_view::npos && first.exchange(false)) ::sleep(5);
  return static_cast<int>(::syscall(SYS_fsync, fd));
}
