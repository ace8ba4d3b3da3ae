#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>

namespace ddprun::launcher {

/// What a process has used, according to /proc.
struct ProcessUse {
  double cpu_seconds = 0;
  std::int64_t resident_bytes = 0;
  bool stopped = false;  ///< by SIGSTOP or a debugger
};

/// nullopt: it is gone.
std::optional<ProcessUse> process_use(pid_t pid);

}  // namespace ddprun::launcher
