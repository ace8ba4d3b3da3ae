#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include <ddprun/group/process_group.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/choose_source.h>
#include <ddprun/train/state/ledger.h>
#include <ddprun/train/state/memory_file.h>

namespace ddprun::train {

/// What a rank keeps of a training in memory while its job reconnects because another rank was lost (ddprun
/// --recover=rank).
struct RunMemory {
  std::filesystem::path folder;        ///< the run's; empty: not yet known
  bool begun = false;                  ///< the run has begun there
  RunIdentity identity;                ///< once it has
  std::optional<TrainingState> state;  ///< after the newest whole step; nullopt: no step yet, or a new rank
  int progress = 0;                    ///< tells states of one step apart: the higher one is newer
  std::vector<double> totals;          ///< this rank's sums of the epoch, see Totals::sums()
  std::optional<std::int64_t> rows;    ///< rows of metrics; on rank 0
  Ledger spent;                        ///< by this rank

  /// On the node's first rank, in case all ranks are lost; else null. With parts, on every rank.
  std::unique_ptr<MemoryFile> file;

  /// A rank's memory has only a part of the state, or may be spoilt when another rank is lost. So all go back
  /// to the newest step after which every rank wrote its part to the file.
  bool parts = false;
  std::int64_t next_part = 0;           ///< counts calls of snapshot_part(), the same on every rank
  std::unique_ptr<MemoryFile> copies;   ///< copy of a part from a rank on another node; null: none
  std::unique_ptr<PartCopies> copying;  ///< for this round

  /// The training begins or continues, under this identity.
  void begin(const RunIdentity& identity);

  /// Writes this state to the file. Waits for the previous write.
  void snapshot(const TrainingState& newest) const;
  /// The same for this rank's part. Every rank calls it after the same step, when all are ready().
  /// throws  ddp::RoundOver if the state may be spoilt
  void snapshot_part(const TrainingState& newest, const ddp::ProcessGroup& group);
  /// Forgets the states in memory and in this rank's files: they may be wrong.
  void drop_states();
  /// Whether the last part and its copy are written.
  bool ready() const;
  void wait() const;  ///< until then

  /// Makes the connections for copies, if any are wanted. Every rank calls it in each round.
  ///
  /// local_ranks  on this node
  void connect(const ddp::ProcessGroup& group, int local_ranks);
  /// Ends the round: closes the connections.
  void disconnect();

  /// Gives every rank the newest state of any rank or of the file, and the folder. Every rank calls it first
  /// in a later round. If rank 0 is new, the state that only rank 0 keeps comes from the newest checkpoint.
  /// With parts, each rank gets its own; if one is nowhere, none does, and rank 0 says so. None does either
  /// if what the files hold is older than the newest checkpoint.
  void share(const ddp::ProcessGroup& group);
  /// Whether this run has a checkpoint, of this branch. Every rank calls it.
  bool has_saved(const ddp::ProcessGroup& group) const;

 private:
  std::vector<MemoryFile*> files() const;
  void take_over(const std::vector<nlohmann::json>& heads);
  ResumePoint newest_saved() const;
  bool saved_later(const ddp::ProcessGroup& group, const Place& place) const;
  Parts find_parts(const ddp::ProcessGroup& group);
  void share_parts(const ddp::ProcessGroup& group);
};

}  // namespace ddprun::train
