// LD_PRELOAD: once there is a file $DEAD_DISK.gone, calls for a path below $DEAD_DISK never return, as on a
// network disk whose server is gone.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

void wait_for_server(const char* path) {
  const char* disk = std::getenv("DEAD_DISK");
  if (disk == nullptr || !std::string_view(path).starts_with(std::string(disk) + "/")) return;
  const std::string gone = std::string(disk) + ".gone";
  while (::access(gone.c_str(), F_OK) == 0) ::sleep(1);
}

}  // namespace

extern "C" int stat(const char* path, struct stat* info) {
  wait_for_server(path);
  return static_cast<int>(::syscall(SYS_newfstatat, AT_FDCWD, path, info, 0));
}

extern "C" int open(const char* path, int flags, ...) {
  wait_for_server(path);
  va_list more;
  va_start(more, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(more, mode_t) : 0;
  va_end(more);
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

extern "C" int mkfifo(const char* path, mode_t mode) {
  wait_for_server(path);
  return static_cast<int>(::syscall(SYS_mknodat, AT_FDCWD, path, S_IFIFO | mode, 0));
}

extern "C" int execve(const char* path, char* const* arguments, char* const* environment) {
  wait_for_server(path);
  return static_cast<int>(::syscall(SYS_execve, path, arguments, environment));
}
