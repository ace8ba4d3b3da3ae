#pragma once

namespace ddprun::worker {

/// worker bench-loader TASK: how fast the input pipeline of a task is, without a model. Goes through the
/// training set in random order, once or more, and prints one line of JSON: task, world, seconds and
/// cpu_seconds of this process, peak_mb, workers (loader threads) and images_per_second, after the first
/// batch.
///
/// returns  0
/// throws   UsageError for a flag or task that it does not know; IoError for the data
int run_bench_loader(int argc, char** argv);

}  // namespace ddprun::worker
