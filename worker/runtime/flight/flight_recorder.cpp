#include <ddprun/flight/flight_recorder.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include <ddprun/common/text.h>

namespace ddprun::ddp {
namespace {

constexpr std::array<std::string_view, 4> kStates = {"scheduled", "started", "completed", "failed"};

}  // namespace

std::string_view to_text(CollectiveState state) { return kStates[static_cast<std::size_t>(state)]; }

std::optional<CollectiveState> collective_state(std::string_view text) {
  const auto found = std::ranges::find(kStates, text);
  if (found == kStates.end()) return std::nullopt;
  return static_cast<CollectiveState>(found - kStates.begin());
}

std::int64_t epoch_now_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string describe(const CollectiveRecord& record) {
  std::string text = record.op;
  if (record.tensors > 0) text += " of " + std::to_string(record.elements) + " " + record.dtype;
  if (record.tensors > 1) text += " in " + std::to_string(record.tensors) + " tensors";
  if (record.peer >= 0)
    text += (record.op == "send" ? " to rank " : " from rank ") + std::to_string(record.peer);
  if (record.bucket >= 0) text += " (bucket " + std::to_string(record.bucket) + ")";
  return text;
}

FlightRecorder::Group FlightRecorder::add_group(const std::string& name, std::vector<int> members) {
  const std::scoped_lock lock(mutex_);
  const auto taken = [&](const std::string& wanted) {
    return std::ranges::any_of(groups_, [&](const GroupState& group) { return group.name == wanted; });
  };
  std::string free = name;
  for (int number = 2; taken(free); ++number) free = name + "#" + std::to_string(number);
  groups_.emplace_back();
  groups_.back().name = free;
  groups_.back().members = std::move(members);
  return groups_.size() - 1;
}

std::map<std::string, std::vector<int>> FlightRecorder::groups() const {
  const std::scoped_lock lock(mutex_);
  std::map<std::string, std::vector<int>> result;
  for (const auto& group : groups_) result[group.name] = group.members;
  return result;
}

void FlightRecorder::expect_buckets(Group group, std::vector<std::int64_t> bucket_bytes) {
  const std::scoped_lock lock(mutex_);
  groups_[group].bucket_bytes = std::move(bucket_bytes);
  groups_[group].next_bucket = 0;
}

int FlightRecorder::bucket_of(GroupState& group, const Collective& call) {
  if (group.next_bucket >= group.bucket_bytes.size() || call.op != std::string_view("all_reduce")) return -1;
  // A hook may send float gradients in half as many bytes.
  const std::int64_t expected = group.bucket_bytes[group.next_bucket];
  if (call.bytes != expected && call.elements * 4 != expected) return -1;
  return static_cast<int>(group.next_bucket++);
}

FlightRecorder::Id FlightRecorder::begin(Group group, const Collective& call) {
  const auto now = epoch_now_ns();
  const std::scoped_lock lock(mutex_);
  GroupState& state = groups_[group];
  Entry entry{.call = call, .group = group, .created_ns = now};
  if (!call.point_to_point) entry.sequence = ++state.sequence;
  entry.bucket = bucket_of(state, call);
  const Id id = next_++;
  if (ring_.size() < capacity_)
    ring_.push_back(entry);
  else
    ring_[id % capacity_] = entry;
  return id;
}

const FlightRecorder::Entry* FlightRecorder::find(Id id) const {
  return id < next_ && next_ - id <= ring_.size() ? &ring_[id % capacity_] : nullptr;
}

void FlightRecorder::set_state(Id id, CollectiveState state) {
  const auto ended = state == CollectiveState::kStarted ? 0 : epoch_now_ns();
  const std::scoped_lock lock(mutex_);
  if (find(id) == nullptr) return;
  Entry& entry = ring_[id % capacity_];
  if (entry.ended_ns != 0) return;
  entry.state = state;
  entry.ended_ns = ended;
}

CollectiveRecord FlightRecorder::to_record(const Entry& entry) const {
  const Collective& call = entry.call;
  return {.sequence = entry.sequence,
          .group = groups_[entry.group].name,
          .op = call.op,
          .dtype = lower_case(call.dtype),
          .elements = call.elements,
          .tensors = call.tensors,
          .shape = {call.shape.begin(), call.shape.begin() + call.dims},
          .peer = call.peer,
          .bucket = entry.bucket,
          .state = entry.state,
          .created_ns = entry.created_ns,
          .ended_ns = entry.ended_ns};
}

std::vector<CollectiveRecord> FlightRecorder::records(std::optional<std::size_t> count) const {
  const std::scoped_lock lock(mutex_);
  std::vector<CollectiveRecord> result;
  const std::size_t kept = std::min(ring_.size(), count.value_or(ring_.size()));
  for (Id id = next_ - kept; id < next_; ++id) result.push_back(to_record(ring_[id % capacity_]));
  return result;
}

std::optional<FlightRecorder::Id> FlightRecorder::newest() const {
  const std::scoped_lock lock(mutex_);
  return next_ == 0 ? std::nullopt : std::optional(next_ - 1);
}

std::optional<CollectiveRecord> FlightRecorder::first_pending(Id up_to) const {
  const std::scoped_lock lock(mutex_);
  const Entry* last = find(up_to);
  if (last == nullptr) return std::nullopt;
  for (Id id = next_ - ring_.size(); id < up_to; ++id) {
    const Entry& entry = ring_[id % capacity_];
    if (entry.group == last->group && entry.ended_ns == 0 && !entry.call.point_to_point &&
        !entry.call.told_by_wait)
      return to_record(entry);
  }
  return to_record(*last);
}

FlightRecorder& flight_recorder() {
  static auto* const recorder = new FlightRecorder;  // never destroyed: static groups may outlive it
  return *recorder;
}

}  // namespace ddprun::ddp
