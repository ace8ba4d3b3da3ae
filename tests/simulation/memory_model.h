#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace ddprun::test {

/// A rank's state, or its part of one.
struct ModelState {
  int step = 0;
  bool whole = true;  ///< what follows the step is done, too
  std::uint64_t hash = 0;
};

/// A MemoryFile: two slots, of which the older one is overwritten, and its header last.
class MemoryModel {
 public:
  struct Record {
    std::int64_t number = -1;  ///< of the state, with parts
    int rank = 0;
    ModelState state;
  };

  bool writing() const { return next_.has_value(); }
  void begin_write(const Record& record) {
    const int newest = newest_slot();
    next_ = {newest < 0 ? 0 : 1 - newest, record};
    Slot& slot = slots_.at(static_cast<std::size_t>(next_->first));
    slot.damaged = true;
    slot.record.state.hash = 0;
  }
  void end_write() {
    const int newest = newest_slot();
    const auto sequence = newest < 0 ? 1 : slots_.at(static_cast<std::size_t>(newest)).sequence + 1;
    slots_.at(static_cast<std::size_t>(next_->first)) = {sequence, false, next_->second};
    next_.reset();
  }
  /// The writer is killed.
  void cut() { next_.reset(); }

  std::optional<Record> read() const {
    const int newest = newest_slot();
    if (newest < 0) return std::nullopt;
    const Slot& slot = slots_.at(static_cast<std::size_t>(newest));
    return slot.damaged ? std::nullopt : std::optional(slot.record);
  }
  /// The whole ones.
  std::vector<Record> records() const {
    std::vector<Record> found;
    for (const Slot& slot : slots_)
      if (slot.sequence > 0 && !slot.damaged) found.push_back(slot.record);
    return found;
  }
  void forget_all_but(std::int64_t number) {
    for (Slot& slot : slots_)
      if (slot.damaged || slot.record.number != number) slot = {};
  }

 private:
  struct Slot {
    std::uint64_t sequence = 0;  ///< 0: empty
    bool damaged = false;
    Record record;
  };
  int newest_slot() const {
    if (slots_[0].sequence == slots_[1].sequence) return -1;
    return slots_[0].sequence > slots_[1].sequence ? 0 : 1;
  }

  std::array<Slot, 2> slots_;
  std::optional<std::pair<int, Record>> next_;
};

}  // namespace ddprun::test
