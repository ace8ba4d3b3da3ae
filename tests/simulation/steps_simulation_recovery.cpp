#include <algorithm>
#include <set>
#include <utility>

#include "tests/simulation/steps_simulation.h"

// How the ranks recover, from what they keep, and what is promised.

namespace ddprun::test {

void StepsSimulation::connect(int rank) {
  if (go_on_if(rank, take_part(rank, Phase::kConnecting, {}))) {
    at(rank).copies_failed = false;
    at(rank).copied = 0;
    go(rank, Phase::kGathering);
  }
}

/// RunMemory::share(), share_parts().
void StepsSimulation::gather(int rank) {
  Rank& self = at(rank);
  Contribution own;
  own.flag = self.completed.has_value();
  if (parts_) {
    for (const MemoryModel* each : {&files(rank).own, &files(rank).copies})
      for (const auto& record : each->records())
        own.heads.push_back({record.number, record.rank, size_, {record.state.step, 0}});
  } else if (self.state) {
    own.offer = {{self.state->step, self.progress}, false};
  } else if (const auto kept = files(rank).own.read(); kept && first_of_node(rank)) {
    own.offer = {{kept->state.step, 0}, true};
  }
  if (!go_on_if(rank, take_part(rank, Phase::kGathering, own))) return;
  const auto& all = last_collective(self).of;
  self.survivors = std::ranges::any_of(all, [](const auto& each) { return each->flag; });
  bool asks = false;
  if (parts_) {
    std::vector<std::vector<train::PartHead>> held;
    self.next_part = 0;
    for (const auto& each : all) {
      held.push_back(each->heads);
      for (const auto& head : each->heads) self.next_part = std::max(self.next_part, head.number + 1);
    }
    self.state.reset();
    self.parts = train::choose_parts(held);
    asks = !self.parts.holders.empty();
    self.asked_about = self.parts.place;
  } else {
    self.offers.clear();
    for (const auto& each : all) self.offers.push_back(each->offer);
    self.source = train::choose_source(self.offers, [&](const train::Place& about) {
      asks = true;
      self.asked_about = about;
      return false;
    });
  }
  if (asks) return go(rank, Phase::kAsking);
  if (!parts_ && self.source) return go(rank, Phase::kSharing);
  self.state.reset();
  go(rank, Phase::kLoading);
}

void StepsSimulation::ask(int rank) {
  Rank& self = at(rank);
  Contribution own;
  own.flag = rank == 0 && newest_saved() > self.asked_about;
  if (!go_on_if(rank, take_part(rank, Phase::kAsking, own))) return;
  const bool later = last_collective(self).of[0]->flag;
  if (!parts_) self.source = train::choose_source(self.offers, [&](const auto&) { return later; });
  if (later) {
    self.state.reset();
    return go(rank, Phase::kLoading);
  }
  if (parts_) {
    files(rank).own.forget_all_but(self.parts.number);
    files(rank).copies.forget_all_but(self.parts.number);
  }
  go(rank, Phase::kSharing);
}

void StepsSimulation::share(int rank) {
  Rank& self = at(rank);
  Contribution own;
  const int source = parts_ ? self.parts.holders.at(rank) : *self.source;
  if (parts_) {
    for (const auto& [owner, holder] : self.parts.holders)
      for (const MemoryModel* each : {&files(rank).own, &files(rank).copies})
        if (const auto kept = each->read(); holder == rank && kept && kept->rank == owner)
          own.states[owner] = kept->state;
  } else if (rank == source) {
    if (!self.state) self.state = files(rank).own.read()->state;
    own.states[rank] = *self.state;
  }
  if (!go_on_if(rank, take_part(rank, Phase::kSharing, own, source))) return;
  const auto& states = last_collective(self).of[static_cast<std::size_t>(source)]->states;
  const auto found = states.find(parts_ ? rank : source);
  promise(found != states.end(), "a state is promised and not there");
  self.progress = 0;
  begin_training(rank, found->second);
}

void StepsSimulation::load(int rank) {
  Contribution own;
  if (const int step = newest_checkpoint(); rank == 0 && step >= 0)
    for (int each = 0; each < size_; ++each)
      if (const auto& saved = disk_[step][static_cast<std::size_t>(parts_ ? each : 0)])
        own.states[each] = *saved;
  if (!go_on_if(rank, take_part(rank, Phase::kLoading, own, 0))) return;
  const auto& states = last_collective(at(rank)).of[0]->states;
  const auto found = states.find(rank);
  begin_training(rank, found == states.end() ? ModelState{0, true, expected(0, rank)} : found->second);
}

void StepsSimulation::begin_training(int rank, const ModelState& state) {
  Rank& self = at(rank);
  check_state(rank, state);
  check_start(rank, state.step);
  note(rank, "goes on after step " + std::to_string(state.step));
  self.state = state;
  self.completed = state.step;
  self.progress = state.whole ? 1 : 0;
  self.source.reset();
  if (parts_) snapshot_part(rank);
  go(rank, state.whole ? Phase::kComputing : Phase::kAgreeing);
  if (state.whole && state.step == total_) go(rank, Phase::kEnding);
}

// -- memory and disk --

void StepsSimulation::snapshot_part(int rank) {
  promise(idle(rank), "a part is kept before the last one is written");
  begin_write(rank, at(rank).next_part++);
}

void StepsSimulation::begin_write(int rank, std::int64_t number) {
  files(rank).own.begin_write({number, rank, *at(rank).state});
  at(rank).writing = true;
}

void StepsSimulation::write_on(int rank) {
  Rank& self = at(rank);
  if (self.copying) return copy_on(rank);
  if (!std::exchange(self.writing, false)) return;
  files(rank).own.end_write();
  files(rank).kills = 0;
  note(rank, "has its state after step " + std::to_string(files(rank).own.read()->state.step) + " in memory");
  self.copying = copies_ && !self.copies_failed;
  if (self.copying) self.group->sent[static_cast<std::size_t>(rank)].push_back(*files(rank).own.read());
}

/// PartCopies::exchange().
void StepsSimulation::copy_on(int rank) {
  Rank& self = at(rank);
  MemoryModel& copies = files(rank).copies;
  const auto& from = self.group->sent[static_cast<std::size_t>((rank + size_ - per_node_) % size_)];
  if (copies.writing()) {
    copies.end_write();
    note(rank, "has a copy");
    self.copying = false;
  } else if (from.size() > self.copied) {
    copies.begin_write(from[self.copied++]);
  } else if (self.group->broken) {
    self.copying = false;
    self.copies_failed = true;
  }
}

void StepsSimulation::save_on(int rank) {
  Rank& self = at(rank);
  if (!self.saving) return;
  auto& parts = disk_[self.saving->step];
  parts.resize(ranks_.size());
  parts[static_cast<std::size_t>(rank)] = *self.saving;
  check_state(rank, *self.saving);
  note(rank, "has a checkpoint after step " + std::to_string(self.saving->step));
  self.saving.reset();
}

/// -1: there is none.
int StepsSimulation::newest_checkpoint() const {
  for (auto each = disk_.rbegin(); each != disk_.rend(); ++each) {
    const auto& parts = each->second;
    if (parts[0] &&
        (!parts_ || std::ranges::all_of(parts, [](const auto& part) { return part.has_value(); })))
      return each->first;
  }
  return -1;
}

train::Place StepsSimulation::newest_saved() const {
  const int step = newest_checkpoint();
  return step < 0 ? train::Place() : train::Place{step, 0};
}

// -- promises --

void StepsSimulation::check_state(int rank, const ModelState& state) const {
  promise(state.hash == expected(state.step, rank), "rank " + std::to_string(rank) + "'s state after step " +
                                                        std::to_string(state.step) +
                                                        " is not that of an undisturbed training");
}

/// Of training in a round, after this step.
void StepsSimulation::check_start(int rank, int step) {
  const Rank& self = at(rank);
  const int again = newest_ - step;
  const int kept = parts_ ? newest_of_all() : step_in(newest_file());
  promise(again >= 0, "a step that nobody has completed");
  promise(step >= kept, "a newer state was kept in memory");
  if (!parts_ && self.completed) {
    promise(step >= *self.completed, "a rank that lives repeats a step");
    promise(step <= *self.completed + 1, "a rank that lives misses a step");
  }
  if (!parts_ && self.survivors) {
    promise(again <= 1, "a rank lives that has the state, and more than one step is computed again");
  } else {
    promise(step >= newest_checkpoint(), "there is a newer checkpoint");
    // A rank is killed before it has written the next state; with parts, all return to that of the last one.
    const int most = parts_ ? 2 * keep_every_ : 2 * keep_every_ * newest_file().kills + 1;
    promise(keep_every_ == 0 || (node_lost_ && kept < 0) || again <= most,
            std::to_string(again) + " steps are computed again");
  }
  if (std::exchange(counted_round_, self.group->number) == self.group->number) return;
  repeated_ += again;
  newest_ = step;
}

/// -1: none.
int StepsSimulation::step_in(const Files& files) {
  const auto record = files.own.read();
  return record ? record->state.step : -1;
}

const StepsSimulation::Files& StepsSimulation::newest_file() const {
  return *std::ranges::max_element(files_, {}, step_in);
}

/// Of which every rank's part is held somewhere.
int StepsSimulation::newest_of_all() const {
  std::map<std::int64_t, std::set<int>> ranks;
  std::map<std::int64_t, int> steps;
  for (const Files& each : files_)
    for (const MemoryModel* memory : {&each.own, &each.copies})
      for (const auto& record : memory->records()) {
        ranks[record.number].insert(record.rank);
        steps[record.number] = record.state.step;
      }
  int newest = -1;
  for (const auto& [number, owners] : ranks)
    if (owners.size() == ranks_.size()) newest = std::max(newest, steps[number]);
  return newest;
}

}  // namespace ddprun::test
