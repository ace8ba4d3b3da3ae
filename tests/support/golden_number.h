#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace ddprun::test {

/// A number from the golden files, which store nan, inf and -inf as text.
inline double number(const nlohmann::json& value) {
  if (!value.is_string()) return value.get<double>();
  if (value == "nan") return std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  return value == "inf" ? infinity : -infinity;
}

}  // namespace ddprun::test
