#pragma once

#include <string>

#include <ddprun/common/worker_env.h>

namespace ddprun::settings {
class Values;
}

namespace ddprun::launcher {

/// The variable that holds the token. There is no such flag, since everybody can read command lines.
inline constexpr const char* kTokenVariable = "DDPRUN_TOKEN";

/// The secret that the nodes of a job share, from --token-file, else from DDPRUN_TOKEN; empty: none.
/// throws UsageError, also for a file that others can read; IoError
std::string read_token(const settings::Values& values, const EnvLookup& environment);

}  // namespace ddprun::launcher
