// The settings of each section, bound to the configuration that they set.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "worker/config/config.h"
#include "worker/config/setting.h"

namespace ddprun::worker {

std::vector<Setting> data_settings(Config& config);
std::vector<Setting> model_settings(Config& config);
std::vector<Setting> optim_settings(Config& config);
std::vector<Setting> train_settings(Config& config);
std::vector<Setting> checkpoint_settings(Config& config);
std::vector<Setting> precision_settings(Config& config);
std::vector<Setting> ddp_settings(Config& config);
std::vector<Setting> report_settings(Config& config);

/// All of them, each with its section's name. The configuration must outlive them.
std::vector<Setting> all_settings(Config& config);

/// Defaults of the task give way to what was given and does not go with them.
///
/// given  the names of the settings that the command line or the file has set
void settle_defaults(Config& config, const std::set<std::string>& given);

/// throws  UsageError for settings that exclude each other on every device
void check_combinations(const Config& config);

}  // namespace ddprun::worker
