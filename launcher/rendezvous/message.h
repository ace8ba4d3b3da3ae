#pragma once

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/events/restart_policy.h"

namespace ddprun::launcher {

/// What the nodes of a job agree on before their workers start, as seen by one node.
struct Round {
  int number = 0;            ///< from 0; grows with every start, sometimes by more than 1
  int group_rank = 0;        ///< index of this node
  int group_world_size = 1;  ///< number of nodes
  int first_rank = 0;        ///< rank of the first worker that this ddprun starts
  int first_local_rank = 0;  ///< not 0 if a node has several ddpruns, as with Slurm's tasks
  int workers = 1;           ///< workers that this ddprun starts
  int local_world_size = 1;  ///< workers on the node
  int world_size = 1;        ///< workers on all nodes
  int first_role_rank = 0;   ///< first_rank among the workers of this --role
  int role_world_size = 1;   ///< workers of this --role
  bool in_place = false;     ///< only lost workers are restarted; the others continue
  int restart_count = 0;     ///< after failures; number also grows when nodes come and go
  int restarts_used = 0;     ///< of max_restarts, since --restart-window last renewed them
  std::string master_addr;
  int master_port = 0;
  std::string run_id;
  int max_restarts = 0;
  std::string reason;                  ///< why it is in place, for the log
  bool coordinator_stands_by = false;  ///< its own node is a spare, and has no vote
  std::string job = {};  ///< the first coordinator's id, whoever has its place; empty: of one node

