#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
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

/// What the end of a job's group is recorded as: afterwards its rank makes no more calls.
inline constexpr const char* kCloseOp = "close";

/// One call of a collective. Times are nanoseconds since the epoch, 0 if not yet.
struct CollectiveRecord {
  std::uint64_t sequence = 0;            ///< in its group, from 1; 0 for send and recv
  std::string group = {};                ///< its name
  std::string op = {};                   ///< PyTorch's name: "all_reduce"
  std::string dtype = {};                ///< PyTorch's name: "float"; "" without tensors
  std::int64_t elements = 0;             ///< of all tensors handed in
  std::int64_t tensors = 0;              ///< how many
  std::vector<std::int64_t> shape = {};  ///< of the first tensor
  int peer = -1;                         ///< root, source or destination, if there is one
  int bucket = -1;                       ///< of DistributedDataParallel's gradients, if it reduces one
  CollectiveState state = CollectiveState::kScheduled;
  std::int64_t created_ns = 0, ended_ns = 0;

  // Not in the files.
  std::size_t group_number = 0;
  std::int64_t bytes = 0;       ///< of all tensors handed in
  bool point_to_point = false;  ///< send and recv: only some ranks make the call
  bool told_by_wait = false;    ///< only wait() reports that it has ended
  std::int64_t awaited_ns = 0;  ///< when wait() was called; only if told_by_wait

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

  /// Adds a call; its group, sequence, bucket and created_ns are filled in.
  Id begin(Group group, CollectiveRecord call);
  void set_started(Id id) { set_state(id, CollectiveState::kStarted); }
  void set_completed(Id id) { set_state(id, CollectiveState::kCompleted); }
  void set_failed(Id id) { set_state(id, CollectiveState::kFailed); }
  void set_awaited(Id id);

  /// The newest `count`, or all, of the groups for which wanted() is true; oldest first.
  std::vector<CollectiveRecord> records(std::size_t count = kDefaultCapacity,
                                        const std::function<bool(Group)>& wanted = {}) const;

  /// How many numbered calls the group has made.
  std::uint64_t calls(Group group) const;

  /// The most recent call.
  std::optional<Id> newest() const;

  /// Where a failure began: the group's first pending collective up to this one, else this one. Skips
  /// told_by_wait ones, which may have ended long ago. nullopt if this one is no longer in the ring.
  std::optional<CollectiveRecord> first_pending(Id up_to) const;

 private:
  struct GroupState {
    std::string name;
    std::vector<int> members;
    std::uint64_t sequence = 0;
    std::vector<std::int64_t> bucket_bytes;
    std::size_t next_bucket = 0;
  };

  CollectiveRecord readable(CollectiveRecord call) const;
  bool has(Id id) const { return id < next_ && next_ - id <= ring_.size(); }
  void set_state(Id id, CollectiveState state);

  const std::size_t capacity_;
  mutable std::mutex mutex_;
  std::vector<GroupState> groups_;
  std::vector<CollectiveRecord> ring_;  // grows up to capacity_; the call of id i is at i % capacity_
  Id next_ = 0;
};

/// This process's recorder, for all its groups.
FlightRecorder& flight_recorder();

std::int64_t epoch_now_ns();

/// The content of flight_RANK.json:
///   {"version": 1, "rank", "world_size", "reason", "time", "groups": {NAME: [RANK, ...]}, "collectives": [
///     {"sequence", "group", "op", "dtype", "elements", "tensors", "shape", "peer", "bucket", "state",
///      "created", "ended"}, ...]}
/// Times are seconds since the epoch; peer, bucket and ended are omitted where they do not apply.
struct FlightDump {
  int rank = 0;
  int world_size = 1;
  std::string reason;  ///< why it was written, one line
  std::int64_t time_ns = 0;
  std::vector<CollectiveRecord> collectives;            ///< oldest first
  std::map<std::string, std::vector<int>> groups = {};  ///< their members, as ranks of the whole job
};

std::string to_json(const FlightDump& dump);

/// throws  std::runtime_error, in one line, if the text is not such a document
FlightDump parse_flight_dump(const std::string& text);

/// Where this process writes its ring: $DDPRUN_FLIGHT_DIR; else the folder of TORCHELASTIC_ERROR_FILE (this
/// worker's logs), unless the launcher deletes it; else the folder of set_flight_folder(); else nowhere.
std::optional<std::filesystem::path> flight_folder();
void set_flight_folder(const std::filesystem::path& folder);

/// Called with the folder after each dump, to write another recorder's dump (NCCL's) too.
void set_extra_flight_dump(std::function<void(const std::filesystem::path& folder)> dump);

/// Writes this process's ring into the folder, atomically. Returns the file's path; nullopt without a folder,
/// or, with a warning in the log, if writing fails.
std::optional<std::filesystem::path> write_flight_dump(const FlightRecorder& recorder, int rank,
                                                       int world_size, const std::string& reason) noexcept;

}  // namespace ddprun::ddp
