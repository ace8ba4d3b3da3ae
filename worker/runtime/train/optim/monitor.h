#pragma once

namespace ddprun::train {

/// Whether a smaller or a larger value of a watched metric is the better one.
enum class MonitorMode { kMin, kMax };

}  // namespace ddprun::train
