#pragma once

namespace ddprun::train {

/// Where the time of a rank's process has gone, in seconds since it started. The rest is set-up, logging and
/// drawing.
struct Ledger {
  double start = 0;          ///< until the first batch
  double data = 0;           ///< waiting for batches
  double compute = 0;        ///< forward, backward, optimizer
  double communication = 0;  ///< waiting for other ranks, as far as not hidden by backward
  double evaluation = 0;
  double checkpoint = 0;  ///< training held up by checkpoints
  double total = 0;
};

}  // namespace ddprun::train
