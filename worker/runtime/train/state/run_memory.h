#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include <ddprun/group/process_group.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/ledger.h>
#include <ddprun/train/state/memory_file.h>

namespace ddprun::train {

/// What a rank keeps of a training in memory while its job connects again, because another rank was lost
/// (ddprun --recover=rank).
struct RunMemory {
  std::filesystem::path folder;        ///< the run's; empty: not known yet
  bool begun = false;                  ///< the folder holds this run, and no other any more
  std::optional<TrainingState> state;  ///< after the newest whole step; nullopt: no step yet, or a new rank
  int progress = 0;                    ///< tells states of one step apart: the higher, the newer
  std::vector<double> totals;          ///< this rank's sums of the epoch, see Totals::sums()
  std::optional<std::int64_t> rows;    ///< of metrics; on rank 0
  Ledger spent;                        ///< by this rank

  std::unique_ptr<MemoryFile> file;  ///< of the node's first rank, for the case that all are lost; else null

  /// The training begins, or goes on.
  void begin();

  /// Writes this state to the file. Waits for the last one to be written.
  void keep(const TrainingState& newest) const;

  /// Gives every rank the newest state of any, or of the file, and the folder. Every rank calls it first in a
  /// later round. What only rank 0 keeps in its state comes from the newest checkpoint if rank 0 is new.
  void share(const ddp::ProcessGroup& group);
};

}  // namespace ddprun::train
