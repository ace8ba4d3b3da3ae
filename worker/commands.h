#pragma once

#include <optional>

namespace ddprun {

/// Runs `worker COMMAND ...` if argv names a command, not a training task. Returns its exit code; nullopt for
/// anything else. throws UsageError
std::optional<int> run_command(int argc, char** argv);

}  // namespace ddprun
