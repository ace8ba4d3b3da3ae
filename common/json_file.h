#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace ddprun {

/// The JSON of a text that may come from anywhere. What reads, prints and frees a value calls itself for each
/// level, so that their number must have a limit.
///
/// throws  std::invalid_argument that continues a sentence: "is not JSON", "is nested deeper than 32 levels"
nlohmann::json parse_shallow_json(std::string_view text, int most_levels);

/// The JSON of a small file that may come from anywhere: 16 MiB and 32 levels at most, so that neither
/// reading nor dumping it can exhaust memory or stack.
///
/// expected  what the file should be, for the message: "the config.json of a SamModel"
/// throws  IoError naming path: cannot be read, too large, no JSON, or nested too deep
nlohmann::json read_json(const std::filesystem::path& path, const char* expected);

/// The same of a text of at most kMostJsonBytes. path: the file to name
nlohmann::json parse_json(const std::string& text, const std::filesystem::path& path, const char* expected);

inline constexpr std::size_t kMostJsonBytes = 16 << 20;

}  // namespace ddprun
