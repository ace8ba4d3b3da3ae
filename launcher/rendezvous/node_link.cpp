#include "launcher/rendezvous/node_link.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <exception>
#include <stdexcept>

#include <ddprun/common/logging.h>
#include "launcher/events/job_clock.h"
#include "launcher/events/launch_error.h"
#include "launcher/host/port_owner.h"
#include "launcher/rendezvous/resolve.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
namespace {

constexpr milliseconds kConnectTimeout{5'000};  // of one attempt, to one address
constexpr milliseconds kNoticeAfter{3'000};
constexpr milliseconds kLastWords{2'000};

/// An IPv4 address as such, even where it is spoken to through IPv6.
std::string numeric(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  return address.to_string();
}

}  // namespace

NodeLink::NodeLink(asio::io_context& io, JobEvents& events, Settings settings)
    : events_(events), io_(io), settings_(std::move(settings)), timer_(io) {
  asio::co_spawn(io, run(), asio::detached);
}

NodeLink::~NodeLink() {
  if (connection_) connection_->close();
}

void NodeLink::add(CoordinatorNews news) {
  news_.push_back(std::move(news));
  events_.push(PeerNews{});
}

std::optional<CoordinatorNews> NodeLink::next() {
  if (news_.empty()) return {};
  CoordinatorNews first = std::move(news_.front());
  news_.pop_front();
  return first;
}

std::optional<std::string> NodeLink::wants_end() const {
  for (const CoordinatorNews& news : news_) {
    if (const auto* lost = std::get_if<CoordinatorLost>(&news)) return lost->reason;
    const auto& message = std::get<CoordinatorMessage>(news);
    if (const auto* stop = std::get_if<Stop>(&message)) return stop->reason;
    if (const auto* end = std::get_if<End>(&message)) return end->reason;
    if (const auto* refused = std::get_if<Refused>(&message)) return refused->reason;
  }
  return {};
}

void NodeLink::send(const NodeMessage& message) {
  if (connection_) connection_->write(encode(message));
}

void NodeLink::finish() {
  timer_.cancel();
  if (connection_) connection_->finish(kLastWords);
}

asio::awaitable<void> NodeLink::run() {
  std::string reason;
  try {
    co_await connect();
    send(settings_.join);
    asio::co_spawn(io_, beat(), asio::detached);
    co_await listen();
  } catch (const boost::system::system_error& error) {
    reason = silent_ ? "it gave no sign of life" : describe(error.code());
  } catch (const LaunchError& error) {
    co_return add(CoordinatorLost{error.what()});
  } catch (const std::exception& error) {
    reason = error.what();
  }
  const bool was_connected = connection_ != nullptr;
  if (was_connected) connection_->close();
  timer_.cancel();
  if (reason.empty()) co_return;
  add(CoordinatorLost{(was_connected ? "lost the coordinator at " : "cannot reach the coordinator at ") +
                      to_string(settings_.endpoint) + ": " + reason});
}

/// Until somebody answers. What answers and is no coordinator, or has another token, ends the attempts.
asio::awaitable<void> NodeLink::connect() {
  const auto begin = Clock::now();
  bool told = false;
  for (milliseconds pause{50};; pause = std::min(pause * 2, milliseconds(1000))) {
    std::string why;
    try {
      co_await connect_once();
      co_return;
    } catch (const ProtocolError&) {
      throw;
    } catch (const LaunchError&) {
      throw;
    } catch (const boost::system::system_error& error) {
      why = describe(error.code());
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
    const auto waited = Clock::now() - begin;
    if (waited + pause >= settings_.timeout)
      throw std::runtime_error(why + ", for " + in_seconds(settings_.timeout) + " (--join-timeout)");
    if (!told && waited >= kNoticeAfter) {
      log_info("trying to reach the coordinator at " + to_string(settings_.endpoint) + ": " + why);
      told = true;
    }
    timer_.expires_after(pause);
    co_await timer_.async_wait(asio::use_awaitable);
  }
}

/// Every address once, in their order. throws the last one's error
asio::awaitable<void> NodeLink::connect_once() {
  const auto addresses = co_await resolve(settings_.endpoint);
  if (settings_.before_connecting) settings_.before_connecting(addresses, settings_);
  boost::system::error_code error = asio::error::host_not_found;
  for (const tcp::endpoint& address : addresses) {
    const auto socket = std::make_shared<tcp::socket>(io_);
    timer_.expires_after(kConnectTimeout);
    timer_.async_wait([socket](const boost::system::error_code& cancelled) {
      boost::system::error_code ignored;
      if (!cancelled) socket->close(ignored);
    });
    co_await socket->async_connect(address, asio::redirect_error(asio::use_awaitable, error));
    if (timer_.cancel() == 0) error = asio::error::timed_out;
    if (error) continue;
    const std::string theirs = numeric(socket->remote_endpoint()), ours = numeric(socket->local_endpoint());
    auto connection = std::make_shared<Connection>(std::move(*socket), Side::kNode, settings_.token);
    connection->set_time_limit(std::min(settings_.greeting_timeout, settings_.timeout));
    try {
      co_await connection->greet();
    } catch (const std::exception& failure) {
      // Who hangs up may have been a coordinator that has just ended: that one is tried again.
      const auto* broken = dynamic_cast<const boost::system::system_error*>(&failure);
      const bool hung_up = broken != nullptr && broken->code() != asio::error::timed_out;
      if (connection->greeted() || !settings_.must_greet || hung_up) throw;
      throw LaunchError(LaunchError::kOwnFailure, to_string(settings_.endpoint) + " is taken" +
                                                      port_owner(address.port()) +
                                                      ", which does not answer as a ddprun");
    }
    connection->clear_time_limit();
    coordinator_address_ = theirs;
    local_address_ = ours;
    connection_ = std::move(connection);
    co_return;
  }
  throw boost::system::system_error(error);
}

asio::awaitable<void> NodeLink::listen() {
  for (;;) {
    CoordinatorMessage message = decode_coordinator_message(co_await connection_->read());
    unheard_beats_ = 0;
    if (std::holds_alternative<Beat>(message)) continue;
    if (const auto* waiting = std::get_if<Waiting>(&message)) {
      node_timeout_ = milliseconds(waiting->node_timeout_ms);
      timer_.cancel();  // for beat() to see it
    }
    const bool last = std::holds_alternative<End>(message);
    add(std::move(message));
    if (last)
      co_return;  // which closes the connection: the coordinator waits for that, and not for our workers
  }
}

asio::awaitable<void> NodeLink::beat() {
  while (connection_->is_open()) {
    timer_.expires_after(node_timeout_.count() > 0 ? node_timeout_ / kBeatsPerTimeout
                                                   : settings_.greeting_timeout);
    boost::system::error_code cancelled;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, cancelled));
    if (cancelled) continue;
    // Beats are counted and not the time: had this program been stopped, as by Slurm's suspension of a job,
    // it would have heard nobody.
    if (node_timeout_.count() == 0 || ++unheard_beats_ > kBeatsPerTimeout) {
      silent_ = true;
      connection_->close();
    }
    send(Beat{});
  }
}

}  // namespace ddprun::launcher
