#pragma once

namespace ddprun::train {

/// Where the time of a rank's process has gone, in seconds since it started. What is in none of them is
/// setting up, logging and drawing.
struct Ledger {
  double start = 0;          ///< until the first batch
  double data = 0;           ///< waiting for batches
  double compute = 0;        ///< forward, backward, optimizer
  double communication = 0;  ///< waiting for other ranks, as far as backward did not hide it
  double evaluation = 0;
  double checkpoint = 0;  ///< training held up by checkpoints
  double total = 0;
};

}  // namespace ddprun::train
