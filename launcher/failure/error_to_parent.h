#pragma once

#include <optional>
#include <string>

#include <ddprun/common/error_file.h>
#include "launcher/failure/failure_report.h"

namespace ddprun::launcher {

/// What a launcher that started ddprun is told: the root cause's own error, or a line on how it ended if it
/// wrote none, with its exit code, or minus the signal, as errorCode. So does torchrun.
WorkerError error_for_parent(const FailureReport& report);

/// Writes it to ddprun's own TORCHELASTIC_ERROR_FILE, given here as it stands in ddprun's environment; does
/// nothing if that is not set or empty. A file that cannot be written is a warning.
void pass_error_to_parent(const FailureReport& report, const std::optional<std::string>& error_file);

}  // namespace ddprun::launcher
