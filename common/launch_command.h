#pragma once

#include <functional>
#include <string>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun {

/// How ddprun was called, without the program: "ddprun --nproc-per-node=2", quoted for a shell and without
/// secrets. With the worker's own command line behind it, it is the command that was typed.
inline constexpr char kCommandVariable[] = "DDPRUN_COMMAND";

/// Tells this process's command line from others; the same in each process of one build.
inline std::string hash_of_command() {
  return formatted("%016zx", std::hash<std::string>()(read_or_empty("/proc/self/cmdline")));
}

}  // namespace ddprun
