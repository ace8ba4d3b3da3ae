// The settings of all tasks, bound to the configuration that they set.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <ddprun/common/settings/values.h>
#include "worker/config/config.h"

namespace ddprun::worker {

/// The name of the task and all settings, by sections. The configuration must outlive them.
std::vector<settings::Setting> all_settings(Config& config);

settings::Setting device_setting(ddp::DeviceChoice& device);
settings::Setting backend_setting(ddp::BackendChoice& backend);
/// A duration that the user gives in seconds.
settings::Setting seconds(std::string name, std::chrono::milliseconds& target, std::string help);

/// Drops defaults of the task that contradict what was given.
void settle_defaults(Config& config, const settings::Values& given);

/// throws UsageError for settings that exclude each other on every device
void validate(const Config& config);

}  // namespace ddprun::worker
