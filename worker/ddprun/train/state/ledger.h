#pragma once

#include <utility>

namespace ddprun::train {

/// Where the time of a rank's process has gone, in seconds since it started, or of several processes. The
/// rest is set-up, logging and drawing.
struct Ledger {
  double start = 0;          ///< until the first batch
  double data = 0;           ///< waiting for batches
  double compute = 0;        ///< forward, backward, optimizer
  double communication = 0;  ///< waiting for other ranks, as far as not hidden by backward
  double evaluation = 0;
  double checkpoint = 0;  ///< training held up by checkpoints
  double total = 0;
};

/// With their names in a checkpoint.
inline constexpr std::pair<const char*, double Ledger::*> kLedgerParts[] = {
    {"start", &Ledger::start},
    {"data", &Ledger::data},
    {"compute", &Ledger::compute},
    {"communication", &Ledger::communication},
    {"evaluation", &Ledger::evaluation},
    {"checkpoint", &Ledger::checkpoint},
    {"total", &Ledger::total}};

/// a + factor * b
inline Ledger sum(Ledger a, const Ledger& b, double factor = 1) {
  for (const auto& [name, part] : kLedgerParts) a.*part += factor * b.*part;
  return a;
}

}  // namespace ddprun::train
