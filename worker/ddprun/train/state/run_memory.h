#pragma once

#include <sys/types.h>

#include <nlohmann/json_fwd.hpp>

#include <ddprun/group/process_group.h>
#include <ddprun/train/state/checkpoint.h>
#include <ddprun/train/state/choose_source.h>
#include <ddprun/train/state/ledger.h>

namespace ddprun::train {

/// A training's newest state in memory that ddprun holds (DDPRUN_STATE_FD, --recover=rank): a file without a
/// name that outlives the worker. Has room for two states, so that the older one stays whole while the newer
/// one is written, in the background.
class MemoryFile {
 public:
  /// fd     stays open; nothing is kept unless it is a file, as the variable may be left over from elsewhere
  /// begin  where the states begin in the file: several of these may share it, far apart
  explicit MemoryFile(int fd, off_t begin = 0);
  /// Waits until the state is written.
  ~MemoryFile() { wait(); }

  struct Record {
    std::string head, state;  ///< what tells states apart, in a few bytes; the pickled state
  };

  /// Whether the last state is written and there is room for the next.
  bool idle() const;
  /// Waits until it is.
  void wait() const {
    if (writing_.valid()) writing_.wait();
  }

  /// Copies the state, and writes it in the background after the previous one. Without room for it, such as
  /// under a memory limit, warns once and keeps the earlier states.
  ///
  /// copied   called once the state is copied; if it throws, nothing is written
  /// written  called in the background once it is written; with null on failure
  void write(const std::string& head, const c10::IValue& state, const std::function<void()>& copied = {},
             const std::function<void(const Record*)>& written = {});
  /// Writes it at once.
  void put(const Record& record);

  /// The newest whole state; nullopt: none.
  std::optional<Record> read() const;
  /// The heads of the one or two whole states, newest first. Waits until the last is written.
  std::vector<std::string> heads() const;
  /// Drops the states with this head, and damaged ones.
  void forget(const std::string& head);

 private:
  struct Slot;
  std::vector<Slot> slots() const;
  std::optional<Record> contents(const Slot& slot) const;
  bool write_slot(const Slot& slot);
  void give_up(const std::string& problem);

  int fd_ = -1;
  off_t begin_;
  serialize::StagingMemory memory_;
  bool warned_ = false;
  std::future<void> writing_;
};

/// Copies the ranks' parts of the state to other nodes, over separate connections. Every rank makes one per
/// round.
class PartCopies {
 public:
  /// distance  rank r + distance keeps rank r's copy
  /// file      where this rank keeps the other's
  PartCopies(const ddp::ProcessGroup& group, int distance, MemoryFile& file);
  /// A running exchange() fails. No further calls are allowed.
  ~PartCopies() { abort(); }

  /// Sends this rank's part and keeps the other rank's. Every rank calls it equally often, on any thread.
  void exchange(const MemoryFile::Record& own);

  /// Whether a connection is lost.
  bool failed() const { return failed_; }
  /// Fails a running exchange().
  void abort();

 private:
  std::string exchange_bytes(const std::string& own);

  const ddp::ProcessGroup group_;
  const int to_, from_;
  MemoryFile& file_;
  std::atomic<bool> failed_ = false;
};

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
  /// ended  also forgets that the training has begun
  void drop_states(bool ended = false);
  /// Whether the last part and its copy are written.
  bool ready() const { return file->idle(); }
  void wait() const { file->wait(); }  ///< until then

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
