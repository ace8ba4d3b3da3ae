#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ddprun/group/process_group.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/ledger.h>
#include <ddprun/train/state/memory_file.h>
#include <ddprun/train/state/part_copies.h>

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

  /// Of the node's first rank, for the case that all are lost; else null. With parts, of every rank.
  std::unique_ptr<MemoryFile> file;

  /// What a rank has in its memory is only a part of the state, or may be spoilt when another rank is lost.
  /// So all go back to the newest step after which every rank has written its part to the file.
  bool parts = false;
  std::int64_t next_part = 0;           ///< counts what keep_part() wrote, the same on every rank
  std::unique_ptr<MemoryFile> copies;   ///< of the part of a rank of another node; null: none
  std::unique_ptr<PartCopies> copying;  ///< in this round

  /// The training begins, or goes on.
  void begin();

  /// Writes this state to the file. Waits for the last one to be written.
  void keep(const TrainingState& newest) const;
  /// The same for this rank's part. Every rank calls it after the same step, when all are ready().
  /// throws  ddp::RoundOver if the state may be spoilt
  void keep_part(const TrainingState& newest, const ddp::ProcessGroup& group);
  /// Whether the last part is written, with its copy.
  bool ready() const;
  void wait() const;  ///< until it is

  /// If there are to be copies, makes the connections. Every rank calls it in each round.
  ///
  /// local_ranks  on this node
  void connect(const ddp::ProcessGroup& group, int local_ranks);
  /// The end of a round: closes them.
  void disconnect();

  /// Gives every rank the newest state of any, or of the file, and the folder. Every rank calls it first in a
  /// later round. What only rank 0 keeps in its state comes from the newest checkpoint if rank 0 is new.
  /// With parts each rank gets its own; if one is nowhere, none, and rank 0 says so.
  void share(const ddp::ProcessGroup& group);

 private:
  /// Which rank has each rank's part.
  struct Parts {
    std::int64_t number = -1;
    std::map<int, int> holders;
  };
  std::vector<MemoryFile*> files() const;
  void take_over(const std::vector<nlohmann::json>& heads);
  Parts find_parts(const ddp::ProcessGroup& group);
  void share_parts(const ddp::ProcessGroup& group);
};

}  // namespace ddprun::train
