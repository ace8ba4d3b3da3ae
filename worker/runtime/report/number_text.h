#pragma once

#include <string>

namespace ddprun::report {

/// A figure as the files have it: integers without a fraction, others with nine significant digits; "nan",
/// "inf", "-inf".
std::string number_text(double value);

}  // namespace ddprun::report
