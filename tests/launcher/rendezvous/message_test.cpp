#include "launcher/rendezvous/message.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;
using test::ContainsSubstring;

AttemptEnd exited(int code) { return WorkerFailed{ExitStatus::exited(code)}; }

/// Every message of a node, in every form.
std::vector<NodeMessage> node_messages() {
  return {Join{"job 1", "n1", 3, 2, 4, 8, "10.0.0.1", "actor", "train.py", {}, "5e7"},
          Join{"", "n1", std::nullopt, 1, 1'000'000, 1'000'000, ""},
          Join{"", "n1", std::nullopt, 1, 2, 1, "", "", "", {4, 2, 1, 1, true, 1, 500}},
          Leading{0, 65535},
          Failed{2, exited(7), "rank 3 failed with exit code 7: out of range"},
          Failed{2, exited(255), ""},
          Failed{2, WorkerFailed{ExitStatus::killed(9)}, "killed"},
          Failed{2, WorkerFailed{ExitStatus::killed(64, true)}, "core"},
          Failed{2, Hung{}, "hang"},
          Failed{2, TimedOut{}, "timeout"},
          Failed{2, SignalReceived{15}, "signal"},
          Failed{2, StartFailed{127}, "not found"},
          Failed{2, EndedByPeers{}, "cannot continue"},
          Failed{2, WorkerFailed{ExitStatus::killed(9)}, "killed", true},
          Succeeded{1'000'000'000},
          Ended{1},
          Ended{1, {2, 300, true}},
          Ended{1, {}, true},
          Drain{7, "n2"},
          Drain{0, "n2", "train: the disk does not answer"},
          Leave{2},
          Summary{3, R"({"rank": 4, "state": "running"})"},
          Beat{},
          Beat{2147483647, 0, 1}};
}

/// Every message of the coordinator.
std::vector<CoordinatorMessage> coordinator_messages() {
  return {Waiting{3, 2, 4, false, 10'000},
          Waiting{0, 1, 1, true, 0},
          Waiting{1, 1, 2, false, 0, 1000},
          Refused{"node rank 1 is taken"},
          DrainAnswer{7, true, "node n2 leaves the job; it was standing by"},
          Drained{5, "node n2 is drained", true},
          Drained{5, "node n2 leaves the job: train: the disk does not answer", false, true},
          Lead{5},
          Start{.number = 1,
                .group_rank = 2,
                .group_world_size = 3,
                .first_rank = 4,
                .world_size = 24,
                .first_role_rank = 3,
                .role_world_size = 20,
                .restart_count = 6,
                .restarts_used = 1,
                .master_addr = "10.0.0.1",
                .master_port = 29'500,
                .run_id = "job 1",
                .max_restarts = 2,
                .reason = ""},
          Start{.number = 0,
                .group_rank = 0,
                .group_world_size = 1,
                .first_rank = 0,
                .world_size = 1,
                .in_place = true,
                .master_addr = "",
                .master_port = 1,
                .run_id = "none",
                .max_restarts = 0,
                .reason = "n2 was lost; node n3 takes its ranks"},
          Stop{1, "n2 was lost"},
          Stop{1, "rank 3 hangs", true},
          Stop{1, "node a leaves", false, Handover{3, 1, 500}, {}, 2},
          End{137, "rank 0 was killed"},
          Stop{1, "node a leaves", false, {}, 2},
          End{124, "the job timed out", true},
          End{130, "node a received SIGINT", false, 2},
          Beat{},
          Beat{2147483647, 0}};
}

NodeMessage decode(const NodeMessage&, std::string_view text) { return decode_node_message(text); }
CoordinatorMessage decode(const CoordinatorMessage&, std::string_view text) {
  return decode_coordinator_message(text);
}

/// Calls the function with every message.
template <typename Function>
void for_each_message(Function function) {
  for (const NodeMessage& message : node_messages()) function(message);
  for (const CoordinatorMessage& message : coordinator_messages()) function(message);
}

std::string message_of(const std::string& text) {
  try {
    decode_node_message(text);
  } catch (const ProtocolError& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("every message comes back as it was", "[message]") {
  for_each_message([](const auto& message) {
    const std::string text = encode(message);
    INFO(text);
    CHECK(decode(message, text) == message);
    CHECK(encode(decode(message, text)) == text);
  });
}

TEST_CASE("what other versions add to a message is ignored", "[message]") {
  for_each_message([](const auto& message) {
    json object = json::parse(encode(message));
    object["new"] = {{"deep", {1, 2}}};
    CHECK(decode(message, object.dump()) == message);
  });
}

TEST_CASE("a message without one of its fields is refused by its name", "[message]") {
  for_each_message([](const auto& message) {
    const json object = json::parse(encode(message));
    for (const auto& [field, value] : object.items()) {
      const std::set<std::string> may_be_missing = {
          "type",       "node_rank",       "summary_ms", "silent_ms", "dump_stacks", "unknown_ms",
          "hands_over", "former_pause_ms", "epoch",      "step",      "starts_over", "user_signal",
          "begun",      "drained",         "problem",    "failed"};
      if (may_be_missing.contains(field)) continue;
      json without = object;
      without.erase(field);
      INFO(without.dump());
      const std::string start =
          object["type"].template get<std::string>() + ": expected " + field + " to be ";
      CHECK_THROWS_WITH(decode(message, without.dump()),
                        ContainsSubstring(start) && ContainsSubstring(", got nothing"));
    }
  });
}

TEST_CASE("a field of another type is refused by its name", "[message]") {
  for_each_message([](const auto& message) {
    const json object = json::parse(encode(message));
    for (const auto& [field, value] : object.items()) {
      for (const json& wrong : {json(nullptr), json(true), json(1), json(1.0), json("1"), json::array({1})}) {
        if (wrong.type() == value.type() || (value.is_number_integer() && wrong.is_number_integer()))
          continue;
        json other = object;
        other[field] = wrong;
        INFO(other.dump());
        CHECK_THROWS_AS(decode(message, other.dump()), ProtocolError);
        if (field == "type") continue;
        CHECK_THROWS_WITH(decode(message, other.dump()),
                          ContainsSubstring(": expected " + field + " to be ") &&
                              ContainsSubstring(", got '" + wrong.dump() + "'"));
      }
    }
  });
}

TEST_CASE("a number out of its range is refused", "[message]") {
  struct Range {
    int least, most;
    std::vector<const char*> fields;
  };
  const Range ranges[] = {
      {0,
       1'000'000,
       {"node_rank", "present", "group_rank", "first_rank", "first_role_rank", "max_restarts", "former_nodes",
        "former_rank", "restarts_used", "former_restarts_used", "left"}},
      {-1, 1'000'000'000, {"former_round"}},  // ddprun counts on from it
      {0, 1'000'000'000, {"round", "restart_count", "former_restarts", "restarts", "begun"}},
      {1,
       1'000'000,
       {"min_nodes", "max_nodes", "workers", "group_world_size", "world_size", "role_world_size"}},
      {1, 65535, {"port", "master_port"}},
      {1, 64, {"signal", "user_signal"}},
      {1, 2147483647, {"summary_ms"}},
      {0,
       2147483647,
       {"node_timeout_ms", "silent_ms", "unknown_ms", "pause_ms", "former_pause_ms", "epoch", "step",
        "request"}}};
  const auto range_of = [&](const std::string& type, const std::string& field) -> std::pair<int, int> {
    if (field == "exit_code") return {type == "end" ? 0 : 1, 255};  // a failure is not 0
    for (const Range& range : ranges)
      if (std::find(range.fields.begin(), range.fields.end(), field) != range.fields.end())
        return {range.least, range.most};
    FAIL("no range of " << field);
    return {};
  };
  for_each_message([&](const auto& message) {
    const json object = json::parse(encode(message));
    for (const auto& [field, value] : object.items()) {
      if (!value.is_number()) continue;
      INFO(object.dump() << " " << field);
      const auto [least, most] = range_of(object["type"], field);
      const auto with = [&, &name = field](const json& number) {
        json other = object;
        other[name] = number;
        return other.dump();
      };
      CHECK_NOTHROW(decode(message, with(least)));
      CHECK_NOTHROW(decode(message, with(most)));
      for (const std::int64_t wrong : {std::int64_t{least} - 1, std::int64_t{most} + 1, INT64_MIN, INT64_MAX})
        CHECK_THROWS_WITH(
            decode(message, with(wrong)),
            ContainsSubstring("expected " + field + " to be an integer from " + std::to_string(least) +
                              " to " + std::to_string(most) + ", got '" + std::to_string(wrong)));
      CHECK_THROWS_AS(decode(message, with(UINT64_MAX)), ProtocolError);
      CHECK_THROWS_AS(decode(message, with(1e300)), ProtocolError);
    }
  });
}

TEST_CASE("how a node failed is one of the known kinds", "[message]") {
  json object = json::parse(encode(Failed{0, Hung{}, ""}));
  object["kind"] = "succeeded";
  CHECK(message_of(object.dump()) ==
        "failed: expected kind to be exited, killed, hang, timeout, signal, other-node or start_failed, got "
        "'\"succeeded\"'");
  CHECK_THROWS_AS(encode(Failed{0, AllSucceeded{}, ""}), std::logic_error);
}

TEST_CASE("text that is not a message is refused in one short, printable line", "[message]") {
  const std::string cases[] = {
      "",
      "{",
      "x",
      "[]",
      "1",
      "null",
      "\"join\"",
      "{}",
      "{\"type\":1}",
      "{\"type\":\"nope\"}",
      "\xff",
      "{} {}",
      "\x1b[31m\n",
      "{\"type\":\"join\"",
      "{\"type\":\"\xc2\x9b\"}",
      std::string("\0", 1),
      std::string(16'000, 'x'),
      std::string(16'000, '['),
      "{\"type\":\"" + std::string(16'000, 'x') + "\"}",
      "{\"type\":\"leave\",\"signal\":\"\\u001b\\n\xe2\x80\xae" + std::string(16'000, 'x') + "\"}"};
  for (const std::string& text : cases) {
    const std::string message = message_of(text);
    INFO(text.substr(0, 80) << " -> " << message);
    CHECK_THAT(message, ContainsSubstring("expected"));
    CHECK(message.size() < 160);
    for (const char* bad : {"\n", "\x1b", "\xff", "\xc2\x9b", "\xe2\x80\xae"})
      CHECK(message.find(bad) == std::string::npos);
  }
  CHECK_THAT(message_of(std::string(1000, '[')), ContainsSubstring("nested deeper than 32 levels"));
  CHECK_THAT(message_of("GET / HTTP/1.1"), ContainsSubstring("got 'GET / HTTP/1.1'"));
}

TEST_CASE("a side's messages are not taken for the other's", "[message]") {
  CHECK_THROWS_WITH(decode_coordinator_message(encode(Leave{2})),
                    ContainsSubstring("expected a message of a coordinator, got one of type '\"leave\"'"));
  CHECK_THROWS_WITH(decode_node_message(encode(Lead{2})),
                    ContainsSubstring("expected a message of a node, got one of type '\"lead\"'"));
}

TEST_CASE("a text that is too long is refused, and cut by who sends it", "[message]") {
  for_each_message([](const auto& message) {
    const json object = json::parse(encode(message));
    for (const auto& [field, value] : object.items()) {
      if (!value.is_string() || field == "type" || field == "kind") continue;
      const std::size_t most = field == "rank"                        ? kMaxSummary
                               : field == "text" || field == "reason" ? 4096
                                                                      : 1024;
      json other = object;
      other[field] = std::string(most, 'x');
      CHECK(encode(decode(message, other.dump())) == other.dump());
      other[field] = std::string(most + 1, 'x');
      CHECK_THROWS_WITH(decode(message, other.dump()),
                        ContainsSubstring("expected " + field + " to be a text of at most "));
    }
  });
  const auto sent =
      std::get<Failed>(decode_node_message(encode(Failed{0, exited(1), std::string(5000, 'x')})));
  CHECK(sent.text == std::string(4093, 'x') + "...");
}

TEST_CASE("a message fits into a frame, whatever its texts are", "[message]") {
  for (const std::string& bytes :
       {std::string("\0", 1), std::string("\x01"), std::string("\""), std::string("\xff"),
        std::string("\x80"), std::string("\xc3\xa9"), std::string("\xf0\x9f\x98\x80")}) {
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{600}, std::size_t{2000}, std::size_t{100'000}}) {
      std::string text;
      for (std::size_t i = 0; i < count; ++i) text += bytes;
      for (const NodeMessage& message :
           {NodeMessage(Join{text, text, 1, 1, 1, 1, text, text, text, {}, text}),
            NodeMessage(Failed{0, exited(1), text}), NodeMessage(Summary{0, text})}) {
        const std::string encoded = encode(message);
        CHECK(encoded.size() <= kMaxMessage);
        CHECK_NOTHROW(decode_node_message(encoded));
      }
    }
  }
}

TEST_CASE("invalid UTF-8 is replaced before it is sent, and refused on arrival", "[message]") {
  const auto sent =
      std::get<Refused>(decode_coordinator_message(encode(Refused{"a\xff"
                                                                  "b\xed\xa0\x80"})));
  CHECK(sent.reason.rfind("a\xef\xbf\xbd"
                          "b\xef\xbf\xbd",
                          0) == 0);
  for (const char* bad : {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf", "\\ud800", "\\udc00\\ud800"}) {
    INFO(bad);
    CHECK_THROWS_AS(
        decode_coordinator_message("{\"type\":\"refused\",\"reason\":\"" + std::string(bad) + "\"}"),
        ProtocolError);
  }
}

TEST_CASE("texts keep every character, and making them printable is the reader's job", "[message]") {
  const Refused refused{std::string("\0\x1b[31m\r\n\t\"\\", 11) + "\xc2\x9b\xe2\x80\xae"};
  CHECK(decode_coordinator_message(encode(refused)) == CoordinatorMessage(refused));
}

}  // namespace
}  // namespace ddprun::launcher
