#pragma once

#include <set>
#include <string>

namespace ddprun::train {

/// What makes this machine's CPU fast at training, by the names that /proc/cpuinfo gives them: of avx2,
/// avx512f, avx512_bf16, amx_bf16 (Intel's tiles: bfloat16 matrix products many times as fast as float32) and
/// Arm's bf16.
std::set<std::string> cpu_abilities();

}  // namespace ddprun::train
