#include "launcher/rendezvous/election.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"
#include "launcher/events/threads.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
using std::chrono::milliseconds;
using Json = nlohmann::json;
namespace {

constexpr milliseconds kShortestLease{2'000};  // etcd grants no shorter ones
constexpr milliseconds kRetryPause{500};
constexpr int kRenewals = 3;  // in the time of a lease

std::chrono::seconds lease_time(milliseconds time) {
  return std::chrono::ceil<std::chrono::seconds>(std::max(time, kShortestLease));
}

std::string text_of(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

ElectedCoordinator coordinator_in(const Json& json) {
  const auto endpoint = parse_endpoint(json.at("endpoint").get<std::string>(), 0);
  if (!endpoint || endpoint->port == 0) throw std::runtime_error("no endpoint");
  return {json.at("id").get<std::string>(), *endpoint};
}

RoundRecord record_in(const Json& json) {
  RoundRecord record;
  record.round.number = json.at("number").get<int>();
  record.round.nodes = json.at("nodes").get<int>();
  record.round.restarts = json.at("restarts").get<int>();
  record.round.restarts_used = json.at("restarts_used").get<int>();
  record.round.job = json.value("job", "");
  record.members = json.at("members").get<std::vector<std::string>>();
  if (record.round.number < 0 || record.round.nodes < 1) throw std::runtime_error("no round");
  return record;
}

template <typename Read>
void read_key(const EtcdValue& value, const std::string& key, Read read) {
  if (value.revision == 0) return;
  try {
    read(parse_shallow_json(value.text));
  } catch (const std::exception&) {
    throw EtcdError(
        EtcdError::Kind::kWrong,
        "its key " + single_quoted(key) + " is not of this version of ddprun (etcdctl del removes it)");
  }
}

bool is_only_here(const EtcdSettings& etcd) {
  return std::ranges::all_of(etcd.endpoints, is_loopback, &Endpoint::host);
}

std::string key_of(const std::string& job, const char* name) { return job + "/" + name; }

}  // namespace

ElectionStep next_step(const ElectionState& state, const Candidate& candidate) {
  using Kind = ElectionStep::Kind;
  const ElectionStep campaign{candidate.may_host ? Kind::kCampaign : Kind::kWait};
  const bool member = state.record && !candidate.has_succeeded &&
                      std::ranges::find(state.record->members, candidate.id) != state.record->members.end();
  if (state.coordinator) {
    const bool is_ours = state.coordinator->id == candidate.id;  // of an earlier try or time
    if (is_ours || (member && candidate.refused == state.coordinator->endpoint)) return campaign;
    return {Kind::kAsk, state.coordinator->endpoint};
  }
  if (!state.record) return candidate.was_in_job ? ElectionStep{Kind::kOver} : campaign;
  const bool ended = candidate.refused_long && candidate.refused == state.recorded_by.endpoint;
  if (member || ended) return campaign;
  return {Kind::kAsk, state.recorded_by.endpoint};
}

std::string encode(const ElectedCoordinator& coordinator, const std::string& node) {
  return text_of({{"id", coordinator.id}, {"endpoint", to_string(coordinator.endpoint)}, {"node", node}});
}

std::string encode(const RoundRecord& record, const ElectedCoordinator& by) {
  return text_of({{"number", record.round.number},
                  {"nodes", record.round.nodes},
                  {"restarts", record.round.restarts},
                  {"restarts_used", record.round.restarts_used},
                  {"job", record.round.job},
                  {"members", record.members},
                  {"id", by.id},
                  {"endpoint", to_string(by.endpoint)}});
}

ElectionState decode(const EtcdClient::Snapshot& keys, const std::string& job) {
  ElectionState state;
  state.revision = keys.revision;
  state.coordinator_revision = keys.values.at(0).revision;
  state.record_revision = keys.values.at(1).revision;
  read_key(keys.values[0], key_of(job, "coordinator"),
           [&](const Json& json) { state.coordinator = coordinator_in(json); });
  read_key(keys.values[1], key_of(job, "round"), [&](const Json& json) {
    state.recorded_by = coordinator_in(json);
    state.record = record_in(json);
  });
  return state;
}

Election::Election(asio::io_context& io, Settings settings, std::function<void()> changed)
    : io_(io),
      settings_(std::move(settings)),
      etcd_(io, settings_.etcd),
      changed_(std::move(changed)),
      timer_(io),
      own_{settings_.id, {}} {}

std::string Election::key(const char* name) const {
  return key_of(settings_.etcd.prefix + "/" + settings_.run_id, name);
}

/// throws EtcdError
asio::awaitable<ElectionState> Election::read() {
  const std::vector<std::string> keys = {key("coordinator"), key("round")};
  const auto found = co_await etcd_.read(keys);
  co_return decode(found, settings_.etcd.prefix + "/" + settings_.run_id);
}

asio::awaitable<Endpoint> Election::find(Candidate candidate) {
  using Kind = ElectionStep::Kind;
  candidate.refused_long = is_refused_long(candidate.refused);
  while (term_ == 0) {
    try {
      const ElectionState state = co_await read();
      const ElectionStep step = next_step(state, candidate);
      if (step.kind == Kind::kAsk) co_return step.endpoint;
      if (step.kind == Kind::kWait)
        throw EtcdError(EtcdError::Kind::kUnreachable, "no other node has the coordinator yet");
      if (step.kind == Kind::kOver)
        throw LaunchError(LaunchError::kOwnFailure, "the job " + single_quoted(settings_.run_id) +
                                                        " has ended without this node, or " +
                                                        describe(settings_.etcd) + " has lost its keys");
      record_ = state.record;
      former_ = record_ ? record_->round : FormerRound();
      co_await take(state);
    } catch (const EtcdError& error) {
      if (error.kind == EtcdError::Kind::kWrong && !candidate.was_in_job)
        throw LaunchError(LaunchError::kOwnFailure,
                          "cannot use " + describe(settings_.etcd) + " (--rdzv-endpoint): " + error.what());
      throw;
    }
  }
  co_return own_.endpoint;
}

bool Election::is_refused_long(const std::optional<Endpoint>& refused) {
  if (refused_ != refused) refused_since_ = Clock::now();
  refused_ = refused;
  return refused && Clock::now() - refused_since_ >= settings_.node_timeout;
}

/// Becomes the coordinator if nobody has changed the keys since.
asio::awaitable<bool> Election::take(ElectionState state) {
  if (!listening_ && !reigns_) listen();
  const auto now = Clock::now();
  lease_ = co_await etcd_.grant(lease_time(settings_.node_timeout));
  Change change = {{key("coordinator"), encode(own_, settings_.node), lease_}};
  record_lease_ = 0;
  if (record_) {
    record_lease_ = co_await etcd_.grant(lease_time(settings_.join_timeout));
    change.push_back({key("round"), encode(*record_, own_), record_lease_});
  }
  const std::vector<std::pair<std::string, std::int64_t>> seen = {
      {key("coordinator"), state.coordinator_revision}, {key("round"), state.record_revision}};
  const auto revision = co_await etcd_.commit(seen, change);
  if (!revision) co_return false;
  term_ = *revision;
  record_revision_ = record_ ? *revision : 0;
  has_renewed(now, *revision);
  co_return true;
}

/// On the interface by which this node reaches etcd, unless only this host can reach that.
void Election::listen() {
  std::string host = settings_.local_addr.empty() ? etcd_.local_address() : settings_.local_addr;
  if (settings_.local_addr.empty() && is_loopback(host) && !is_only_here(settings_.etcd))
    if (const std::string outward = outward_address(); !outward.empty()) host = outward;
  listening_ = listen_at_free_port(host);
  own_.endpoint = {host, listening_->port};
}

void Election::reign(CoordinatorServer& server) {
  reigns_ = true;
  pending_.reset();
  failure_.clear();
  server.on_change([this, &server] {
    if (auto record = server.take_record()) {
      if (!pending_) pending_since_ = Clock::now();
      pending_ = std::move(record);
    }
    if (pending_ || server.ended() || server.resigned()) timer_.cancel();
  });
  asio::co_spawn(io_, keep(server), rethrow);
}

asio::awaitable<void> Election::keep(CoordinatorServer& server) {
  while (!server.ended() && !server.resigned()) {
    try {
      co_await act(server);
      if (!std::exchange(failure_, "").empty()) log_info(describe(settings_.etcd) + " answers again");
      server.set_reaches_etcd(true);
    } catch (const EtcdError& error) {
      note_failure(server, error);
    }
    judge(server, Clock::now());
    if (server.ended() || server.resigned() || (pending_ && failure_.empty())) continue;
    timer_.expires_at(renew_at_);
    boost::system::error_code woken;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
  }
  reigns_ = false;
  co_await abdicate(server.ended());
}

asio::awaitable<void> Election::act(CoordinatorServer& server) {
  if (lease_ == 0) co_await go_on_or_resign(server);
  if (!server.resigned() && pending_) co_await write_record(server);
  const bool due = Clock::now() >= renew_at_ || !failure_.empty();
  if (!server.resigned() && due) co_await renew(server);
}

asio::awaitable<void> Election::renew(CoordinatorServer& server) {
  const auto now = Clock::now();
  co_await etcd_.renew(lease_);
  if (record_lease_ != 0) co_await etcd_.renew(record_lease_);
  const ElectionState state = co_await read();
  if (state.coordinator_revision != term_) co_return co_await go_on_or_resign(server);
  has_renewed(now, state.revision);
}

void Election::has_renewed(Clock::time_point now, std::int64_t revision) {
  contact_ = now;
  revision_ = revision;
  const auto shorter = std::min(settings_.node_timeout, settings_.join_timeout);
  renew_at_ = now + std::max(shorter, kShortestLease) / kRenewals;
}

asio::awaitable<void> Election::write_record(CoordinatorServer& server) {
  const RoundRecord record = *pending_;
  if (record_lease_ == 0) record_lease_ = co_await etcd_.grant(lease_time(settings_.join_timeout));
  // With the round's own revision, as an earlier attempt may come late.
  const std::vector<std::pair<std::string, std::int64_t>> seen = {{key("coordinator"), term_},
                                                                  {key("round"), record_revision_}};
  const Change change = {{key("round"), encode(record, own_), record_lease_}};
  const auto revision = co_await etcd_.commit(seen, change);
  if (!revision) co_return co_await go_on_or_resign(server);
  record_revision_ = *revision;
  record_ = record;
  if (pending_ == record) pending_.reset();
  server.recorded(record.round.number);
}

/// The key is no longer ours: takes it again if it has only expired.
asio::awaitable<void> Election::go_on_or_resign(CoordinatorServer& server) {
  const ElectionState state = co_await read();
  std::string why;
  if (state.coordinator && state.coordinator->id != settings_.id)
    why = "another node has been elected, at " + to_string(state.coordinator->endpoint);
  else if (state.record && state.recorded_by.id != settings_.id)
    why = "another node has gone on with the job";
  else if (!state.record && record_ && state.revision >= revision_)  // else etcd has lost everything
    why = "the job has ended, or nothing was heard from it for --join-timeout";
  if (!why.empty()) {
    log_warning("this node no longer has the coordinator: " + why);
    co_return server.resign();
  }
  if (state.record) record_ = state.record;
  co_await take(state);
}

void Election::note_failure(CoordinatorServer& server, const EtcdError& error) {
  const auto now = Clock::now();
  if (error.kind == EtcdError::Kind::kLeaseGone) {
    lease_ = record_lease_ = 0;
    renew_at_ = now;
    return;
  }
  renew_at_ = now + kRetryPause;
  server.set_reaches_etcd(false);
  if (failure_.empty())
    log_warning(describe(settings_.etcd) + " does not answer: " + printable(error.what()) +
                "; the job goes on, but until etcd answers, no round begins, and no other node can take the "
                "coordinator's place");
  failure_ = error.what();
}

/// Whether the coordinator can go on, for how long etcd has not answered.
void Election::judge(CoordinatorServer& server, Clock::time_point now) {
  if (failure_.empty() || server.ended() || server.resigned()) return;
  const std::string etcd = describe(settings_.etcd);
  if (pending_ && now - pending_since_ >= settings_.join_timeout)
    return server.end(LaunchError::kOwnFailure, "cannot write the next round to " + etcd + " within " +
                                                    in_seconds(settings_.join_timeout) +
                                                    " (--join-timeout): " + failure_);
  // Where no worker runs, nothing is lost if another node tries. The round's key outlives the last renewal by
  // --join-timeout, by etcd's clock; then anybody may begin a job with this run id. That no etcd runs cannot
  // be told from a proxy before it that refuses connections.
  const milliseconds patience =
      server.runs() ? settings_.join_timeout * 3 / 4 : std::max(settings_.node_timeout, kShortestLease);
  if (now - contact_ < patience) return;
  log_warning("this node gives up the coordinator: it has not reached " + etcd + " for " +
              in_seconds(patience) + ": " + failure_);
  server.resign();
}

/// Whatever fails here, the leases end. A job that has ended takes its round with it, unless somebody has
/// gone on with that.
asio::awaitable<void> Election::abdicate(bool job_ended) {
  const bool over = job_ended && record_revision_ != 0;
  const std::vector<std::pair<std::string, std::int64_t>> seen = {
      over ? std::pair(key("round"), record_revision_) : std::pair(key("coordinator"), term_)};
  Change change = {{key("coordinator"), std::nullopt, 0}};
  if (over) change.push_back({key("round"), std::nullopt, 0});
  term_ = 0;
  abdicates_ = true;
  try {
    co_await etcd_.commit(seen, change);
  } catch (const std::exception&) {
  }
  abdicates_ = false;
  changed_();
}

void Election::leave() {
  if (has_won()) asio::co_spawn(io_, abdicate(/*job_ended=*/false), rethrow);
}

}  // namespace ddprun::launcher
