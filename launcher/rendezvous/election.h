#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "launcher/events/clock.h"
#include "launcher/rendezvous/etcd_client.h"
#include "launcher/rendezvous/listen.h"
#include "launcher/rendezvous/message.h"
#include "launcher/rendezvous/server.h"

namespace ddprun::launcher {

// --rdzv-backend=etcd: etcd knows who has a job's coordinator, and the job's last round. Two keys:
//
//   PREFIX/RUN_ID/coordinator   where it is; lives as long as its lease, --node-timeout
//   PREFIX/RUN_ID/round         the last round and its members; its lease is --join-timeout
//
// Whoever creates the first one has the coordinator, until somebody else changes that key. The round's key is
// written only while both are unchanged, and a round begins only once it is written: so nobody begins
// a round after another coordinator has been elected, however long a program or a packet was held up.
//
// A round cannot make a step without each of its members. So a member whose workers have ended may be
// elected, and begin another round, whoever else is left; others only where the old coordinator's ddprun has
// ended, or once the round's key has expired. The old coordinator gives up before that: see reign().

/// What etcd knows of a job's coordinator, or of the last one.
struct ElectedCoordinator {
  std::string id;  ///< Join::id of its node
  Endpoint endpoint;
  bool operator==(const ElectedCoordinator&) const = default;
};

/// The two keys.
struct ElectionState {
  std::optional<ElectedCoordinator> coordinator;
  std::int64_t coordinator_revision = 0;  ///< as EtcdValue::revision
  std::optional<RoundRecord> record;
  ElectedCoordinator recorded_by;  ///< the record's last coordinator
  std::int64_t record_revision = 0;
  std::int64_t revision = 0;  ///< of etcd
};

/// A node that looks for its coordinator.
struct Candidate {
  std::string id;              ///< Join::id
  bool was_in_job = false;     ///< it has lost its coordinator
  bool has_succeeded = false;  ///< its workers of the last round have: the others may finish without it
  bool may_host = true;
  std::optional<Endpoint> refused = {};  ///< nothing listens there: that ddprun has ended
  bool refused_long = false;             ///< so long that it would have told etcd, had it ended the job
};

struct ElectionStep {
  enum class Kind {
    kAsk,       ///< the coordinator is there, or was
    kCampaign,  ///< the node may become the coordinator, if the keys are unchanged
    kWait,
    kOver  ///< the job has ended
  } kind;
  Endpoint endpoint = {};
};
ElectionStep next_step(const ElectionState& state, const Candidate& candidate);

std::string encode(const ElectedCoordinator& coordinator, const std::string& node);
/// With who wrote it.
std::string encode(const RoundRecord& record, const ElectedCoordinator& by);
/// throws  EtcdError(kWrong) naming the key
ElectionState decode(const EtcdClient::Snapshot& keys, const std::string& job);

/// One node's part in the elections of its job. Must outlive the run of the io_context.
class Election {
 public:
  struct Settings {
    EtcdSettings etcd;
    std::string run_id, id, node;
    std::string local_addr;  ///< where others reach this node; empty: the address from which it reaches etcd
    std::chrono::milliseconds node_timeout, join_timeout;
  };
  /// changed  called when finished() may have become true
  Election(boost::asio::io_context& io, Settings settings, std::function<void()> changed);

  /// Where to ask for the coordinator; if it is this node, as has_won() then tells, it listens there.
  ///
  /// throws  LaunchError if the job has ended, or if etcd cannot be used; otherwise ask again
  boost::asio::awaitable<Endpoint> find(Candidate candidate);

  /// And does not reign() yet.
  bool has_won() const { return term_ != 0 && listening_; }
  const Endpoint& endpoint() const { return own_.endpoint; }
  /// The sockets where it listens, once.
  Listening take_listening() { return std::move(*std::exchange(listening_, std::nullopt)); }
  const FormerRound& former() const { return former_; }  ///< the last round in etcd when it won

  /// Keeps the leases and the rounds of this node's coordinator, until it ends or resigns.
  void reign(CoordinatorServer& server);

  /// The node leaves the job: gives up a coordinator that has not begun. finished(): etcd knows.
  void leave();
  bool finished() const { return term_ == 0 && !abdicates_; }

 private:
  using Clock = LoopClock;
  using Change = std::vector<EtcdChange>;

  boost::asio::awaitable<ElectionState> read();
  boost::asio::awaitable<bool> take(ElectionState state);
  void listen();
  boost::asio::awaitable<void> keep(CoordinatorServer& server);
  boost::asio::awaitable<void> act(CoordinatorServer& server);
  boost::asio::awaitable<void> renew(CoordinatorServer& server);
  void has_renewed(Clock::time_point now, std::int64_t revision);
  boost::asio::awaitable<void> write_record(CoordinatorServer& server);
  boost::asio::awaitable<void> go_on_or_resign(CoordinatorServer& server);
  boost::asio::awaitable<void> abdicate(bool job_ended);
  bool is_refused_long(const std::optional<Endpoint>& refused);
  void note_failure(CoordinatorServer& server, const EtcdError& error);
  void judge(CoordinatorServer& server, Clock::time_point now);
  std::string key(const char* name) const;

  boost::asio::io_context& io_;
  Settings settings_;
  EtcdClient etcd_;
  std::function<void()> changed_;
  Timer timer_;
  ElectedCoordinator own_;
  std::optional<Listening> listening_;
  FormerRound former_;
  std::int64_t term_ = 0;  ///< the revision of the coordinator's key, while it is ours; 0: it is not
  std::int64_t lease_ = 0, record_lease_ = 0, record_revision_ = 0;
  std::int64_t revision_ = 0;           ///< of etcd at the last contact_: it only grows
  std::optional<RoundRecord> record_;   ///< the last one written, or found
  std::optional<RoundRecord> pending_;  ///< to be written
  Clock::time_point contact_, renew_at_, pending_since_;
  std::optional<Endpoint> refused_;
  Clock::time_point refused_since_;
  std::string failure_;  ///< why etcd does not answer; empty: it does
  bool reigns_ = false, abdicates_ = false;
};

}  // namespace ddprun::launcher
