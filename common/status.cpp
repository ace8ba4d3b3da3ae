#include <ddprun/common/status.h>

#include <unistd.h>

#include <climits>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <type_traits>

#include <ddprun/common/files.h>
#include <ddprun/common/text.h>

namespace ddprun {
namespace {

static_assert(kMaxStatusLine <= PIPE_BUF);
constexpr int kMostStatusLevels = 8;

/// Calls visit(group, name, member) for each member; group: the object that it is in, or "".
template <typename Status, typename Visit>
void for_each_member(Status& status, Visit visit) {
  visit("", "step", status.step);
  visit("", "steps", status.steps);
  visit("", "epoch", status.epoch);
  visit("", "epochs", status.epochs);
  visit("", "phase", status.phase);
  visit("", "report", status.report);
  visit("", "loss", status.loss);
  visit("", "samples", status.samples);
  visit("seconds", "data", status.seconds.data);
  visit("seconds", "compute", status.seconds.compute);
  visit("seconds", "communication", status.seconds.communication);
  visit("seconds", "evaluation", status.seconds.evaluation);
  visit("seconds", "checkpoint", status.seconds.checkpoint);
  visit("seconds", "start", status.seconds.start);
  visit("memory", "resident", status.memory.resident);
  visit("memory", "device", status.memory.device);
}

bool take(const nlohmann::json& json, const char*, std::optional<std::int64_t>& member) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > std::uint64_t{kMost}) return false;
  member = json.get<std::int64_t>();
  return true;
}

bool take(const nlohmann::json& json, const char* group, std::optional<double>& member) {
  if (!json.is_number() || (*group != '\0' && json.get<double>() < 0)) return false;
  member = json.get<double>();
  return true;
}

bool take(const nlohmann::json& json, const char*, std::optional<std::string>& member) {
  if (!json.is_string()) return false;
  member = json.get<std::string>();
  return true;
}

}  // namespace

std::string to_json_line(const WorkerStatus& status) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for_each_member(status, [&](const std::string& group, const char* name, const auto& member) {
    if (!member) return;
    if constexpr (std::is_same_v<std::decay_t<decltype(*member)>, double>)
      if (!std::isfinite(*member) && !group.empty()) return;
    (group.empty() ? object : object[group])[name] = *member;
  });
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::optional<WorkerStatus> parse_status(std::string_view line, const WorkerStatus& before) try {
  const auto object = parse_shallow_json(line, kMostStatusLevels);
  if (!object.is_object()) return std::nullopt;
  WorkerStatus status = before;
  bool valid = true;
  for_each_member(status, [&](const char* group, const char* name, auto& member) {
    const nlohmann::json* from = &object;
    if (*group != '\0') {
      const auto found = object.find(group);
      if (found == object.end() || found->is_null()) return;
      if (!found->is_object()) valid = false;
      from = &*found;
    }
    if (!from->is_object() || !from->contains(name)) return;
    if (!(*from)[name].is_null())
      valid = take((*from)[name], group, member) && valid;
    else if constexpr (std::is_same_v<std::decay_t<decltype(*member)>, double>)
      if (*group == '\0' && member) member = std::numeric_limits<double>::quiet_NaN();
  });
  return valid ? std::optional(status) : std::nullopt;
} catch (const std::invalid_argument&) {
  return std::nullopt;
}

StatusChannel::StatusChannel(std::optional<int> fd) : fd_(pipe_to_write_to(fd)) {}

void StatusChannel::send(const WorkerStatus& status) const {
  if (fd_ < 0) return;
  const std::string line = to_json_line(status);
  if (line.size() > kMaxStatusLine) return;
  [[maybe_unused]] const ssize_t ignored = ::write(fd_, line.data(), line.size());
}

}  // namespace ddprun
