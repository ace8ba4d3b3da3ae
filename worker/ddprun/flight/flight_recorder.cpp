#include <ddprun/flight/flight_recorder.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>

namespace ddprun::ddp {
namespace {

constexpr std::array<std::string_view, 4> kStates = {"scheduled", "started", "completed", "failed"};
constexpr int kVersion = 1;
constexpr double kSecond = 1e9;

struct Settings {
  std::mutex mutex;
  std::filesystem::path folder;
  std::function<void(const std::filesystem::path&)> extra;
};

Settings& settings() {
  static auto* const settings = new Settings;  // for the watchdog's thread too, which may outlive statics
  return *settings;
}

std::int64_t nanoseconds(double seconds) {
  if (!(std::abs(seconds) < 9e9)) throw std::runtime_error("a time is out of range");
  return std::llround(seconds * kSecond);
}

/// True below a folder that ddprun removes when the job ends: "ddprun-" and a hexadecimal id, directly in the
/// folder for temporary files.
bool is_launchers_temporary(const std::filesystem::path& path) {
  const auto relative = path.lexically_relative(temp_folder());
  const std::string first = relative.empty() ? "" : relative.begin()->string();
  const std::string_view prefix = "ddprun-";
  return first.starts_with(prefix) && first.size() >= prefix.size() + 8 &&
         first.find_first_not_of("0123456789abcdef-", prefix.size()) == std::string::npos;
}

}  // namespace

std::string_view to_text(CollectiveState state) { return kStates[static_cast<std::size_t>(state)]; }

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
  std::string free = name;
  for (int number = 2; std::ranges::find(groups_, free, &GroupState::name) != groups_.end(); ++number)
    free = name + "#" + std::to_string(number);
  groups_.push_back({free, std::move(members), 0, {}, 0});
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

FlightRecorder::Id FlightRecorder::begin(Group of, CollectiveRecord call) {
  call.created_ns = epoch_now_ns();
  const std::scoped_lock lock(mutex_);
  GroupState& group = groups_[of];
  call.group_number = of;
  if (!call.point_to_point) call.sequence = ++group.sequence;
  if (group.next_bucket < group.bucket_bytes.size() && call.op == "all_reduce") {
    // A hook may send float gradients in half as many bytes.
    const std::int64_t expected = group.bucket_bytes[group.next_bucket];
    if (call.bytes == expected || call.elements * 4 == expected)
      call.bucket = static_cast<int>(group.next_bucket++);
  }
  if (ring_.size() < capacity_)
    ring_.push_back(std::move(call));
  else
    ring_[next_ % capacity_] = std::move(call);
  return next_++;
}

void FlightRecorder::set_state(Id id, CollectiveState state) {
  const auto ended = state == CollectiveState::kStarted ? 0 : epoch_now_ns();
  const std::scoped_lock lock(mutex_);
  if (!has(id)) return;
  CollectiveRecord& call = ring_[id % capacity_];
  if (call.ended_ns != 0) return;
  call.state = state;
  call.ended_ns = ended;
}

void FlightRecorder::set_awaited(Id id) {
  const auto now = epoch_now_ns();
  const std::scoped_lock lock(mutex_);
  if (has(id)) ring_[id % capacity_].awaited_ns = now;
}

/// With what is too slow for begin().
CollectiveRecord FlightRecorder::readable(CollectiveRecord call) const {
  call.group = groups_[call.group_number].name;
  call.dtype = lower_case(call.dtype);
  return call;
}

std::vector<CollectiveRecord> FlightRecorder::records(std::size_t count,
                                                      const std::function<bool(Group)>& wanted) const {
  const std::scoped_lock lock(mutex_);
  std::vector<CollectiveRecord> result;
  for (Id id = next_; id > next_ - ring_.size() && result.size() < count; --id)
    if (const auto& call = ring_[(id - 1) % capacity_]; !wanted || wanted(call.group_number))
      result.push_back(readable(call));
  std::ranges::reverse(result);
  return result;
}

std::uint64_t FlightRecorder::calls(Group group) const {
  const std::scoped_lock lock(mutex_);
  return groups_[group].sequence;
}

std::optional<FlightRecorder::Id> FlightRecorder::newest() const {
  const std::scoped_lock lock(mutex_);
  return next_ == 0 ? std::nullopt : std::optional(next_ - 1);
}

std::optional<CollectiveRecord> FlightRecorder::first_pending(Id up_to) const {
  const std::scoped_lock lock(mutex_);
  if (!has(up_to)) return std::nullopt;
  const auto& last = ring_[up_to % capacity_];
  for (Id id = next_ - ring_.size(); id < up_to; ++id) {
    const auto& call = ring_[id % capacity_];
    if (call.group_number == last.group_number && call.ended_ns == 0 && !call.point_to_point &&
        !call.told_by_wait)
      return readable(call);
  }
  return readable(last);
}

FlightRecorder& flight_recorder() {
  static auto* const recorder = new FlightRecorder;  // never destroyed: static groups may outlive it
  return *recorder;
}

// Called by nlohmann's library, which finds them by name.

void from_json(const nlohmann::json& item, CollectiveRecord& call) {
  for (const auto& [name, text] : {std::pair{"group", &call.group}, {"op", &call.op}, {"dtype", &call.dtype}})
    *text = one_line(item.at(name).get<std::string>());
  item.at("sequence").get_to(call.sequence);
  item.at("elements").get_to(call.elements);
  item.at("tensors").get_to(call.tensors);
  item.at("shape").get_to(call.shape);
  call.peer = item.value("peer", -1);
  call.bucket = item.value("bucket", -1);
  const auto state = std::ranges::find(kStates, item.at("state").get<std::string>());
  if (state == kStates.end()) throw std::runtime_error("unknown state");
  call.state = static_cast<CollectiveState>(state - kStates.begin());
  call.created_ns = nanoseconds(item.at("created").get<double>());
  call.ended_ns = nanoseconds(item.value("ended", 0.0));
}

void to_json(nlohmann::json& item, const CollectiveRecord& call) {
  item = {{"sequence", call.sequence}, {"group", call.group},         {"op", call.op},
          {"dtype", call.dtype},       {"elements", call.elements},   {"tensors", call.tensors},
          {"shape", call.shape},       {"state", to_text(call.state)}};
  item["created"] = static_cast<double>(call.created_ns) / kSecond;
  if (call.peer >= 0) item["peer"] = call.peer;
  if (call.bucket >= 0) item["bucket"] = call.bucket;
  if (call.ended_ns != 0) item["ended"] = static_cast<double>(call.ended_ns) / kSecond;
}

std::string to_json(const FlightDump& dump) {
  const nlohmann::json document = {{"version", kVersion},
                                   {"rank", dump.rank},
                                   {"world_size", dump.world_size},
                                   {"reason", dump.reason},
                                   {"time", static_cast<double>(dump.time_ns) / kSecond},
                                   {"groups", dump.groups},
                                   {"collectives", dump.collectives}};
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

FlightDump parse_flight_dump(const std::string& text) {
  try {
    const auto document = nlohmann::json::parse(text);
    if (document.at("version") != kVersion) throw std::runtime_error("unknown version");
    FlightDump dump;
    document.at("rank").get_to(dump.rank);
    document.at("world_size").get_to(dump.world_size);
    if (dump.rank < 0 || dump.rank >= dump.world_size) throw std::runtime_error("rank is out of range");
    dump.reason = one_line(document.at("reason").get<std::string>());
    dump.time_ns = nanoseconds(document.at("time").get<double>());
    document.at("collectives").get_to(dump.collectives);
    for (const auto& [name, members] : document.at("groups").items())
      dump.groups[one_line(name)] = members.get<std::vector<int>>();
    return dump;
  } catch (const std::exception& error) {
    throw std::runtime_error(one_line(std::string("not a flight record: ") + error.what()));
  }
}

std::optional<std::filesystem::path> flight_folder() {
  if (const auto wanted = process_env("DDPRUN_FLIGHT_DIR"); wanted && !wanted->empty()) return *wanted;
  if (const auto error_file = process_env("TORCHELASTIC_ERROR_FILE"); error_file && !error_file->empty())
    if (!is_launchers_temporary(*error_file)) return std::filesystem::path(*error_file).parent_path();
  const std::scoped_lock lock(settings().mutex);
  return settings().folder.empty() ? std::nullopt : std::optional(settings().folder);
}

void set_flight_folder(const std::filesystem::path& folder) {
  const std::scoped_lock lock(settings().mutex);
  settings().folder = std::filesystem::absolute(folder);
}

void set_extra_flight_dump(std::function<void(const std::filesystem::path&)> dump) {
  const std::scoped_lock lock(settings().mutex);
  settings().extra = std::move(dump);
}

std::optional<std::filesystem::path> write_flight_dump(const FlightRecorder& recorder, int rank,
                                                       int world_size, const std::string& reason) noexcept {
  try {
    const auto folder = flight_folder();
    if (!folder) return std::nullopt;
    std::filesystem::create_directories(*folder);
    const auto path = *folder / ("flight_" + std::to_string(rank) + ".json");
    write_file_atomic(
        path, to_json({rank, world_size, reason, epoch_now_ns(), recorder.records(), recorder.groups()}));
    if (const auto extra = (std::scoped_lock(settings().mutex), settings().extra)) extra(*folder);
    return path;
  } catch (const std::exception& error) {
    log_warning(std::string("cannot write the flight record: ") + error.what());
    return std::nullopt;
  }
}

}  // namespace ddprun::ddp
