#include "launcher/host/process_stat.h"

#include <cstdio>

#include <ddprun/common/files.h>

namespace ddprun::launcher {

std::optional<ProcessStat> parse_stat(const std::string& line) {
  const auto name_begin = line.find('('), name_end = line.rfind(')');  // the name may contain anything
  if (name_begin == std::string::npos || name_end == std::string::npos || name_end < name_begin) return {};
  ProcessStat stat;
  stat.name = line.substr(name_begin + 1, name_end - name_begin - 1);
  // Fields 3 to 5, 9, 14, 15, 22 and 24 of proc(5).
  const int fields = std::sscanf(line.c_str() + name_end + 1,
                                 " %c %d %d %*d %*d %*d %u %*u %*u %*u %*u %llu %llu %*d %*d %*d %*d %*d "
                                 "%*d %llu %*u %lld",
                                 &stat.state, &stat.parent, &stat.group, &stat.flags, &stat.user,
                                 &stat.system, &stat.start, &stat.pages);
  return fields == 8 ? std::optional(stat) : std::nullopt;
}

std::optional<ProcessStat> stat_of(pid_t pid) {
  return parse_stat(read_or_empty("/proc/" + std::to_string(pid) + "/stat"));
}

}  // namespace ddprun::launcher
