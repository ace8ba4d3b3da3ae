#pragma once

#include <string>

#include <ddprun/common/exit_status.h>

namespace ddprun::launcher {

/// What usually lies behind such an end of a process that ddprun did not ask for: one sentence without a full
/// stop; empty if the status says it all, or nothing.
std::string end_hint(const ExitStatus& status);

}  // namespace ddprun::launcher
