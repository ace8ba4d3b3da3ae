// LD_PRELOAD: every file and folder shows another owner and mode 0777, as on an SMB share.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" int fstat(int fd, struct stat* info) noexcept {
  const auto result = static_cast<int>(::syscall(SYS_newfstatat, fd, "", info, AT_EMPTY_PATH));
  info->st_uid = 65534;
  info->st_mode |= 0777;
  return result;
}
