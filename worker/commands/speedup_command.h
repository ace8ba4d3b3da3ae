#pragma once

namespace ddprun::worker {

/// worker speedup RUN_FOLDER... [--picture FILE.png]: compares runs of the same training on different numbers
/// of ranks by their summaries: a table of speed, speed-up and efficiency over that of the fewest ranks, and
/// a picture.
///
/// returns  0
/// throws   UsageError for a flag it does not know, runs of different tasks, or two of as many ranks; IoError
int run_speedup_command(int argc, char** argv);

}  // namespace ddprun::worker
