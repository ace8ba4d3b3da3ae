#pragma once

namespace ddprun {

/// How ddprun was called, without the program: "ddprun --nproc-per-node=2", quoted for a shell and without
/// secrets. With the worker's own command line behind it, it is the command that was typed.
inline constexpr char kCommandVariable[] = "DDPRUN_COMMAND";

}  // namespace ddprun
