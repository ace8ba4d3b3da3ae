#include "common/json_file.h"

#include <nlohmann/json.hpp>

#include <string>

#include "common/errors.h"
#include "common/files.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr int kMostLevels = 32;

}  // namespace

json read_json(const std::filesystem::path& path, const char* expected) {
  return parse_json(read_file(path, kMostJsonBytes), path, expected);
}

json parse_json(const std::string& text, const std::filesystem::path& path, const char* expected) {
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth >= kMostLevels)
      throw IoError(path,
                    "is nested deeper than " + std::to_string(kMostLevels) + " levels, expected " + expected);
    return true;
  };
  auto root = json::parse(text, check_depth, /*allow_exceptions=*/false);
  if (root.is_discarded()) throw IoError(path, std::string("is no JSON, expected ") + expected);
  return root;
}

}  // namespace ddprun