  bool operator==(const Round&) const = default;
};

/// The round of a job on one node. master_addr: the node's name; empty: not given
inline Round static_round(int number, int workers, const std::string& master_addr, int master_port,
                          std::string run_id) {
  Round round;
  round.number = number;
  round.workers = round.local_world_size = round.world_size = round.role_world_size = workers;
  // Not "localhost", whose lookup can fail or return ::1 on a broken host.
  round.master_addr = master_addr.empty() ? "127.0.0.1" : master_addr;
  round.master_port = master_port;
  round.run_id = std::move(run_id);
  return round;
}

// The messages between the nodes of a job and its coordinator, as JSON objects. "type" names the message; its
// other fields are named as here. docs/rendezvous.md has the order of messages.

// From a node.

/// The last round a node was in before it lost its coordinator.
struct FormerRound {
  int number = -1;  ///< -1: none
  int nodes = 0;    ///< number of nodes in it
  int group_rank = 0;
  int restarts = 0;
  bool nobody_listens = false;       ///< at its coordinator's endpoint: that ddprun has ended
  int restarts_used = 0;             ///< as in Round
  std::optional<int> pause_ms = {};  ///< what is left of the pause before a restart
  std::string job = {};              ///< as in Round
  bool operator==(const FormerRound&) const = default;
};

/// A round that is about to begin, as etcd keeps it for the coordinator that may replace this one.
struct RoundRecord {
  FormerRound round;                 ///< as one of its nodes would tell it
  std::vector<std::string> members;  ///< Join::id of its nodes
  bool operator==(const RoundRecord&) const = default;
};

/// "I want to join." The first message of every connection.
struct Join {
  std::string run_id;            ///< --rdzv-id; empty: the coordinator's
  std::string node;              ///< the node's name, for messages and the order of ranks
  std::optional<int> node_rank;  ///< --node-rank: its place in the order of ranks
  int min_nodes = 1, max_nodes = 1;
  int workers = 1;      ///< to start on this node
  std::string address;  ///< --local-addr: where others reach it; empty: its connection's source
  std::string role = {};
  std::string program = {};  ///< as in CoordinatorSettings
  FormerRound former = {};
  /// Identifies this node's ddprun: a new connection with it replaces the previous one. Empty: unknown.
  std::string id = {};
  /// Why the node does not take part, though it has come (--preflight); empty: it does. The coordinator
  /// refuses it, and knows that it need not wait for it.
  std::string unfit = {};
  /// This host's time of day as it sends this, if the coordinator is to compare it with its own
  /// (--preflight=clock).
  std::optional<std::int64_t> clock_ms = {};
  bool operator==(const Join&) const = default;
};

/// The node of rank 0 has reserved a port for the round's workers.
struct Leading {
  int round = 0;
  int port = 0;
  bool operator==(const Leading&) const = default;
};

/// The node's part of the round failed; the node itself ends its workers. "kind" and its fields say how:
/// exited {exit_code}, killed {signal, core_dumped}, hang, timeout, signal {signal}, start_failed
/// {exit_code}, other-node: its workers cannot continue in the round in place that another node's loss began
struct Failed {
  int round = 0;
  AttemptEnd end;
  std::string text;  ///< one line: "rank 3 failed with exit code 7: out of range"
  /// The other workers can continue (--recover=rank); they live until Stop, or a Start in place, arrives.
  bool in_place = false;
  bool alone = false;  ///< then: none of them is on this node
  bool operator==(const Failed&) const = default;
};

/// All workers of this node succeeded.
struct Succeeded {
  int round = 0;
  bool operator==(const Succeeded&) const = default;
};

/// No worker of the round is left on this node: it is ready for another round. Answers Stop, even if no
/// worker was started.
struct Ended {
  int round = 0;
  Reached reached = {};  ///< by the node's workers in that round
  bool drained = false;  ///< answers Drained: the node ends, and takes part in no round any more
  bool operator==(const Ended&) const = default;
};

/// The user ended this node's ddprun.
struct Leave {
  int signal = 0;
  bool operator==(const Leave&) const = default;
};

/// What ddpctl shows about a worker. Decides nothing, and may be omitted.
struct Summary {
  int round = 0;
  std::string rank;  ///< JSON (launcher/status/progress.h)
  bool operator==(const Summary&) const = default;
};

/// "That node is to leave the job, and the others go on" (ddpctl drain). Answered with DrainAnswer.
struct Drain {
  int request = 0;   ///< tells answers apart
  std::string node;  ///< its name, node rank, or the beginning of its ddprun's id
  /// Why the sender's own workers cannot start: the node is the sender, which may ask again and again.
  std::string problem = {};
  bool operator==(const Drain&) const = default;
};

// From the coordinator.

/// Answers Join, and Ended while waiting for other nodes.
struct Waiting {
  int present = 0;  ///< nodes
  int min_nodes = 1, max_nodes = 1;
  bool spare = false;       ///< the job runs without this node, which stands by to replace a lost one
  int node_timeout_ms = 0;  ///< either side is lost after this long without a sign of life
  std::optional<int> summary_ms = {};  ///< how often to send summaries; nullopt: not at all
  bool operator==(const Waiting&) const = default;
};

/// The node cannot join; the connection ends.
struct Refused {
  std::string reason;
  bool other_job = false;  ///< this node's may have its coordinator elsewhere
  bool operator==(const Refused&) const = default;
};

/// "You have rank 0 in this round: reserve a port and send Leading." A later Lead or Start cancels it.
struct Lead {
  int round = 0;
  bool operator==(const Lead&) const = default;
};

/// "Start the workers"; in a round in place, only the lost ones. An empty master_addr means the
/// coordinator's, as this node reaches it. The node fills in the fields about itself, which are not sent.
using Start = Round;

/// This coordinator's own node leaves, and another node takes its place: what that one cannot know.
struct Handover {
  int restarts = 0, restarts_used = 0;  ///< as in FormerRound
  int pause_ms = 0;                     ///< what is left of the pause before a restart
  bool operator==(const Handover&) const = default;
};

/// "End the workers of the round." Another round follows.
struct Stop {
  int round = 0;
  std::string reason;
  bool dump_stacks = false;                 ///< before they end: workers somewhere hang, or take too long
  std::optional<Handover> hands_over = {};  ///< the connection ends
  std::optional<int> user_signal = {};      ///< that ended a node: the workers end with it, too
  int left = 0;  ///< nodes of the last started round that their users ended, without the coordinator's own
  bool operator==(const Stop&) const = default;
};

/// The job is over.
struct End {
  int exit_code = 0;
  std::string reason;
  bool dump_stacks = false;             ///< as in Stop
  std::optional<int> user_signal = {};  ///< as in Stop
  bool operator==(const End&) const = default;
};

/// What becomes of a node that is to be drained, or why nothing does, in one line.
struct DrainAnswer {
  int request = 0;
  bool accepted = false;
  std::string text;
  bool passes = false;  ///< what speaks against it: ask again in a moment
  bool operator==(const DrainAnswer&) const = default;
};

/// "End your workers, answer with Ended, and leave the job, which goes on."
struct Drained {
  int round = 0;
  std::string reason;
  bool replaced = false;  ///< another node's workers have taken the ranks: there is nothing to save
  bool failed = false;    ///< it has asked for this, since its workers cannot start
  bool operator==(const Drained&) const = default;
};

// From either side.

inline constexpr int kBeatsPerTimeout = 4;

/// A sign of life. With --hang-timeout it also says what is known of the workers' signs of life, in ages,
/// since clocks differ: a node speaks of its own workers, the coordinator of the job's. A node's beat also
/// acknowledges its Start.
struct Beat {
  std::optional<int> silent_ms = {};   ///< how long ago the last sign was
  std::optional<int> unknown_ms = {};  ///< for how long nothing has been heard of one of them
  std::optional<int> begun = {};       ///< the node's last round: if it is lost, its next Join names it
  /// From a node: the last round whose workers it has started, or which they have joined.
  std::optional<int> running = {};
  bool operator==(const Beat&) const = default;
};

using NodeMessage = std::variant<Join, Leading, Failed, Succeeded, Ended, Leave, Summary, Beat, Drain>;
using CoordinatorMessage = std::variant<Waiting, Refused, Lead, Start, Stop, End, Beat, DrainAnswer, Drained>;

/// The other side's bytes violate the protocol, or are not signed with our token. One line.
struct ProtocolError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr std::size_t kMaxMessage = 16384;  ///< bytes of one message's payload
inline constexpr std::size_t kMaxName = 1024;      ///< bytes of a name or address in it
inline constexpr std::size_t kMaxSummary = 8000;   ///< bytes of a summary's JSON in it

/// The message as JSON of at most kMaxMessage bytes. Invalid UTF-8 becomes U+FFFD, and long strings are
/// truncated. Numbers are not checked: the other side does that.
std::string encode(const NodeMessage& message);
std::string encode(const CoordinatorMessage& message);

/// Trusts nothing: checks the ranges of numbers, and the length and UTF-8 of strings. Every field is
/// required; unknown ones are ignored. Strings may contain control characters: show them through printable()
/// or single_quoted().
///
/// throws    ProtocolError naming the message and field, what was expected and what it got
NodeMessage decode_node_message(std::string_view json);
CoordinatorMessage decode_coordinator_message(std::string_view json);

/// The signs of life of several workers, by this program's clock, as far as they are known. By default
/// nothing is known.
struct KnownSigns {
  using Time = std::chrono::steady_clock::time_point;

