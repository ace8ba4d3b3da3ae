#include "launcher/rendezvous/node_link.h"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <csignal>
#include <exception>
#include <stdexcept>
#include <utility>

#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"
#include "launcher/rendezvous/admission.h"
#include "launcher/rendezvous/listen.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
namespace {

/// Whoever answers has nothing to do with this job.
struct Stranger : ProtocolError {
  using ProtocolError::ProtocolError;
};
constexpr milliseconds kFarewellTimeout{2'000};

/// The address as text, with IPv4-mapped ones as IPv4.
std::string numeric(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  return address.to_string();
}

}  // namespace

NodeLink::NodeLink(asio::io_context& io, JobEvents& events, Settings settings)
    : events_(events),
      io_(io),
      settings_(std::move(settings)),
      timer_(io),
      summary_timer_(io),
      search_({settings_.endpoints, settings_.former_coordinator, settings_.since, settings_.timeout,
               settings_.connect_timeout},
              Clock::now()) {
  asio::co_spawn(io, run(), asio::detached);
}

NodeLink::~NodeLink() {
  if (connection_) connection_->close();
}

void NodeLink::add(CoordinatorEvent news) {
  news_.push_back(std::move(news));
  events_.push(PeerEvent{});
}

std::optional<CoordinatorEvent> NodeLink::next() {
  if (news_.empty()) return {};
  CoordinatorEvent first = std::move(news_.front());
  news_.pop_front();
  return first;
}

const CoordinatorMessage* NodeLink::peek() const {
  return news_.empty() ? nullptr : std::get_if<CoordinatorMessage>(&news_.front());
}

bool NodeLink::has_lead() const {
  return std::ranges::any_of(news_, [](const CoordinatorEvent& news) {
    const auto* message = std::get_if<CoordinatorMessage>(&news);
    return message != nullptr && std::holds_alternative<Lead>(*message);
  });
}

std::optional<EndedByPeers> NodeLink::end_reason() const {
  for (const CoordinatorEvent& news : news_) {
    if (const auto* lost = std::get_if<CoordinatorLost>(&news)) return EndedByPeers{lost->reason};
    const auto& message = std::get<CoordinatorMessage>(news);
    if (const auto* stop = std::get_if<Stop>(&message))
      return EndedByPeers{stop->reason, stop->dump_stacks, stop->user_signal};
    if (const auto* end = std::get_if<End>(&message))
      return EndedByPeers{end->reason, end->dump_stacks, end->user_signal};
    if (const auto* refused = std::get_if<Refused>(&message)) return EndedByPeers{refused->reason};
    if (const auto* drained = std::get_if<Drained>(&message))
      return EndedByPeers{drained->reason, false, {}, /*drained=*/true, drained->replaced};
  }
  return {};
}

void NodeLink::send(const NodeMessage& message) {
  if (connection_) connection_->write(encode(message));
}

void NodeLink::finish() {
  finished_ = true;
  timer_.cancel();
  if (connection_) connection_->finish(kFarewellTimeout);
}

asio::awaitable<void> NodeLink::run() {
  std::string reason;
  try {
    co_await connect();
    if (!answer_) connection_->write(encoded_join());
    asio::co_spawn(io_, beat(), asio::detached);
    co_await listen();
  } catch (const boost::system::system_error& error) {
    reason = timed_out_ ? "it gave no sign of life" : describe(error.code());
  } catch (const LaunchError& error) {
    co_return add(CoordinatorLost{error.what()});
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const bool was_connected = connection_ != nullptr;
  if (was_connected) connection_->close();
  timer_.cancel();
  if (reason.empty()) co_return;
  const bool hung_up = was_connected && !timed_out_;
  add(CoordinatorLost{(was_connected ? "lost the coordinator at " : "cannot reach the coordinator at ") +
                          to_string(endpoint()) + ": " + reason,
                      hung_up});
}

/// Retries until a coordinator answers. Passes over strangers if the coordinator may be elsewhere, after a
/// loss also over one that refuses this node, and gives up otherwise.
asio::awaitable<void> NodeLink::connect() {
  for (bool warned = false;;) {
    std::string whom = "the coordinator at " + to_string(endpoint());
    std::string why;
    auto answer = Search::Answer::kUnknown;
    try {
      if (settings_.find) {
        whom = settings_.finder;
        search_.ask_at(co_await settings_.find(refused_));
        whom = "the coordinator at " + to_string(endpoint());
      }
      co_await connect_once();
      co_return;
    } catch (const ProtocolError& error) {
      const bool stranger = dynamic_cast<const Stranger*>(&error) != nullptr;
      if (!settings_.after_loss && !(stranger && may_be_elsewhere())) throw;
      answer = Search::Answer::kNotOurs;
      why = error.what();
      if (!std::exchange(warned, true))
        log_warning(to_string(endpoint()) + " does not have this job's coordinator: " + why);
    } catch (const LaunchError&) {
      throw;
    } catch (const boost::system::system_error& error) {
      why = describe(error.code());
      answer = error.code() == asio::error::connection_refused ? Search::Answer::kRefused
               : has_ended(error.code())                       ? Search::Answer::kHungUp
                                                               : Search::Answer::kSilent;
    } catch (const std::exception& error) {
      why = printable(error.what());
    }
    refused_ = answer == Search::Answer::kRefused ? std::optional(endpoint()) : std::nullopt;
    const Search::Next next = search_.answered(answer, Clock::now());
    if (settings_.former_coordinator) settings_.join.former.nobody_listens = search_.nobody_listens();
    if (next.gives_up)
      throw LaunchError(
          LaunchError::kOwnFailure,
          "cannot reach " + whom + " within " + in_seconds(settings_.timeout) + " (--join-timeout): " + why);
    if (next.tells) log_info("trying to reach " + whom + ": " + why);
    if (next.pause.count() == 0) continue;
    timer_.expires_after(next.pause);
    co_await timer_.async_wait(asio::use_awaitable);
  }
}

/// Tries each address once, in order. throws the last one's error
asio::awaitable<void> NodeLink::connect_once() {
  // After a loss, when the next endpoint's turn must not be late, a name server gets no longer than a node.
  const auto deadline =
      settings_.after_loss ? std::optional(Clock::now() + settings_.connect_timeout) : std::nullopt;
  const auto addresses = co_await address_book_.resolve(endpoint(), deadline);
  if (finished_)
    throw LaunchError(LaunchError::kOwnFailure, "the job has ended");  // so has before_connecting's owner
  const Way way = settings_.before_connecting(endpoint(), search_.place(), search_.asked_all(), addresses);
  if (settings_.join.address.empty()) settings_.join.address = way.join_address;
  boost::system::error_code error = asio::error::host_not_found;
  for (const tcp::endpoint& address : way.instead.empty() ? addresses : way.instead) {
    const auto socket = std::make_shared<tcp::socket>(io_);
    timer_.expires_after(settings_.connect_timeout);
    timer_.async_wait([socket](const boost::system::error_code& cancelled) {
      boost::system::error_code ignored;
      if (!cancelled) socket->close(ignored);
    });
    co_await socket->async_connect(address, asio::redirect_error(asio::use_awaitable, error));
    if (timer_.cancel() == 0) error = asio::error::timed_out;
    if (error) continue;
    const std::string theirs = numeric(socket->remote_endpoint()), ours = numeric(socket->local_endpoint());
    auto connection = std::make_shared<Connection>(std::move(*socket), Side::kNode, settings_.token);
    connection->set_time_limit(
        std::min(way.greeting_timeout.value_or(settings_.greeting_timeout), settings_.timeout));
    try {
      co_await connection->greet();
      if (may_be_elsewhere()) co_await introduce(*connection);
    } catch (const std::exception& failure) {
      connection->close();
      // If it hung up, it may be a coordinator that just ended: retry.
      const auto* broken = dynamic_cast<const boost::system::system_error*>(&failure);
      const bool hung_up = broken != nullptr && broken->code() != asio::error::timed_out;
      const bool stranger = !connection->greeted() && dynamic_cast<const ProtocolError*>(&failure) != nullptr;
      if (stranger && !way.fail_unless_greeted) throw Stranger(failure.what());
      if (connection->greeted() || !way.fail_unless_greeted || hung_up) throw;
      throw LaunchError(LaunchError::kOwnFailure, to_string(endpoint()) + " is taken" +
                                                      port_owner(address.port()) + ", but not by a ddprun");
    }
    connection->clear_time_limit();
    coordinator_address_ = theirs;
    local_address_ = ours;
    connection_ = std::move(connection);
    co_return;
  }
  throw boost::system::system_error(error);
}

/// After a loss, or while there is another endpoint to ask, or may be.
bool NodeLink::may_be_elsewhere() const {
  return settings_.after_loss || settings_.find || !search_.is_last();
}

std::string NodeLink::encoded_join() const {
  Join join = settings_.join;
  if (settings_.tells_time) join.clock_ms = time_of_day_ms();
  return encode(join);
}

/// Joins. throws Stranger if it has another job; ProtocolError if the answer is not a coordinator's, or,
/// after a loss, refuses this node
asio::awaitable<void> NodeLink::introduce(Connection& connection) {
  connection.write(encoded_join());
  answer_ = decode_coordinator_message(co_await connection.read());
  const auto* refused = std::get_if<Refused>(&*answer_);
  if (refused == nullptr || !(refused->other_job || settings_.after_loss)) co_return;
  const std::string reason = "it refuses this node: " + printable(refused->reason);
  const bool stranger = refused->other_job;
  answer_.reset();
  if (stranger) throw Stranger(reason);
  throw ProtocolError(reason);
}

asio::awaitable<void> NodeLink::listen() {
  for (;;) {
    if (!answer_) answer_ = decode_coordinator_message(co_await connection_->read());
    CoordinatorMessage message = *std::exchange(answer_, std::nullopt);
    missed_beats_ = 0;
    if (const auto* beat = std::get_if<Beat>(&message)) {
      signs_.job = signs_in(*beat, Clock::now());
      if (beat->silent_ms) events_.push(PeerEvent{});  // silent workers may count as hung now
      continue;
    }
    if (const auto* answer = std::get_if<DrainAnswer>(&message)) {
      if (settings_.answered) settings_.answered(*answer);
      continue;
    }
    if (const auto* waiting = std::get_if<Waiting>(&message)) {
      node_timeout_ = milliseconds(waiting->node_timeout_ms);
      timer_.cancel();  // wakes beat()
      if (waiting->summary_ms && !std::exchange(summary_ms_, waiting->summary_ms))
        asio::co_spawn(io_, summarise(), asio::detached);
    }
    // It goes whatever happens to the coordinator: should that be lost, nobody must wait for this node.
    if (std::holds_alternative<Drained>(message)) send(Leave{SIGTERM});
    const auto* start = std::get_if<Start>(&message);
    if (start != nullptr && !start->in_place) signs_.begin_round();
    if (start != nullptr) begun_ = start->number, send_beat();
    const auto* end = std::get_if<End>(&message);
    const bool last = end != nullptr && !end->user_signal;
    job_ended_ = end != nullptr;
    add(std::move(message));
    if (last) co_return;  // closes the connection; the coordinator waits for that, not for our workers
  }
}

asio::awaitable<void> NodeLink::beat() {
  while (connection_->is_open()) {
    timer_.expires_after(node_timeout_.count() > 0 ? node_timeout_ / kBeatsPerTimeout
                                                   : settings_.greeting_timeout);
    boost::system::error_code cancelled;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (cancelled) continue;
    // Count beats, not time: a stopped program, such as a job suspended by Slurm, hears nothing.
    if (!job_ended_ && (node_timeout_.count() == 0 || ++missed_beats_ > kBeatsPerTimeout)) {
      timed_out_ = true;
      connection_->close();
    }
    send_beat();
  }
}

void NodeLink::send_beat() {
  Beat beat = signs_.next_beat(Clock::now());
  beat.begun = begun_;
  beat.running = running_;
  send(beat);
}

KnownSigns NodeLink::share_signs(const KnownSigns& own, milliseconds timeout) {
  if (signs_.take_own(own, timeout)) send_beat();
  return signs_.job;
}

/// A coordinator that reads slowly gets fewer summaries.
asio::awaitable<void> NodeLink::summarise() {
  while (connection_->is_open()) {
    summary_timer_.expires_after(milliseconds(*summary_ms_));
    co_await summary_timer_.async_wait(asio::use_awaitable);
    if (connection_->is_sending()) continue;
    for (const Summary& summary : settings_.summaries()) send(summary);
  }
}

}  // namespace ddprun::launcher
