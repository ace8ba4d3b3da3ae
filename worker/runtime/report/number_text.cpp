#include <ddprun/report/number_text.h>

#include <cmath>
#include <cstdio>

namespace ddprun::report {

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";  // whatever its sign bit says
  char text[32];
  const bool integer = std::isfinite(value) && value == std::trunc(value) && std::abs(value) < 1e15;
  std::snprintf(text, sizeof text, integer ? "%.0f" : "%.9g", integer ? value + 0.0 : value);  // no "-0"
  return text;
}

}  // namespace ddprun::report
