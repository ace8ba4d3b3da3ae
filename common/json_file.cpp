#include "common/json_file.h"

#include <nlohmann/json.hpp>

#include <string>

#include "common/errors.h"
#include "common/files.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr std::size_t kMostBytes = 16 << 20;
constexpr int kMostLevels = 32;

}  // namespace

json read_json(const std::filesystem::path& path, const char* expected) {
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    if (depth >= kMostLevels)
      throw IoError(path,
                    "is nested deeper than " + std::to_string(kMostLevels) + " levels, expected " + expected);
    return true;
  };
  auto root = json::parse(read_file(path, kMostBytes), check_depth, /*allow_exceptions=*/false);
  if (root.is_discarded()) throw IoError(path, std::string("is no JSON, expected ") + expected);
  return root;
}

}  // namespace ddprun
