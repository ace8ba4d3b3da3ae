#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <optional>

#include "launcher/rendezvous/message.h"

namespace ddprun::launcher {

// What each message is made of on the wire: its type, and visit(fields, message), which serves for writing as
// for reading. `fields` has a function for each kind of value, as in message_json.cpp, with the range of a
// number and the limit of a text.

inline constexpr int kMaxCount = 1'000'000;  ///< of nodes, ranks and workers
inline constexpr int kMaxPort = 65535;
inline constexpr int kMaxSignal = 64;
inline constexpr int kMaxExitCode = 255;
inline constexpr std::size_t kMaxName = 1024;  ///< bytes, also of an address
inline constexpr std::size_t kMaxText = 4096;

/// How a node's part of the round failed: AttemptEnd's kinds without success, and the two of ExitStatus.
enum class Failure { kExited, kKilled, kHang, kTimeout, kSignal, kStartFailed };
inline constexpr std::array kFailures{"exited", "killed", "hang", "timeout", "signal", "start_failed"};

/// None for a success, as an AttemptEnd has before it is read.
inline std::optional<Failure> failure_of(const AttemptEnd& end) {
  switch (end.kind) {
    case AttemptEnd::Kind::kSucceeded:
      break;
    case AttemptEnd::Kind::kWorkerFailed:
      return end.status.kind == ExitStatus::Kind::kKilled ? Failure::kKilled : Failure::kExited;
    case AttemptEnd::Kind::kHang:
      return Failure::kHang;
    case AttemptEnd::Kind::kTimeout:
      return Failure::kTimeout;
    case AttemptEnd::Kind::kSignal:
      return Failure::kSignal;
    case AttemptEnd::Kind::kStartFailed:
      return Failure::kStartFailed;
  }
  return std::nullopt;
}

template <typename Fields>
void visit(Fields& fields, AttemptEnd& end) {
  std::optional<Failure> failure = failure_of(end);
  fields.choice("kind", failure, kFailures);
  switch (*failure) {
    case Failure::kExited:
      end.kind = AttemptEnd::Kind::kWorkerFailed;
      return fields.integer("exit_code", end.status.code, 1, kMaxExitCode);
    case Failure::kKilled:
      end.kind = AttemptEnd::Kind::kWorkerFailed;
      end.status.kind = ExitStatus::Kind::kKilled;
      fields.integer("signal", end.status.signal, 1, kMaxSignal);
      return fields.flag("core_dumped", end.status.core_dumped);
    case Failure::kHang:
      end.kind = AttemptEnd::Kind::kHang;
      return;
    case Failure::kTimeout:
      end.kind = AttemptEnd::Kind::kTimeout;
      return;
    case Failure::kSignal:
      end.kind = AttemptEnd::Kind::kSignal;
      return fields.integer("signal", end.signal, 1, kMaxSignal);
    case Failure::kStartFailed:
      end.kind = AttemptEnd::Kind::kStartFailed;
      return fields.integer("exit_code", end.exit_code, 1, kMaxExitCode);
  }
}

inline const char* type_of(const Join&) { return "join"; }
template <typename Fields>
void visit(Fields& fields, Join& join) {
  fields.text("run_id", join.run_id, kMaxName);
  fields.text("node", join.node, kMaxName);
  fields.optional_integer("node_rank", join.node_rank, 0, kMaxCount);
  fields.integer("min_nodes", join.min_nodes, 1, kMaxCount);
  fields.integer("max_nodes", join.max_nodes, 1, kMaxCount);
  fields.integer("workers", join.workers, 1, kMaxCount);
  fields.text("address", join.address, kMaxName);
}

inline const char* type_of(const Leading&) { return "leading"; }
template <typename Fields>
void visit(Fields& fields, Leading& leading) {
  fields.integer("round", leading.round, 0, INT_MAX);
  fields.integer("port", leading.port, 1, kMaxPort);
}

inline const char* type_of(const Failed&) { return "failed"; }
template <typename Fields>
void visit(Fields& fields, Failed& failed) {
  fields.integer("round", failed.round, 0, INT_MAX);
  visit(fields, failed.end);
  fields.text("text", failed.text, kMaxText);
}

inline const char* type_of(const Succeeded&) { return "succeeded"; }
template <typename Fields>
void visit(Fields& fields, Succeeded& succeeded) {
  fields.integer("round", succeeded.round, 0, INT_MAX);
}

inline const char* type_of(const Ended&) { return "ended"; }
template <typename Fields>
void visit(Fields& fields, Ended& ended) {
  fields.integer("round", ended.round, 0, INT_MAX);
}

inline const char* type_of(const Leave&) { return "leave"; }
template <typename Fields>
void visit(Fields& fields, Leave& leave) {
  fields.integer("signal", leave.signal, 1, kMaxSignal);
}

inline const char* type_of(const Waiting&) { return "waiting"; }
template <typename Fields>
void visit(Fields& fields, Waiting& waiting) {
  fields.integer("present", waiting.present, 0, kMaxCount);
  fields.integer("min_nodes", waiting.min_nodes, 1, kMaxCount);
  fields.integer("max_nodes", waiting.max_nodes, 1, kMaxCount);
  fields.flag("spare", waiting.spare);
  fields.integer("node_timeout_ms", waiting.node_timeout_ms, 0, INT_MAX);
}

inline const char* type_of(const Refused&) { return "refused"; }
template <typename Fields>
void visit(Fields& fields, Refused& refused) {
  fields.text("reason", refused.reason, kMaxText);
}

inline const char* type_of(const Lead&) { return "lead"; }
template <typename Fields>
void visit(Fields& fields, Lead& lead) {
  fields.integer("round", lead.round, 0, INT_MAX);
}

inline const char* type_of(const Start&) { return "start"; }
template <typename Fields>
void visit(Fields& fields, Start& start) {
  fields.integer("round", start.round, 0, INT_MAX);
  fields.integer("group_rank", start.group_rank, 0, kMaxCount);
  fields.integer("group_world_size", start.group_world_size, 1, kMaxCount);
  fields.integer("first_rank", start.first_rank, 0, kMaxCount);
  fields.integer("world_size", start.world_size, 1, kMaxCount);
  fields.text("master_addr", start.master_addr, kMaxName);
  fields.integer("master_port", start.master_port, 1, kMaxPort);
  fields.text("run_id", start.run_id, kMaxName);
  fields.integer("max_restarts", start.max_restarts, 0, kMaxCount);
}

inline const char* type_of(const Stop&) { return "stop"; }
template <typename Fields>
void visit(Fields& fields, Stop& stop) {
  fields.integer("round", stop.round, 0, INT_MAX);
  fields.text("reason", stop.reason, kMaxText);
}

inline const char* type_of(const End&) { return "end"; }
template <typename Fields>
void visit(Fields& fields, End& end) {
  fields.integer("exit_code", end.exit_code, 0, kMaxExitCode);
  fields.text("reason", end.reason, kMaxText);
}

inline const char* type_of(const Beat&) { return "beat"; }
template <typename Fields>
void visit(Fields&, Beat&) {}

}  // namespace ddprun::launcher