  Time latest;  ///< the last sign
  Time until;   ///< later signs may be on their way; max(): none will come
};

/// The beat that tells another program about them: it has another clock, so it gets ages.
inline Beat beat_with(const KnownSigns& signs, KnownSigns::Time now) {
  if (signs.until == KnownSigns::Time()) return {};
  const auto age = [now](KnownSigns::Time time) {
    const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - time).count();
    return static_cast<int>(std::clamp<decltype(ms)>(ms, 0, INT_MAX));
  };
  return {age(signs.latest), age(signs.until)};
}

/// What a beat that has just arrived tells. A slow one makes signs look later than they were, which delays
/// the end of a hanging job; and they count as known for longer than they are by the time it was under way,
/// until the next beat comes.
inline KnownSigns signs_in(const Beat& beat, KnownSigns::Time now) {
  if (!beat.silent_ms || !beat.unknown_ms) return {};
  return {now - std::chrono::milliseconds(*beat.silent_ms),
          now - std::chrono::milliseconds(*beat.unknown_ms)};
}

/// A node's part: what it knows of its own workers and of the job's, and what it has told.
struct SharedSigns {
  KnownSigns own, job;
  KnownSigns::Time told_until;

  /// True if the others wait for these news: they can make workers count as hung, which takes the timeout.
  bool take_own(const KnownSigns& signs, std::chrono::milliseconds timeout) {
    own = signs;
    const auto silent_at = std::max(own.latest, job.latest) + timeout;
    return own.until >= silent_at && told_until < silent_at;
  }

  /// Another round begins: of its workers nothing is known.
  void begin_round() { own = {}; }

  Beat next_beat(KnownSigns::Time now) {
    told_until = std::min(own.until, now);
    return beat_with(own, now);
  }
};

}  // namespace ddprun::launcher
