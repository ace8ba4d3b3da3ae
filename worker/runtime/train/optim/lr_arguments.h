#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

namespace ddprun::train {

inline constexpr double kPi = 3.14159265358979323846;  // Python's math.pi

c10::impl::GenericList to_list(const std::vector<double>& values);

/// throws  std::invalid_argument "learning rate schedule: expected WHAT, got GOT" unless it holds
void expect(bool holds, const char* what, double got);

}  // namespace ddprun::train
