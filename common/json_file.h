#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>

namespace ddprun {

/// The JSON of a small file that may come from anywhere: 16 MiB and 32 levels at most, so that neither
/// reading nor dumping it can exhaust memory or stack.
///
/// expected  what the file should be, for the message: "the config.json of a SamModel"
/// throws  IoError naming path: cannot be read, too large, no JSON, or nested too deep
nlohmann::json read_json(const std::filesystem::path& path, const char* expected);

}  // namespace ddprun
