#pragma once

namespace ddprun::worker {

/// worker env: prints what a training would find here (variables, ranks, devices, backend, addresses,
/// versions) and what is wrong. With several ranks they meet, and rank 0 prints for all of them; where they
/// cannot meet, each prints its own.
///
/// returns  0 if all is fine, 1 if something is wrong
/// throws   UsageError for a flag that it does not know
int run_env_command(int argc, char** argv);

}  // namespace ddprun::worker
