#include "launcher/rendezvous/message.h"

#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxShown = 40;  // bytes of wrong input in a message

std::string dumped(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string shown(const std::string& got) { return single_quoted(shortened(printable(got), kMaxShown)); }

/// The text as UTF-8 of at most `most` bytes, and twice as many in JSON, where one byte may take six.
std::string fitting(const std::string& text, std::size_t most) {
  for (std::size_t size = most;; size -= size / 4) {
    const std::string in_json = dumped(shortened(text, size));
    std::string result = Json::parse(in_json).get<std::string>();
    if (result.size() <= most && in_json.size() <= 2 * most) return result;
  }
}

/// Writes a message's fields to JSON.
class Writer {
 public:
  explicit Writer(const char* type) { object_["type"] = type; }

  void integer(const char* field, int value, int, int) { object_[field] = value; }
  void optional_integer(const char* field, const std::optional<int>& value, int, int) {
    if (value) object_[field] = *value;
  }
  void optional_time(const char* field, const std::optional<std::int64_t>& value) {
    if (value) object_[field] = *value;
  }
  void flag(const char* field, bool value) { object_[field] = value; }
  void optional_flag(const char* field, bool value) {
    if (value) object_[field] = true;
  }
  void text(const char* field, const std::string& value, std::size_t most) {
    object_[field] = fitting(value, most);
  }
  void optional_text(const char* field, const std::string& value, std::size_t most) {
    if (!value.empty()) text(field, value, most);
  }
  void choice(const char* field, const std::string& value, const std::vector<std::string>&) {
    ensure(!value.empty(), "a failure is not a success");
    object_[field] = value;
  }

  std::string result() const { return dumped(object_); }

 private:
  Json object_;
};

/// Reads a message's fields from JSON.
class Reader {
 public:
  Reader(const char* type, const Json& object) : type_(type), object_(object) {}

  void integer(const char* field, int& value, int least, int most) const {
    const Json* found = find(field);
    if (found == nullptr || !is_within(*found, least, most)) fail(field, integer_from(least, most), found);
    value = found->get<int>();
  }

  void optional_integer(const char* field, std::optional<int>& value, int least, int most) const {
    if (find(field) != nullptr) integer(field, value.emplace(), least, most);
  }

  /// Milliseconds since 1970.
  void optional_time(const char* field, std::optional<std::int64_t>& value) const {
    constexpr double kMost = 1e15;  // 30,000 years
    const Json* found = find(field);
    if (found == nullptr) return;
    if (!is_within(*found, -kMost, kMost)) fail(field, "a time in milliseconds", found);
    value = found->get<std::int64_t>();
  }

  void flag(const char* field, bool& value) const {
    const Json* found = find(field);
    if (found == nullptr || !found->is_boolean()) fail(field, "true or false", found);
    value = found->get<bool>();
  }

  void optional_flag(const char* field, bool& value) const {
    if (find(field) != nullptr) flag(field, value);
  }

  void text(const char* field, std::string& value, std::size_t most) const {
    const Json* found = find(field);
    if (found == nullptr || !found->is_string() || found->get_ref<const std::string&>().size() > most)
      fail(field, "a text of at most " + std::to_string(most) + " bytes", found);
    value = found->get<std::string>();
  }

  void optional_text(const char* field, std::string& value, std::size_t most) const {
    if (find(field) != nullptr) text(field, value, most);
  }

  void choice(const char* field, std::string& value, const std::vector<std::string>& names) const {
    const Json* found = find(field);
    const auto name = std::ranges::find_if(names, [&](const auto& one) { return found && *found == one; });
    if (name == names.end()) fail(field, one_of(names), found);
    value = *name;
  }

 private:
  const Json* find(const char* field) const {
    const auto found = object_.find(field);
    return found == object_.end() ? nullptr : &*found;
  }

  static bool is_within(const Json& value, double least, double most) {
    const double number = value.is_number_integer() ? value.get<double>() : NAN;  // exact for every int
    return least <= number && number <= most;
  }

  [[noreturn]] void fail(const char* field, const std::string& expected, const Json* got) const {
    throw ProtocolError(std::string(type_) + ": expected " + field + " to be " + expected + ", got " +
                        (got == nullptr ? "nothing" : shown(dumped(*got))));
  }

  const char* type_;
  const Json& object_;
};

// The fields of each message on the wire: visit(fields, message) writes with a Writer and reads with a
// Reader. Integers have a range, texts a limit in bytes.

constexpr int kMaxCount = 1'000'000;      ///< of nodes, ranks and workers
constexpr int kMaxRound = 1'000'000'000;  ///< of rounds and restarts: others are counted on from it
constexpr int kMaxPort = 65535;
constexpr int kMaxSignal = 64;
constexpr int kMaxExitCode = 255;
constexpr std::size_t kMaxText = 4096;

/// How a node's part of the round failed, as "kind"; "" if it did not.
const char* kind_of(const AttemptEnd& end) {
  if (const auto* failed = std::get_if<WorkerFailed>(&end))
    return failed->status.kind == ExitStatus::Kind::kKilled ? "killed" : "exited";
  if (std::holds_alternative<Hung>(end)) return "hang";
  if (std::holds_alternative<TimedOut>(end)) return "timeout";
  if (std::holds_alternative<SignalReceived>(end)) return "signal";
  if (std::holds_alternative<EndedByPeers>(end)) return "other-node";
  return std::holds_alternative<StartFailed>(end) ? "start_failed" : "";
}

/// The end as this alternative; a reader sets it first.
template <typename Alternative>
Alternative& as(AttemptEnd& end) {
  auto* held = std::get_if<Alternative>(&end);
  return held != nullptr ? *held : end.emplace<Alternative>();
}

void visit(auto& fields, AttemptEnd& end) {
  std::string kind = kind_of(end);
  fields.choice("kind", kind,
                {"exited", "killed", "hang", "timeout", "signal", "other-node", "start_failed"});
  if (kind == "exited") {
    fields.integer("exit_code", as<WorkerFailed>(end).status.code, 1, kMaxExitCode);
  } else if (kind == "killed") {
    ExitStatus& status = as<WorkerFailed>(end).status;
    status.kind = ExitStatus::Kind::kKilled;
    fields.integer("signal", status.signal, 1, kMaxSignal);
    fields.flag("core_dumped", status.core_dumped);
  } else if (kind == "hang") {
    as<Hung>(end);
  } else if (kind == "timeout") {
    as<TimedOut>(end);
  } else if (kind == "other-node") {
    as<EndedByPeers>(end);
  } else if (kind == "signal") {
    fields.integer("signal", as<SignalReceived>(end).signal, 1, kMaxSignal);
  } else {
    fields.integer("exit_code", as<StartFailed>(end).exit_code, 1, kMaxExitCode);
  }
}

void visit(auto& fields, Join& join) {
  fields.text("run_id", join.run_id, kMaxName);
  fields.text("node", join.node, kMaxName);
  fields.optional_integer("node_rank", join.node_rank, 0, kMaxCount);
  fields.integer("min_nodes", join.min_nodes, 1, kMaxCount);
  fields.integer("max_nodes", join.max_nodes, 1, kMaxCount);
  fields.integer("workers", join.workers, 1, kMaxCount);
  fields.text("address", join.address, kMaxName);
  fields.text("role", join.role, kMaxName);
  fields.text("program", join.program, kMaxName);
  fields.integer("former_round", join.former.number, -1, kMaxRound);
  fields.integer("former_nodes", join.former.nodes, 0, kMaxCount);
  fields.integer("former_rank", join.former.group_rank, 0, kMaxCount);
  fields.integer("former_restarts", join.former.restarts, 0, kMaxRound);
  fields.integer("former_restarts_used", join.former.restarts_used, 0, kMaxCount);
  fields.optional_integer("former_pause_ms", join.former.pause_ms, 0, INT_MAX);
  fields.flag("nobody_listens", join.former.nobody_listens);
  fields.optional_text("former_job", join.former.job, kMaxName);
  fields.text("id", join.id, kMaxName);
  fields.optional_text("unfit", join.unfit, kMaxName);
  fields.optional_time("clock_ms", join.clock_ms);
}

void visit(auto& fields, Leading& leading) {
  fields.integer("round", leading.round, 0, kMaxRound);
  fields.integer("port", leading.port, 1, kMaxPort);
}

void visit(auto& fields, Failed& failed) {
  fields.integer("round", failed.round, 0, kMaxRound);
  visit(fields, failed.end);
  fields.text("text", failed.text, kMaxText);
  fields.flag("in_place", failed.in_place);
  fields.optional_flag("alone", failed.alone);
}

void visit(auto& fields, Ended& ended) {
  fields.integer("round", ended.round, 0, kMaxRound);
  const auto to_int = [&](std::int64_t number) {
    if (number > INT_MAX) ended.reached.starts_over = true;  // it does not tell how far
    return static_cast<int>(std::min<std::int64_t>(number, INT_MAX));
  };
  std::optional<int> epoch, step;
  if (ended.reached.step >= 0) epoch = to_int(ended.reached.epoch), step = to_int(ended.reached.step);
  fields.optional_integer("epoch", epoch, 0, INT_MAX);
  fields.optional_integer("step", step, 0, INT_MAX);
  fields.optional_flag("starts_over", ended.reached.starts_over);
  fields.optional_flag("drained", ended.drained);
  ended.reached.epoch = epoch.value_or(0), ended.reached.step = step.value_or(-1);
}

/// Succeeded and Lead: only the round.
void visit(auto& fields, auto& message) { fields.integer("round", message.round, 0, kMaxRound); }

void visit(auto& fields, Leave& leave) { fields.integer("signal", leave.signal, 1, kMaxSignal); }

void visit(auto& fields, Summary& summary) {
  fields.integer("round", summary.round, 0, kMaxRound);
  fields.text("rank", summary.rank, kMaxSummary);
}

void visit(auto& fields, Drain& drain) {
  fields.integer("request", drain.request, 0, INT_MAX);
  fields.text("node", drain.node, kMaxName);
  fields.optional_text("problem", drain.problem, kMaxName);
}

void visit(auto& fields, Waiting& waiting) {
  fields.integer("present", waiting.present, 0, kMaxCount);
  fields.integer("min_nodes", waiting.min_nodes, 1, kMaxCount);
  fields.integer("max_nodes", waiting.max_nodes, 1, kMaxCount);
  fields.flag("spare", waiting.spare);
  fields.integer("node_timeout_ms", waiting.node_timeout_ms, 0, INT_MAX);
  fields.optional_integer("summary_ms", waiting.summary_ms, 1, INT_MAX);
}

void visit(auto& fields, Refused& refused) {
  fields.text("reason", refused.reason, kMaxText);
  fields.flag("other_job", refused.other_job);
}

void visit(auto& fields, Start& start) {
  fields.integer("round", start.number, 0, kMaxRound);
  fields.integer("group_rank", start.group_rank, 0, kMaxCount);
  fields.integer("group_world_size", start.group_world_size, 1, kMaxCount);
  fields.integer("first_rank", start.first_rank, 0, kMaxCount);
  fields.integer("world_size", start.world_size, 1, kMaxCount);
  fields.integer("first_role_rank", start.first_role_rank, 0, kMaxCount);
  fields.integer("role_world_size", start.role_world_size, 1, kMaxCount);
  fields.text("master_addr", start.master_addr, kMaxName);
  fields.integer("master_port", start.master_port, 1, kMaxPort);
  fields.text("run_id", start.run_id, kMaxName);
  fields.flag("in_place", start.in_place);
  fields.integer("restart_count", start.restart_count, 0, kMaxRound);
  fields.integer("restarts_used", start.restarts_used, 0, kMaxCount);
  fields.integer("max_restarts", start.max_restarts, 0, kMaxCount);
  fields.text("reason", start.reason, kMaxText);
  fields.optional_flag("coordinator_stands_by", start.coordinator_stands_by);
  fields.optional_text("job", start.job, kMaxName);
}

void visit(auto& fields, Stop& stop) {
  fields.integer("round", stop.round, 0, kMaxRound);
  fields.text("reason", stop.reason, kMaxText);
  fields.optional_flag("dump_stacks", stop.dump_stacks);
  fields.optional_integer("user_signal", stop.user_signal, 1, kMaxSignal);
  fields.integer("left", stop.left, 0, kMaxCount);
  bool hands_over = stop.hands_over.has_value();
  fields.optional_flag("hands_over", hands_over);
  if (!hands_over) return;
  Handover& handover = stop.hands_over ? *stop.hands_over : stop.hands_over.emplace();
  fields.integer("restarts", handover.restarts, 0, kMaxRound);
  fields.integer("restarts_used", handover.restarts_used, 0, kMaxCount);
  fields.integer("pause_ms", handover.pause_ms, 0, INT_MAX);
}

void visit(auto& fields, End& end) {
  fields.integer("exit_code", end.exit_code, 0, kMaxExitCode);
  fields.text("reason", end.reason, kMaxText);
  fields.optional_flag("dump_stacks", end.dump_stacks);
  fields.optional_integer("user_signal", end.user_signal, 1, kMaxSignal);
}

void visit(auto& fields, DrainAnswer& answer) {
  fields.integer("request", answer.request, 0, INT_MAX);
  fields.flag("accepted", answer.accepted);
  fields.text("text", answer.text, kMaxText);
  fields.optional_flag("passes", answer.passes);
}

void visit(auto& fields, Drained& drained) {
  fields.integer("round", drained.round, 0, kMaxRound);
  fields.text("reason", drained.reason, kMaxText);
  fields.flag("replaced", drained.replaced);
  fields.optional_flag("failed", drained.failed);
}

void visit(auto& fields, Beat& beat) {
  fields.optional_integer("silent_ms", beat.silent_ms, 0, INT_MAX);
  fields.optional_integer("unknown_ms", beat.unknown_ms, 0, INT_MAX);
  fields.optional_integer("begun", beat.begun, 0, kMaxRound);
  fields.optional_integer("running", beat.running, 0, kMaxRound);
}

/// The types of the messages, in their order in the variant.
template <typename Messages>
constexpr std::array<const char*, std::variant_size_v<Messages>> kTypes{};
template <>
constexpr std::array kTypes<NodeMessage>{"join",  "leading", "failed", "succeeded", "ended",
                                         "leave", "summary", "beat",   "drain"};
template <>
constexpr std::array kTypes<CoordinatorMessage>{"waiting", "refused", "lead",         "start",  "stop",
                                                "end",     "beat",    "drain_answer", "drained"};

template <typename Messages>
std::string write(const Messages& messages) {
  Writer fields(kTypes<Messages>.at(messages.index()));
  std::visit([&](auto message) { visit(fields, message); }, messages);
  std::string json = fields.result();
  ensure(json.size() <= kMaxMessage, "a message fits into a frame");
  return json;
}

Json parse_object(std::string_view text) {
  Json object;
  try {
    object = parse_shallow_json(text);
  } catch (const std::invalid_argument& error) {
    throw ProtocolError("expected a message, got " + shown(std::string(text)) + ", which " + error.what());
  }
  if (!object.is_object() || !object.contains("type") || !object["type"].is_string())
    throw ProtocolError("expected a message: a JSON object with a \"type\", got " + shown(std::string(text)));
  return object;
}

/// Reads the message whose type the object names.
template <typename Messages, std::size_t kIndex = 0>
Messages read(const Json& object, const char* sender) {
  if constexpr (kIndex == std::variant_size_v<Messages>) {
    throw ProtocolError(std::string("expected a message of a ") + sender + ", got one of type " +
                        shown(dumped(object["type"])));
  } else {
    constexpr const char* kType = kTypes<Messages>[kIndex];
    if (object["type"] != kType) return read<Messages, kIndex + 1>(object, sender);
    const Reader fields(kType, object);
    std::variant_alternative_t<kIndex, Messages> message;
    visit(fields, message);
    return message;
  }
}

}  // namespace

std::string encode(const NodeMessage& message) { return write(message); }
std::string encode(const CoordinatorMessage& message) { return write(message); }

NodeMessage decode_node_message(std::string_view json) {
  return read<NodeMessage>(parse_object(json), "node");
}

CoordinatorMessage decode_coordinator_message(std::string_view json) {
  return read<CoordinatorMessage>(parse_object(json), "coordinator");
}

}  // namespace ddprun::launcher
