// LD_PRELOAD: one second after a program starts, the machine's clock jumps back by an hour.
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

extern "C" int clock_gettime(clockid_t clock, timespec* time) {
  static const auto begin = [] {
    timespec now{};
    ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec;
  }();
  timespec now{};
  ::syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  const auto result = static_cast<int>(::syscall(SYS_clock_gettime, clock, time));
  if (clock == CLOCK_REALTIME && now.tv_sec - begin > 1) time->tv_sec -= 3600;
  return result;
}
