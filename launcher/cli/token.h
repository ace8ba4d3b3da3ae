#pragma once

#include <string>

#include <ddprun/common/worker_env.h>

namespace ddprun::settings {
class Values;
}

namespace ddprun::launcher {

/// The variable that holds the token: never a flag, since command lines can be read by everybody.
inline constexpr const char* kTokenVariable = "DDPRUN_TOKEN";

/// What the nodes of a job have in common and strangers do not know: of --token-file, else of DDPRUN_TOKEN;
/// empty: none. throws UsageError, also for a file that others may read; IoError
std::string read_token(const settings::Values& values, const EnvLookup& environment);

}  // namespace ddprun::launcher
