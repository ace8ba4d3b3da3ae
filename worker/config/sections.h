// The settings of each section, bound to the configuration that they set.
#pragma once

#include <vector>

#include "worker/config.h"
#include "worker/config/setting.h"

namespace ddprun {

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

/// throws  UsageError for settings that exclude each other
void check_combinations(const Config& config);

}  // namespace ddprun
