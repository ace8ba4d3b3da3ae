#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <ddprun/train/state/choose_source.h>
#include "tests/simulation/broken_promise.h"
#include "tests/simulation/memory_model.h"

namespace ddprun::test {

/// A training under --recover=rank, of 1 to 6 ranks on 1 to 3 nodes, that are killed and paused at any
/// moment, also while they recover; all of it from one seed, which says whose turn it is, too. Which state
/// the ranks go on from is decided by the product's own choose_source() and choose_parts().
///
/// The promises: every state, wherever it is kept, is that of its step in an undisturbed training; no rank is
/// more than one step ahead; a rank that lives repeats no step and misses none, and while one lives that has
/// the state, at most one step is computed again; if none does, or with parts, the ranks go on from the
/// newest state that is kept, and with --memory-checkpoint-every N repeat 2 N steps at the most; the training
/// ends.
class StepsSimulation {
 public:
  StepsSimulation(unsigned seed, std::vector<std::string>* trace);

  /// throws BrokenPromise
  void run();

  int rounds() const { return round_; }
  int steps() const { return total_; }
  int repeated() const { return repeated_; }

 private:
  enum class Phase {
    kStarting,
    kConnecting,
    kGathering,  // what states there are
    kAsking,     // whether a checkpoint is newer
    kSharing,
    kLoading,  // a checkpoint
    kComputing,
    kReducing,  // the gradients
    kStepping,
    kAgreeing,  // on what to do after the step
    kSaving,    // a checkpoint
    kKeeping,   // in memory
    kAwaiting,  // until all ranks have written their last parts
    kEnding,
    kLeaving,  // the round
    kExited,
    kKilled,
  };
  /// What a rank contributes to a collective.
  struct Contribution {
    train::Offer offer;
    std::vector<train::PartHead> heads;
    bool flag = false;
    std::uint64_t number = 0;
    std::map<int, ModelState> states;  ///< by rank
  };
  struct Collective {
    Phase phase;
    int arrived = 0;
    std::vector<std::optional<Contribution>> of;
  };
  struct Group {
    int number = 0;
    bool broken = false;  ///< a rank has left it
    std::vector<Collective> collectives;
    std::vector<std::vector<MemoryModel::Record>> sent;  ///< copies of parts, by sender
  };
  struct Rank {
    Phase phase = Phase::kStarting;
    std::shared_ptr<Group> group;
    std::size_t collective = 0;  ///< the next one
    std::optional<ModelState> state;
    int progress = 0;
    std::optional<int> completed;  ///< the newest step that this process has completed or taken over
    bool survivors = false;        ///< that have completed steps
    std::vector<train::Offer> offers;
    std::optional<int> source;
    train::Parts parts;
    train::Place asked_about;
    std::int64_t next_part = 0;
    bool agreed = false;
    std::uint64_t sum = 0;
    std::optional<ModelState> saving;
    bool writing = false, copying = false, copies_failed = false;  ///< the file; then the other's copy
    std::size_t copied = 0;
    long paused_until = 0;
  };
  struct Files {
    MemoryModel own, copies;
    int kills = 0;  ///< of the rank, since it has written its own
  };
  enum class Waiting { kDone, kNotYet, kBroken };

  unsigned below(unsigned n) { return n == 0 ? 0 : static_cast<unsigned>(random_() % n); }
  bool chance(unsigned percent) { return below(100) < percent; }
  void note(int rank, const std::string& line);
  Rank& at(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  Files& files(int rank) { return files_[static_cast<std::size_t>(rank)]; }
  int node_of(int rank) const { return rank / per_node_; }
  bool first_of_node(int rank) const { return rank % per_node_ == 0; }
  std::uint64_t expected(int step, int rank) const;

  bool has_lost_rank();
  void disturb();
  void kill(int rank);
  void lose_node(int node);
  void begin_round();
  void act(int rank);

  Waiting take_part(int rank, Phase phase, const Contribution& own, int source = -1);
  const Collective& last_collective(const Rank& rank) const;
  void go(int rank, Phase phase);
  void leave(int rank);
  bool go_on_if(int rank, Waiting waiting);

  void connect(int rank);
  void gather(int rank);
  void ask(int rank);
  void share(int rank);
  void load(int rank);
  void begin_training(int rank, const ModelState& state);
  void compute(int rank);
  void reduce(int rank);
  void step(int rank);
  void agree(int rank);
  void save(int rank);
  void keep(int rank);
  void await(int rank);
  void end(int rank);

  bool idle(int rank) { return !at(rank).writing && !at(rank).copying; }
  void snapshot_part(int rank);
  void begin_write(int rank, std::int64_t number);
  void write_on(int rank);
  void copy_on(int rank);
  void save_on(int rank);
  int newest_checkpoint() const;
  train::Place newest_saved() const;

  void check_state(int rank, const ModelState& state) const;
  void check_start(int rank, int step);
  static int step_in(const Files& files);
  const Files& newest_file() const;
  int newest_of_all() const;

  std::mt19937 random_;
  std::vector<std::string>* trace_;
  int per_node_, size_, total_;
  bool parts_, copies_;
  int keep_every_, save_every_;  ///< 0: by time; 0: never
  unsigned file_speed_, disk_speed_;
  unsigned kills_left_, rarity_;
  std::vector<Rank> ranks_;
  std::vector<Files> files_;
  std::map<int, std::vector<std::optional<ModelState>>> disk_;  ///< by step and rank
  std::vector<std::vector<std::uint64_t>> expected_;            ///< by step and rank
  std::shared_ptr<Group> current_;
  int round_ = 0;
  long now_ = 0, calm_ = 0;  ///< turns
  int newest_ = 0;           ///< step that a rank has completed
  bool node_lost_ = false;
  int repeated_ = 0, counted_round_ = -1;
};

}  // namespace ddprun::test
