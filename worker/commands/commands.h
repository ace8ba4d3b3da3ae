#pragma once

#include <optional>

namespace ddprun::worker {

/// Runs what the first argument names if it is a command of its own and not a task: `worker env`, ...
///
/// returns  its exit code; nullopt if the first argument names none of them
/// throws   as the command does
std::optional<int> run_command(int argc, char** argv);

}  // namespace ddprun::worker
