#include "tests/simulation/steps_simulation.h"

#include <algorithm>
#include <array>
#include <utility>

namespace ddprun::test {
namespace {

constexpr unsigned kMostKills = 7;
constexpr int kLongestPause = 3'000;
constexpr long kCalm = 300'000;  // turns

std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

/// A rank's gradient.
std::uint64_t gradient(int rank, const ModelState& state) {
  return mixed(state.hash + static_cast<std::uint64_t>(1000 * state.step + rank + 1));
}

}  // namespace

StepsSimulation::StepsSimulation(unsigned seed, std::vector<std::string>* trace)
    : random_(seed), trace_(trace) {
  per_node_ = 1 + static_cast<int>(below(3));
  size_ = per_node_ * (1 + static_cast<int>(below(per_node_ == 3 ? 2 : 3)));
  total_ = 3 + static_cast<int>(below(25));
  parts_ = chance(50);
  copies_ = parts_ && chance(50) && size_ >= 2 * per_node_;
  keep_every_ = chance(50) ? 1 + static_cast<int>(below(4)) : 0;
  save_every_ = chance(50) ? 1 + static_cast<int>(below(8)) : 0;
  file_speed_ = std::array{2u, 10u, 40u}.at(below(3));
  disk_speed_ = std::array{1u, 5u, 20u}.at(below(3));
  kills_left_ = chance(5) ? 0 : 1 + below(kMostKills);
  rarity_ = 20 + below(3'000);
  const auto size = static_cast<std::size_t>(size_);
  ranks_.resize(size);
  files_.resize(size);
  current_ = std::make_shared<Group>();
  current_->sent.resize(size);
  std::vector<ModelState> states(size);
  for (int step = 0; step <= total_; ++step) {
    std::uint64_t sum = 0;
    for (int rank = 0; rank < size_; ++rank) sum += gradient(rank, states[static_cast<std::size_t>(rank)]);
    expected_.emplace_back();
    for (int rank = 0; rank < size_; ++rank) {
      ModelState& state = states[static_cast<std::size_t>(rank)];
      state.hash = mixed(state.hash ^ (step == 0 ? static_cast<std::uint64_t>(parts_ ? rank + 1 : 1) : sum));
      state.step = step;
      expected_.back().push_back(state.hash);
    }
  }
}

std::uint64_t StepsSimulation::expected(int step, int rank) const {
  return expected_.at(static_cast<std::size_t>(step)).at(static_cast<std::size_t>(rank));
}

void StepsSimulation::note(int rank, const std::string& line) {
  if (trace_ != nullptr)
    trace_->push_back(std::to_string(now_) + ": rank " + std::to_string(rank) + " " + line);
}

void StepsSimulation::run() {
  while (std::ranges::count(ranks_, Phase::kExited, &Rank::phase) < size_) {
    ++now_;
    if (kills_left_ > 0) {
      calm_ = now_ + kLongestPause;
      if (below(rarity_) == 0) disturb();
    }
    promise(now_ < calm_ + kCalm, "the training does not end");
    if (chance(5) && has_lost_rank()) begin_round();
    act(static_cast<int>(below(static_cast<unsigned>(size_))));
  }
}

/// Or ranks that wait in vain for one that succeeded as their round began, and fail after a while.
bool StepsSimulation::has_lost_rank() {
  return std::ranges::any_of(ranks_, [this](const Rank& each) {
    return each.phase == Phase::kKilled ||
           (each.phase == Phase::kExited && each.group->number < round_ && chance(10));
  });
}

void StepsSimulation::disturb() {
  --kills_left_;
  rarity_ = std::array{20u, 100u, 2'000u}.at(below(3));  // again while they recover, or later
  const int rank = static_cast<int>(below(static_cast<unsigned>(size_)));
  switch (below(6)) {
    case 0:
      for (int each = 0; each < size_; ++each) kill(each);
      return;
    case 1:
      for (int each = 0; each < size_; ++each)
        if (chance(50)) kill(each);
      return;
    case 2:
      return lose_node(node_of(rank));
    case 3:
      at(rank).paused_until = now_ + static_cast<long>(below(kLongestPause));
      return note(rank, "pauses");
    default:
      return kill(rank);
  }
}

void StepsSimulation::kill(int rank) {
  if (at(rank).phase == Phase::kExited || at(rank).phase == Phase::kKilled) return;
  note(rank, "is killed");
  if (at(rank).group) at(rank).group->broken = true;
  at(rank) = {};
  at(rank).phase = Phase::kKilled;
  files(rank).own.cut();
  files(rank).copies.cut();
  ++files(rank).kills;
}

/// Another one stands by.
void StepsSimulation::lose_node(int node) {
  node_lost_ = true;
  for (int rank = node * per_node_; rank < (node + 1) * per_node_; ++rank) {
    kill(rank);
    files(rank) = {};
  }
}

/// The launcher has noticed. Once a rank has succeeded, all start again.
void StepsSimulation::begin_round() {
  const bool all = std::ranges::count(ranks_, Phase::kExited, &Rank::phase) > 0;
  for (int rank = 0; rank < size_; ++rank) {
    if (at(rank).phase == Phase::kExited) at(rank) = {};
    if (all) kill(rank);
    if (at(rank).phase == Phase::kKilled) at(rank) = {};
  }
  current_ = std::make_shared<Group>();
  current_->number = ++round_;
  current_->sent.resize(static_cast<std::size_t>(size_));
  note(0, "and all begin round " + std::to_string(round_));
}

void StepsSimulation::act(int rank) {
  if (at(rank).phase == Phase::kKilled || now_ < at(rank).paused_until) return;
  if (chance(file_speed_)) write_on(rank);
  if (chance(disk_speed_)) save_on(rank);
  switch (at(rank).phase) {
    case Phase::kStarting:
      at(rank).group = current_;
      return go(rank, Phase::kConnecting);
    case Phase::kConnecting:
      return connect(rank);
    case Phase::kGathering:
      return gather(rank);
    case Phase::kAsking:
      return ask(rank);
    case Phase::kSharing:
      return share(rank);
    case Phase::kLoading:
      return load(rank);
    case Phase::kComputing:
      return compute(rank);
    case Phase::kReducing:
      return reduce(rank);
    case Phase::kStepping:
      return step(rank);
    case Phase::kAgreeing:
      return agree(rank);
    case Phase::kSaving:
      return save(rank);
    case Phase::kKeeping:
      return keep(rank);
    case Phase::kAwaiting:
      return await(rank);
    case Phase::kEnding:
      return end(rank);
    case Phase::kLeaving:
      if (round_ == at(rank).group->number || !idle(rank) || at(rank).saving) return;
      at(rank).group = current_;
      at(rank).collective = 0;
      return go(rank, Phase::kConnecting);
    case Phase::kExited:
    case Phase::kKilled:
      return;
  }
}

// -- collectives --

/// The rank's part in its next collective; then, whether it is through. Where a rank is lost, it may fail on
/// some and not on others.
///
/// source  whose contribution is enough; -1: all are needed
StepsSimulation::Waiting StepsSimulation::take_part(int rank, Phase phase, const Contribution& own,
                                                    int source) {
  Rank& self = at(rank);
  Group& group = *self.group;
  if (group.collectives.size() <= self.collective)
    group.collectives.push_back({phase, 0, std::vector<std::optional<Contribution>>(ranks_.size())});
  Collective& collective = group.collectives[self.collective];
  promise(collective.phase == phase, "ranks are in different collectives");
  auto& mine = collective.of[static_cast<std::size_t>(rank)];
  if (!mine) {
    mine = own;
    ++collective.arrived;
    return Waiting::kNotYet;
  }
  const bool through =
      source < 0 ? collective.arrived == size_ : collective.of[static_cast<std::size_t>(source)].has_value();
  const bool broken = group.broken || round_ > group.number;
  if (through && (!broken || chance(50))) {
    ++self.collective;
    return Waiting::kDone;
  }
  return broken ? Waiting::kBroken : Waiting::kNotYet;
}

const StepsSimulation::Collective& StepsSimulation::last_collective(const Rank& rank) const {
  return rank.group->collectives.at(rank.collective - 1);
}

void StepsSimulation::go(int rank, Phase phase) { at(rank).phase = phase; }

void StepsSimulation::leave(int rank) {
  note(rank, "leaves round " + std::to_string(at(rank).group->number));
  at(rank).group->broken = true;
  at(rank).agreed = false;
  go(rank, Phase::kLeaving);
}

/// False: it waits on, or has left the round.
bool StepsSimulation::go_on_if(int rank, Waiting waiting) {
  if (waiting == Waiting::kBroken) leave(rank);
  return waiting == Waiting::kDone;
}

// -- training --

void StepsSimulation::compute(int rank) {
  if (at(rank).group->broken && round_ > at(rank).group->number) return leave(rank);
  go(rank, Phase::kReducing);
}

void StepsSimulation::reduce(int rank) {
  Rank& self = at(rank);
  Contribution own;
  own.number = gradient(rank, *self.state);
  if (!go_on_if(rank, take_part(rank, Phase::kReducing, own))) return;
  self.sum = 0;
  for (const auto& each : last_collective(self).of) self.sum += each->number;
  go(rank, Phase::kStepping);
}

/// Nothing interrupts it but the rank's end.
void StepsSimulation::step(int rank) {
  Rank& self = at(rank);
  self.state = {self.state->step + 1, false, mixed(self.state->hash ^ self.sum)};
  self.progress = 0;
  self.completed = self.state->step;
  newest_ = std::max(newest_, self.state->step);
  note(rank, "has completed step " + std::to_string(self.state->step));
  check_state(rank, *self.state);
  for (const Rank& other : ranks_)
    promise(other.group != self.group || !other.completed || self.state->step <= *other.completed + 1,
            "a rank is more than one step ahead");
  go(rank, Phase::kAgreeing);
}

/// Trainer::act_after_step().
void StepsSimulation::agree(int rank) {
  Contribution own;
  own.flag = parts_ && keep_every_ == 0 && idle(rank) && chance(70);
  if (!go_on_if(rank, take_part(rank, Phase::kAgreeing, own))) return;
  at(rank).agreed =
      std::ranges::all_of(last_collective(at(rank)).of, [](const auto& each) { return each->flag; });
  const bool saves = save_every_ > 0 && at(rank).state->step % save_every_ == 0 && (parts_ || rank == 0);
  go(rank, saves ? Phase::kSaving : Phase::kKeeping);
}

void StepsSimulation::save(int rank) {
  Rank& self = at(rank);
  if (self.saving) return;  // the last one
  self.saving = self.state;
  self.saving->whole = true;
  go(rank, Phase::kKeeping);
}

/// Trainer::commit_step().
void StepsSimulation::keep(int rank) {
  Rank& self = at(rank);
  self.state->whole = true;
  self.progress = 1;
  const bool due = keep_every_ > 0 && self.state->step % keep_every_ == 0;
  if (parts_ && due) return go(rank, Phase::kAwaiting);
  if (parts_ && std::exchange(self.agreed, false)) snapshot_part(rank);
  if (!parts_ && first_of_node(rank)) {
    if (due && !idle(rank)) return;
    if (due || (keep_every_ == 0 && idle(rank) && chance(40))) begin_write(rank, -1);
  }
  go(rank, self.state->step < total_ ? Phase::kComputing : Phase::kEnding);
}

/// StepMemory::snapshot_part_now().
void StepsSimulation::await(int rank) {
  if (!idle(rank) || !go_on_if(rank, take_part(rank, Phase::kAwaiting, {}))) return;
  snapshot_part(rank);
  go(rank, at(rank).state->step < total_ ? Phase::kComputing : Phase::kEnding);
}

void StepsSimulation::end(int rank) {
  if (at(rank).saving || !idle(rank) || !go_on_if(rank, take_part(rank, Phase::kEnding, {}))) return;
  note(rank, "succeeds");
  go(rank, Phase::kExited);
}

}  // namespace ddprun::test
