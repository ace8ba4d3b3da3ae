#include <ddprun/common/text/in_quotes.h>

#include <nlohmann/json.hpp>

namespace ddprun::serialize {

std::string in_quotes(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  const auto shown = std::string(text.substr(0, kLongest)) + (text.size() > kLongest ? "..." : "");
  return nlohmann::json(shown).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace ddprun::serialize
