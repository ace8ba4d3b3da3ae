#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::ddp {

enum class CollectiveState : std::uint8_t {
  kScheduled,  ///< called by the program
  kStarted,    ///< taken by the backend
  kCompleted,
  kFailed,
};

std::string_view to_text(CollectiveState state);
std::optional<CollectiveState> collective_state(std::string_view text);

/// One collective call, as it was made.
struct Collective {
  static constexpr std::size_t kMaxDims = 6;

  const char* op = "";        ///< PyTorch's name: "all_reduce"; a literal
  const char* dtype = "";     ///< PyTorch's name: "float"; a literal, "" without tensors
  std::int64_t elements = 0;  ///< of all tensors handed in
  std::int32_t tensors = 0;   ///< how many
  std::int32_t dims = 0;      ///< of the first tensor; at most kMaxDims are kept
  std::array<std::int64_t, kMaxDims> shape{};
  std::int64_t bytes = 0;       ///< of all tensors handed in
  int peer = -1;                ///< root, source or destination, if there is one
  bool point_to_point = false;  ///< send and recv: only some ranks make the call
  bool told_by_wait = false;    ///< only wait() reports that it has ended
};

/// A call as the ring returns it. Times are nanoseconds since the epoch, 0 if not yet.
struct CollectiveRecord {
  std::uint64_t sequence = 0;  ///< in its group, from 1; 0 for send and recv
  std::string group;
  std::string op, dtype;
  std::int64_t elements = 0;
  std::int64_t tensors = 0;
  std::vector<std::int64_t> shape;
  int peer = -1;
  int bucket = -1;  ///< of DistributedDataParallel's gradients, if it reduces one
  CollectiveState state = CollectiveState::kScheduled;
  std::int64_t created_ns = 0, ended_ns = 0;

  bool pending() const { return state == CollectiveState::kScheduled || state == CollectiveState::kStarted; }
};

/// "all_reduce of 4096 float (bucket 2)"
std::string describe(const CollectiveRecord& record);

/// A ring of this process's last collectives, over all its groups. Costs well under a microsecond per call.
/// Thread-safe.
class FlightRecorder {
 public:
  using Id = std::uint64_t;
  using Group = std::size_t;

  static constexpr std::size_t kDefaultCapacity = 2000;
  explicit FlightRecorder(std::size_t capacity = kDefaultCapacity) : capacity_(capacity) {}

  /// Appends #2, #3, ... to a name in use: the ring may still hold the earlier group's calls.
  ///
  /// members  its ranks, as ranks of the whole job
  Group add_group(const std::string& name, std::vector<int> members = {});

  /// The members of every group so far, by name.
  std::map<std::string, std::vector<int>> groups() const;

  /// The next all-reduces of these sizes, in this order, are the buckets of one backward.
  void expect_buckets(Group group, std::vector<std::int64_t> bucket_bytes);

  Id begin(Group group, const Collective& call);
  void set_started(Id id) { set_state(id, CollectiveState::kStarted); }
  void set_completed(Id id) { set_state(id, CollectiveState::kCompleted); }
  void set_failed(Id id) { set_state(id, CollectiveState::kFailed); }

  /// The newest `count`, or all; oldest first.
  std::vector<CollectiveRecord> records(std::optional<std::size_t> count = std::nullopt) const;

  /// The most recent call.
  std::optional<Id> newest() const;

  /// Where a failure began: the group's first pending collective up to this one, else this one. Skips
  /// told_by_wait ones, which may have ended long ago. nullopt if this one is no longer in the ring.
  std::optional<CollectiveRecord> first_pending(Id up_to) const;

 private:
  struct Entry {
    Collective call;
    Group group = 0;
    std::uint64_t sequence = 0;
    int bucket = -1;
    CollectiveState state = CollectiveState::kScheduled;
    std::int64_t created_ns = 0, ended_ns = 0;
  };
  struct GroupState {
    std::string name;
    std::vector<int> members;
    std::uint64_t sequence = 0;
    std::vector<std::int64_t> bucket_bytes;
    std::size_t next_bucket = 0;
  };

  const Entry* find(Id id) const;
  int bucket_of(GroupState& group, const Collective& call);
  void set_state(Id id, CollectiveState state);
  CollectiveRecord to_record(const Entry& entry) const;

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<GroupState> groups_;
  std::vector<Entry> ring_;  // grows up to capacity_; the call of id i is at i % capacity_
  Id next_ = 0;
};

/// This process's recorder, for all its groups.
FlightRecorder& flight_recorder();

std::int64_t epoch_now_ns();

}  // namespace ddprun::ddp
