#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::train {

/// What a checkpoint's name may tell and what it may be judged by; a report::MetricRow is one.
using MetricValues = std::vector<std::pair<std::string, double>>;

/// A checkpoint's name without extension, from Lightning's pattern: {name} or {name:spec} becomes name=value,
/// formatted by Python's rules. epoch and step are integers, metrics float32; one that is missing is 0.
///
///   ddp-cifar10-{epoch:02d}-{val_acc:.2f}  ->  ddp-cifar10-epoch=07-val_acc=0.86
///
/// pattern      empty: {epoch}-{step}
/// auto_insert  false leaves "name=" out
/// throws       UsageError if braces do not match or a spec is not one of
/// [sign][0][width][.digits][d|e|f|g|%]
std::string checkpoint_name(const std::string& pattern, const MetricValues& metrics, std::int64_t epoch,
                            std::int64_t step, bool auto_insert = true);

}  // namespace ddprun::train
