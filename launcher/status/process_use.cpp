#include "launcher/status/process_use.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

namespace ddprun::launcher {

std::optional<ProcessUse> process_use(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(')');  // the name may contain spaces and ')'
  if (name_end == std::string::npos) return std::nullopt;
  unsigned long long user = 0, system = 0;
  long long pages = 0;
  char state = 'Z';
  // Fields 3, 14, 15 and 24 of proc(5).
  const int fields =
      std::sscanf(text.c_str() + name_end + 1,
                  " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d %*d %*u "
                  "%*u %lld",
                  &state, &user, &system, &pages);
  if (fields != 4 || state == 'Z' || state == 'X') return std::nullopt;
  return ProcessUse{static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK)),
                    pages * ::sysconf(_SC_PAGESIZE), state == 'T' || state == 't'};
}

}  // namespace ddprun::launcher
