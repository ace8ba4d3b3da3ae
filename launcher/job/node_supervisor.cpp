#include "launcher/job/supervisor.h"

#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid_io.hpp>
#include <csignal>
#include <exception>
#include <filesystem>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/launch_error.h"
#include "launcher/job/attempt.h"
#include "launcher/job/job_monitor.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/rendezvous/listen.h"
#include "launcher/rendezvous/membership.h"
#include "launcher/workers/job_processes.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

using Clock = JobEvents::Clock;

// How long the other nodes may take to disconnect from the coordinator.
constexpr std::chrono::seconds kGoodbyeTimeout{10};
// Whatever listens on our port is either a ddprun, which answers soon, or a stranger in the way.
constexpr std::chrono::milliseconds kStrangersGreeting{500};
// How long a node that leaves waits for the first round after the coordinator's loss, or twice
// --node-timeout: it may ask hosts that do not answer. Most of that round's nodes have to come, and without
// this one the others may be too few.
constexpr std::chrono::milliseconds kLeaveWithin{10'000};
// How long etcd may take to learn of the end; later, the leases tell it.
constexpr std::chrono::seconds kAbdication{2};
constexpr std::size_t kMostShown = 300;  // bytes of a command

std::string name_of_node(const NodesOptions& nodes) {
  return nodes.node_name.empty() ? host_name() : nodes.node_name;
}

/// CoordinatorSettings::program: the command; without its arguments if nodes are told their ranks, as they
/// may also be told other things.
std::string known_by(const Options& options) {
  if (options.run_id != kDefaultRunId) return "";
  std::vector<std::string> words = options.program;
  words[0] = std::filesystem::path(words[0]).filename();
  if (options.nodes.node_rank) words.resize(1);
  const std::string text = shown_command(words);
  if (text.size() <= kMostShown) return text;
  const boost::uuids::name_generator_sha1 digest(boost::uuids::ns::oid());
  return shortened(text, kMostShown) + " " + boost::uuids::to_string(digest(text));
}

std::vector<Endpoint> all_endpoints(const NodesOptions& nodes) {
  std::vector<Endpoint> all = {nodes.endpoint};
  all.insert(all.end(), nodes.successors.begin(), nodes.successors.end());
  return all;
}

class NodeSupervisor : public Supervisor {
 public:
  NodeSupervisor(Job& job, NodeConnections& connections, JobRecord& record)
      : job_(job),
        nodes_(job.options.nodes),
        connections_(connections),
        record_(record),
        membership_(nodes_, job.options.restart, all_endpoints(nodes_), Clock::now(),
                    nodes_.etcd.has_value()) {
    if (!nodes_.etcd) return;
    const Election::Settings settings{*nodes_.etcd,         job.run_id,        job.job_id,
                                      name_of_node(nodes_), nodes_.local_addr, nodes_.node_timeout,
                                      nodes_.join_timeout};
    // This supervisor may be gone by then.
    connections_.election.emplace(job.io, settings, [&events = job.events] { events.push(PeerEvent{}); });
  }

  asio::awaitable<RunResult> run() {
    const auto give_up = gives_up(job_);
    co_await job_.outputs.make_folder(give_up);  // a node without it does not join
    connect();
    std::optional<RunResult> result;
    std::exception_ptr failure;
    try {
      while (!result) result = co_await step();
    } catch (const std::exception& error) {
      failure = std::current_exception();
      fail_job(StartFailed{exit_code_of(error), error.what()}, error.what());
    }
    co_await say_goodbye();
    if (failure) std::rethrow_exception(failure);
    co_return *result;
  }

 private:
  bool has_peers() const override { return true; }
  std::optional<EndedByPeers> end_reason() override {
    auto reason = link().end_reason();
    if (reason && reason->drained) job_.monitor->set_leaving();
    return reason;
  }

  NodeLink& link() { return connections_.links.back(); }

  void connect() {
    way_ = {};
    NodeLink::Settings settings;
    settings.endpoints = membership_.endpoints();
    settings.join = {job_.run_id,          name_of_node(nodes_), nodes_.node_rank,
                     nodes_.min_nodes,     nodes_.max_nodes,     job_.workers,
                     nodes_.local_addr,    job_.options.role,    known_by(job_.options),
                     membership_.former(), job_.job_id};
    settings.join.unfit = job_.unfit;
    settings.former_coordinator = membership_.may_have_ended();
    settings.token = nodes_.token;
    settings.timeout = nodes_.join_timeout;
    settings.since = membership_.asking_since();
    settings.after_loss = membership_.lost().has_value();
    settings.tells_time = !settings.after_loss && job_.options.preflight.has("clock");
    if (settings.after_loss)  // also for a greeting: a stopped ddprun's connections succeed
      settings.connect_timeout = settings.greeting_timeout = connect_timeout_after_loss(nodes_.node_timeout);
    // No link() in there: it may be called before that exists.
    settings.before_connecting = [this](const Endpoint& endpoint, std::size_t place, bool asked_all,
                                        const auto& addresses) {
      job_.monitor->set_nodes(name_of_node(nodes_), endpoint.host);
      if (connections_.server() != nullptr) return way_;
      way_.instead.clear();
      if (auto& election = connections_.election; election) {
        if (election->has_won()) reign();
        return way_;
      }
      way_.fail_unless_greeted = false;
      const bool wanted = membership_.lost() || nodes_.is_host.value_or(true);
      if (wanted && membership_.may_host(place, asked_all, Clock::now())) host(endpoint, addresses);
      return way_;
    };
    if (connections_.election) {
      settings.finder = describe(*nodes_.etcd);
      settings.find = [&election = *connections_.election,
                       self = Candidate{job_.job_id, settings.after_loss, succeeded_,
                                        nodes_.is_host.value_or(true)}](std::optional<Endpoint> refused) {
        Candidate candidate = self;
        candidate.refused = std::move(refused);
        return election.find(candidate);
      };
    }
    settings.summaries = [&monitor = *job_.monitor] { return monitor.summaries(); };
    settings.answered = [&monitor = *job_.monitor](const DrainAnswer& answer) { monitor.take(answer); };
    // This supervisor may be gone by then.
    const bool can_follow = connections_.election || settings.endpoints.size() > 1;  // another coordinator
    job_.monitor->on_drain(
        [&links = connections_.links, can_follow, lost = settings.after_loss](const Drain& drain) {
          if (!links.back().can_ask())
            return can_follow && ((lost && !links.back().has_joined()) || links.back().is_lost())
                       ? JobMonitor::Asked::kSoon
                       : JobMonitor::Asked::kNo;
          links.back().send(drain);
          return JobMonitor::Asked::kYes;
        });
    connections_.links.emplace_back(job_.io, job_.events, std::move(settings));
  }

  /// Starts the coordinator here, if this is its host and nobody else has started it.
  void host(const Endpoint& endpoint, const std::vector<asio::ip::tcp::endpoint>& addresses) {
    const bool lost = membership_.lost().has_value();
    Listening listening = listen_at(endpoint, addresses, /*required=*/!lost && nodes_.is_host.has_value());
    way_.fail_unless_greeted = listening.taken && !lost;
    if (listening.taken && port_owner(endpoint.port).find("(ddprun)") == std::string::npos)
      way_.greeting_timeout = kStrangersGreeting;
    if (!listening.advertised.empty() && nodes_.local_addr.empty() && way_.join_address.empty()) {
      way_.join_address = listening.advertised;
      log_info(printable(endpoint.host) + " is a loopback address here: other nodes will use " +
               listening.advertised + " (--local-addr)");
    }
    if (listening.sockets.empty()) return;
    if (listening.at_any_address) {
      log_info(printable(endpoint.host) + " is not an address of this host: listening on all its interfaces");
      ask_by_loopback(endpoint.port);
    }
    CoordinatorServer::Listen listen_again;
    if (nodes_.port_is_workers)
      listen_again = [at = nodes_.endpoint, addresses] { return listen_at(at, addresses, true).sockets; };
    serve(endpoint, std::move(listening), std::move(listen_again));
  }

  /// This host itself may be unable to reach the coordinator's address.
  void ask_by_loopback(int at) {
    const auto port = static_cast<unsigned short>(at);
    way_.instead = {{asio::ip::address_v4::loopback(), port}, {asio::ip::address_v6::loopback(), port}};
  }

  /// etcd has elected this node.
  void reign() {
    Election& election = *connections_.election;
    Listening listening = election.take_listening();
    if (listening.at_any_address) ask_by_loopback(listening.port);
    election.reign(serve(election.endpoint(), std::move(listening), {}));
  }

  CoordinatorServer& serve(const Endpoint& endpoint, Listening listening,
                           CoordinatorServer::Listen listen_again) {
    const bool lost = membership_.lost().has_value();
    const bool warns = !listening.loopback_only && connections_.servers.empty();
    if (nodes_.token.empty() && warns)
      log_warning("anyone who reaches " + to_string(endpoint) +
                  " can join this job: no token is set (--token-file, DDPRUN_TOKEN)");
    if (nodes_.token_is_derived && warns)
      log_warning("anyone who reaches " + to_string(endpoint) +
                  " and knows the job's numbers (squeue) can join this job: its token is derived from them "
                  "(--token-file, DDPRUN_TOKEN)");
    CoordinatorSettings settings{nodes_, job_.run_id, known_by(job_.options), job_.options.restart};
    settings.in_place = job_.options.recover == Recover::kRank;
    settings.elected = connections_.election.has_value();
    settings.own_id = job_.job_id;
    settings.has_successors = !nodes_.successors.empty() || settings.elected;
    if (settings.elected) settings.former = connections_.election->former();
    if (lost) settings.lost_at = membership_.asking_since();
    if (job_.options.preflight.any()) settings.preflight_timeout = job_.options.preflight_timeout;
    CoordinatorServer& server = connections_.servers.emplace_back(
        job_.io, std::move(settings), nodes_.token, std::move(listening.sockets), std::move(listen_again));
    // This supervisor may be gone by then: ddprun's own output is still being written.
    server.on_all_gone([&events = job_.events] { events.push(PeerEvent{}); });
    job_.monitor->gather();
    server.on_summary(
        [&monitor = *job_.monitor](const auto& node, const auto& summary) { monitor.take(node, summary); });
    server.on_drain(
        [&monitor = *job_.monitor](const auto& node, const auto& text) { monitor.note_drain(node, text); });
    if (lost || connections_.election)
      log_info("this node has the coordinator now, at " + to_string(endpoint));
    return server;
  }

  /// Looks for the job's coordinator, perhaps another one. False if there will be none.
  bool look_again(const std::string& reason, bool hung_up) {
    const bool ended_here = connections_.server() != nullptr && connections_.server()->ended();
    const bool is_member = membership_.is_member(), told = membership_.handed_over();
    if (!link().was_connected() ||
        !membership_.look_again(link().endpoint(), link().former(), hung_up, ended_here, Clock::now()))
      return false;
    if (is_member) {
      if (!told) log_once(reason, log_warning);
      log_info("looking for the node that takes the coordinator's place");
    }
    connect();
    return true;
  }

  /// Handles the next event. returns the result if this node's part ends
  asio::awaitable<std::optional<RunResult>> step() {
    const auto* server = connections_.server();
    // A host of --hosts may have failed before this node's own link reached its coordinator.
    const bool unconnected = !link().was_connected() && !membership_.lost();
    if (server != nullptr && server->ended() && (stays_out_ || unconnected))
      co_return result_of(*server->how_ended());
    if (stays_out_) {
      if (server == nullptr) co_return RunResult{LaunchError::kOwnFailure, std::nullopt};
    } else if (auto news = link().next()) {
      if (const auto* lost = std::get_if<CoordinatorLost>(&*news)) {
        if (look_again(lost->reason, lost->hung_up)) co_return std::nullopt;
        if (leaving_) co_return leave_now(*leaving_);
        throw LaunchError(LaunchError::kOwnFailure,
                          job_.unfit.empty() ? lost->reason : job_.unfit + "; " + lost->reason);
      }
      co_return co_await handle(std::get<CoordinatorMessage>(*news));
    }
    const auto until = leaving_ ? std::min(leave_by_, job_.deadline.value_or(leave_by_)) : job_.deadline;
    const JobEvent event = co_await job_.events.next(until);
    if (std::holds_alternative<DeadlinePassed>(event)) {
      if (leaving_) co_return leave_now(*leaving_);
      const std::string text = "the job timed out (--timeout)";
      log_error(text);
      fail_job(TimedOut{}, text);
      record_.outcome = TimedOut{};
      co_return RunResult{LaunchError::kTimeout, std::nullopt};
    }
    throw_if_failed(event);
    const auto* received = std::get_if<SignalReceived>(&event);
    if (received != nullptr && received->signal == SIGTSTP) stop_by_terminal();
    if (std::holds_alternative<ChildEnded>(event)) reap_children();
    if (received == nullptr || !job_.signals.ends_job(received->signal)) co_return std::nullopt;
    const bool counts = membership_.lost() && !membership_.is_member() && membership_.former().number >= 0;
    if (!nodes_.elastic() || !counts || leaving_) {
      log_warning(job_.monitor->who_ends(*received) + ": leaving the job");
      co_return leave_now(received->signal);
    }
    stay_until_next_round(*received);
    co_return std::nullopt;
  }

  /// The others count on this node until then.
  void stay_until_next_round(const SignalReceived& received) {
    const auto limit = std::max(kLeaveWithin, 2 * nodes_.node_timeout);
    log_warning(job_.monitor->who_ends(received) +
                ": leaving the job as soon as the next round, which needs this node, begins (within " +
                in_seconds(limit) + "; a second signal does not wait)");
    leaving_ = received.signal;
    leave_by_ = Clock::now() + limit;
  }

  /// No worker runs here, and the others may go on.
  RunResult leave_now(int signal) {
    leave(signal);
    ends_with_others_ = false;
    record_.outcome = SignalReceived{signal};
    return RunResult::by_signal(signal);
  }

  asio::awaitable<std::optional<RunResult>> handle(const CoordinatorMessage& message) {
    const auto* refused = std::get_if<Refused>(&message);
    if (refused != nullptr && !job_.unfit.empty()) {
      stay_out();
    } else if (refused != nullptr) {
      const std::string text = "refused by the coordinator: " + printable(refused->reason);
      if (leaving_) co_return leave_now(*leaving_);
      if (!link().has_joined() || !look_again(text, /*hung_up=*/false))
        throw LaunchError(LaunchError::kOwnFailure, text);
    } else if (const auto* waiting = std::get_if<Waiting>(&message)) {
      log_waiting(*waiting);
      if (leaving_ && waiting->spare) co_return leave_now(*leaving_);
    } else if (const auto* lead = std::get_if<Lead>(&message)) {
      this->lead(*lead, job_.options.master_port);
    } else if (const auto* start = std::get_if<Start>(&message)) {
      if (!leaving_) co_return co_await run_round(*start);
      own(*start);
      co_return leave_now(*leaving_);
    } else if (const auto* stop = std::get_if<Stop>(&message)) {
      log_once(stop->reason, log_warning);
      membership_.take(*stop, Clock::now());
      link().send(Ended{stop->round, std::exchange(reached_, {})});
    } else if (const auto* end = std::get_if<End>(&message)) {
      co_return result_of(*end);
    } else if (const auto* drained = std::get_if<Drained>(&message)) {
      RunResult result = result_of(*drained);
      if (!is_needed_as_coordinator(*drained)) co_return result;
      link().finish();
      stay_out();
    }
    co_return std::nullopt;
  }

  bool is_needed_as_coordinator(const Drained& drained) {
    return drained.failed && connections_.server() != nullptr;
  }

  void stay_out() {
    stays_out_ = true;
    if (connections_.server() != nullptr && !connections_.server()->ended())
      log_warning("this node starts no workers; it has the job's coordinator, and waits for the other nodes");
  }

  void lead(const Lead& lead, std::optional<int> port) {
    round_ = lead.round;  // first, since the next lines may throw
    port_ = reserve_port(port_address(), port);
    link().send(Leading{lead.round, port_->port});
  }

  RunResult result_of(const End& end) {
    ends_with_others_ = end.user_signal.has_value();
    if (end.exit_code != 0) {
      log_once(end.reason, log_error);
      record_.message = end.reason;
    } else if (!membership_.in_round() || stays_out_) {
      log_info(printable(end.reason));
      record_.message = end.reason;
      record_.outcome = AllSucceeded{};
    }
    if ((record_.attempts.empty() || stays_out_) && end.exit_code != 0)
      record_.outcome = EndedByPeers{end.reason};
    return {end.exit_code, std::nullopt};
  }

  /// This node's workers have ended, and it leaves the job, which goes on.
  RunResult result_of(const Drained& drained) {
    link().send(Ended{drained.round, std::exchange(reached_, {}), /*drained=*/true});
    job_.monitor->set_leaving();
    job_.monitor->note_drain(name_of_node(nodes_), drained.reason);
    (drained.failed ? log_error : log_info)(printable(drained.reason) +
                                            ": it has left the job, which goes on without it");
    record_.message = drained.reason;
    RunResult result;
    result.drained = true;
    if (drained.failed) {
      result.exit_code = LaunchError::kOwnFailure;
      record_.outcome = StartFailed{result.exit_code, drained.reason};
    } else {
      record_.outcome = EndedByPeers{drained.reason, false, {}, /*drained=*/true, drained.replaced};
    }
    return result;
  }

  /// The user ended this node while its workers were being stopped; if the job has ended, its result wins.
  std::optional<RunResult> leave_or_end(const Attempt& attempt) {
    const SignalReceived received{attempt.user_signals.front()};
    while (const auto news = link().next()) {
      if (const auto* lost = std::get_if<CoordinatorLost>(&*news)) {
        const bool waits = nodes_.elastic() && attempt.user_signals.size() < 2;
        if (!waits || !look_again(lost->reason, lost->hung_up)) break;
        stay_until_next_round(received);
        return std::nullopt;
      }
      const auto* message = std::get_if<CoordinatorMessage>(&*news);
      if (const auto* stop = std::get_if<Stop>(message)) membership_.take(*stop, Clock::now());
      if (const auto* end = std::get_if<End>(message)) return result_of(*end);
      const auto* drained = std::get_if<Drained>(message);
      if (drained != nullptr && !job_.monitor->asked_to_stop() && !is_needed_as_coordinator(*drained))
        return result_of(*drained);  // asked_to_stop() ends the job
    }
    log_warning(job_.monitor->who_ends(received) + ": leaving the job");
    leave(received.signal);
    record_.outcome = received;
    return RunResult::by_signal(received.signal);
  }

  /// Where rank 0's node reserves the workers' port: on the interface by which others reach it.
  std::string port_address() {
    if (!link().join_address().empty()) return link().join_address();
    return is_loopback(link().local_address()) && !is_loopback(link().endpoint().host)
               ? "::"
               : link().local_address();
  }

  /// The round as seen on this node.
  Round own(const Start& start) {
    Round round = start;
    round.group_rank = nodes_.group_rank.value_or(start.group_rank);
    round.group_world_size = nodes_.group_world_size.value_or(start.group_world_size);
    round.first_local_rank = nodes_.first_local_rank;
    round.workers = job_.workers;
    round.local_world_size = nodes_.local_world_size.value_or(job_.workers);
    if (round.master_addr.empty())
      round.master_addr = nodes_.port_is_workers ? nodes_.endpoint.host : link().coordinator_address();
    round_ = started_ = round.number;
    membership_.take(start, Clock::now());
    job_.monitor->drain_again();
    succeeded_ = false;
    if (start.group_rank != 0) port_.reset();
    oom_.restart();
    return round;
  }

  void count_restart() {
    ++record_.restarts;
    job_.log.add({EventRecord::Kind::kRestart, Clock::now(), round_});
  }

  /// While workers run: leads a round in place on request. True once it begins.
  bool begins_round() override {
    while (link().has_lead()) {
      const auto news = std::get<CoordinatorMessage>(*link().next());
      // A round that is already over here, though the coordinator knows that this node has heard of it.
      if (const auto* start = std::get_if<Start>(&news)) membership_.take(*start, Clock::now());
      if (const auto* lead = std::get_if<Lead>(&news))
        this->lead(*lead, std::nullopt);  // rank 0 may still listen on the last one
    }
    const auto* message = link().peek();
    const auto* start = message == nullptr ? nullptr : std::get_if<Start>(message);
    return start != nullptr && start->in_place && start->number > started_;
  }

  /// The round in place that begins.
  Round take_round() {
    const Round round = own(std::get<Start>(std::get<CoordinatorMessage>(*link().next())));
    // Of several losses it names the first.
    if (!round.reason.starts_with(last_reason_)) log_warning(last_reason_ + "; replacing this rank too");
    log_warning(printable(round.reason));
    return round;
  }

  void ask_to_leave(const std::string& problem) override { link().send(Drain{0, job_.job_id, problem}); }

  void note_running(const Attempt& attempt) override { link().set_running(attempt.round.number); }

  std::string decline(const Attempt& attempt) override {
    const Round round = take_round();
    last_reason_ = "the workers of node " + name_of_node(nodes_) + " cannot continue without the lost ones" +
                   (attempt.unannounced ? ": the program has not announced support for --recover=rank" : "");
    link().send(Failed{round.number, EndedByPeers{}, last_reason_});
    return last_reason_;
  }

  NextRound next_round(const Attempt&) override {
    NextRound next{take_round(), {}};
    next.port = std::exchange(port_, std::nullopt);
    count_restart();
    last_reason_.clear();
    return next;
  }

  /// Tells the coordinator about a worker that can be replaced.
  bool replaces(const Attempt& attempt, const std::vector<Worker>& workers) override {
    last_reason_ = describe_loss(attempt, workers, oom_) + " on node " + name_of_node(nodes_);
    const bool alone = std::ranges::none_of(workers, [](const Worker& worker) { return !worker.status; });
    link().send(Failed{attempt.round.number, attempt.outcome, last_reason_, /*in_place=*/true, alone});
    return true;
  }

  KnownSigns share_signs(const KnownSigns& own) override {
    const auto timeout = *job_.options.hang_timeout;
    const KnownSigns known = link().share_signs(own, timeout);
    const auto late = std::max(own.latest, known.until) + timeout + nodes_.node_timeout;
    if (own.until != Clock::time_point::max() && own.until >= late && !std::exchange(warned_, true))
      log_warning(
          "cannot tell whether silent workers hang: another node does not report when its workers last "
          "showed a sign of life (" +
          std::string(known.until == KnownSigns::Time()
                          ? "set --hang-timeout on every node"
                          : "its last report was " +
                                in_seconds(std::chrono::duration_cast<std::chrono::milliseconds>(
                                    own.until - known.until)) +
                                " ago") +
          ")");
    return known;
  }

  asio::awaitable<std::optional<RunResult>> run_round(const Start& start) {
    const Round round = own(start);
    if (!start.reason.empty()) log_warning(printable(start.reason));
    last_reason_.clear();
    if (!record_.attempts.empty()) count_restart();
    std::optional<HeldPort> port = std::exchange(port_, std::nullopt);  // named: GCC 12
    const Attempt attempt = co_await run_attempt(job_, *this, round, std::move(port));
    reached_ = attempt.reached;
    co_await report_attempt(job_, attempt, oom_, record_);
    if (const auto* ended = std::get_if<EndedByPeers>(&attempt.outcome)) last_reason_ = ended->reason;
    if (const auto* received = std::get_if<SignalReceived>(&attempt.outcome))
      co_return RunResult::by_signal(received->signal);
    if (!attempt.user_signals.empty()) co_return leave_or_end(attempt);
    // The coordinator knows of every other end and has sent Stop, answered by Ended, or End.
    succeeded_ = std::holds_alternative<AllSucceeded>(attempt.outcome);
    if (succeeded_) link().send(Succeeded{attempt.round.number});
    co_return std::nullopt;
  }

  void report_end(const Attempt& attempt) override {
    if (const auto* received = std::get_if<SignalReceived>(&attempt.outcome)) return leave(received->signal);
    if (std::holds_alternative<AllSucceeded>(attempt.outcome) ||
        std::holds_alternative<EndedByPeers>(attempt.outcome))
      return;
    send_failure(attempt.round.number, attempt.outcome,
                 describe_end(attempt) + " on node " + name_of_node(nodes_));
  }

  void send_failure(int round, const AttemptEnd& end, const std::string& text) {
    last_reason_ = text;
    link().send(Failed{round, end, text});
  }

  /// Reports ddprun's own failure; no round follows on this node.
  void fail_job(const AttemptEnd& end, const std::string& text) {
    send_failure(round_, end, text + " on node " + name_of_node(nodes_));
    connections_.end_job(end, last_reason_);
  }

  /// The other nodes learn it, and may go on, unless the user has asked for the whole job's end.
  void leave(int signal) {
    if (job_.monitor->asked_to_stop()) {
      const std::string text = "ddpctl stop on node " + name_of_node(nodes_) + " ends the job";
      connections_.end_job(SignalReceived{signal}, text);
      link().send(Failed{round_, SignalReceived{signal}, text});
      ends_with_others_ = true;
      return link().send(Leave{signal});  // between two rounds
    }
    const std::string reason =
        "node " + name_of_node(nodes_) + ", which has the coordinator, received " + signal_name(signal);
    if (hand_over(signal, reason)) return;
    connections_.end_job(SignalReceived{signal}, reason);
    link().send(Leave{signal});
    ends_with_others_ = !nodes_.elastic() || connections_.server() != nullptr;
    if (!ends_with_others_) job_.monitor->set_ending_alone();
  }

  /// If the coordinator is here: another node takes its place. False if none can.
  bool hand_over(int signal, const std::string& reason) {
    auto* server = connections_.server();
    handed_over_ = server != nullptr && server->hand_over(job_.job_id, signal, reason);
    if (!handed_over_) return false;
    job_.monitor->set_ending_alone();
    log_info("the other nodes go on without this one");
    return true;
  }

  void log_waiting(const Waiting& waiting) {
    membership_.take(waiting);
    if (waiting.spare) {
      log_info("the job has all its nodes: standing by to replace a lost one");
    } else if (waiting.present < waiting.min_nodes) {
      log_info("waiting for nodes: " + std::to_string(waiting.present) + " of " +
               (waiting.min_nodes < waiting.max_nodes ? "at least " : "") +
               std::to_string(waiting.min_nodes) + " joined");
    }
  }

  /// Logs a reason from elsewhere, unless the user has seen it.
  void log_once(const std::string& reason, void (*tell)(std::string_view)) {
    if (!last_reason_.empty() && reason.compare(0, last_reason_.size(), last_reason_) == 0) return;
    if (job_.options.hosts.is_silent()) return;  // the first host's ddprun tells it on the same terminal
    tell(printable(reason));
    last_reason_ = reason;
  }

  /// Sends what is queued; if the coordinator is here, waits for the other nodes to disconnect. If a user's
  /// signal ends the job, all nodes wait for each other's workers: as soon as one ddprun has ended by it, an
  /// MPI launcher kills the others, and so does Slurm with --kill-on-bad-exit, also while they save.
  asio::awaitable<void> say_goodbye() {
    auto until = Clock::now() + kGoodbyeTimeout;
    const auto& servers = connections_.servers;
    if (ends_with_others_ && started_ >= 0) {
      link().send(Ended{started_, {}});
      until += job_.options.shutdown_timeout;
    } else {
      link().finish();
      if (connections_.server() != nullptr && !connections_.server()->ended())
        until += job_.options.shutdown_timeout;  // a node that is being drained may still save
    }
    auto& election = connections_.election;
    if (election) election->leave();
    const auto etcd_until = Clock::now() + kAbdication;
    for (;;) {
      const bool gone = link().finished() && (servers.empty() || servers.back().all_gone());
      if (gone && (!election || election->finished())) break;
      if ((ends_with_others_ || handed_over_) && job_.events.end_signals() > 1) break;
      while (const auto news = link().next()) {  // it may be let go, since the job goes on
        const auto* message = std::get_if<CoordinatorMessage>(&*news);
        if (message != nullptr && std::holds_alternative<Drained>(*message)) link().finish();
      }
      const JobEvent event = co_await job_.events.next(gone ? std::min(until, etcd_until) : until);
      const auto* received = std::get_if<SignalReceived>(&event);
      if (std::holds_alternative<DeadlinePassed>(event)) break;
      if (received == nullptr || !job_.signals.ends_job(received->signal)) continue;
      if (!ends_with_others_) break;
      if (job_.events.end_signals() > 1) continue;  // the loop ends
      // It has come to all nodes, and here after the other nodes' news of it.
      log_warning(job_.monitor->who_ends(*received) +
                  ": waiting for the other nodes' workers to end (a second signal ends the wait)");
    }
  }

  Job& job_;
  const NodesOptions& nodes_;
  NodeConnections& connections_;
  JobRecord& record_;
  OomWatch oom_;
  std::optional<HeldPort> port_;
  int round_ = 0;     ///< the last one heard of; the workers may be of an earlier one (Lead)
  int started_ = -1;  ///< the last one that began here
  NodeLink::Way way_;
  Membership membership_;
  bool succeeded_ = false;         ///< this node's workers, in the last round
  bool handed_over_ = false;       ///< the coordinator was here, and another node takes its place
  bool stays_out_ = false;         ///< without workers: at most it has the coordinator for the others
  bool ends_with_others_ = false;  ///< by a user's signal, after the workers of all nodes
  bool warned_ = false;            ///< that another node does not say whether its workers are silent
  std::optional<int> leaving_;     ///< a signal has come before the next coordinator was found
  Clock::time_point leave_by_;     ///< at the latest
  std::string last_reason_;        ///< the last reason for an end that the user saw
  Reached reached_;                ///< by this node's workers in the last round
};

}  // namespace

asio::awaitable<RunResult> supervise_node(Job& job, NodeConnections& connections, JobRecord& record) {
  NodeSupervisor supervisor(job, connections, record);
  co_return co_await supervisor.run();
}

}  // namespace ddprun::launcher
