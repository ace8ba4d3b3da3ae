#include "launcher/rendezvous/server.h"

#include <sys/resource.h>
#include <sys/socket.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstdint>
#include <exception>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/events/launch_error.h"
#include "launcher/events/threads.h"
#include "launcher/rendezvous/admission.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
using asio::ip::tcp;
using std::chrono::milliseconds;
namespace {

// A node sends Join at once; all others are strangers and must leave.
constexpr milliseconds kJoinTimeout{10'000};
constexpr milliseconds kRefusalTimeout{5'000};
constexpr milliseconds kPauseWithoutDescriptors{100};

/// The address of a node's connection; empty for the coordinator's own host.
std::string origin(const tcp::socket& socket) {
  boost::system::error_code error;
  const tcp::endpoint theirs = socket.remote_endpoint(error), ours = socket.local_endpoint(error);
  if (error || theirs.address().is_loopback() || theirs.address() == ours.address()) return "";
  return theirs.address().to_string();
}

/// The maximum number of connections without a Join: the other descriptors are for nodes and workers.
std::size_t max_strangers() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  return std::max<std::size_t>(files.rlim_cur / 2, 1);
}

int family_of(int fd) {
  int family = AF_INET;
  socklen_t size = sizeof family;
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
  return family;
}

}  // namespace

CoordinatorServer::CoordinatorServer(asio::io_context& io, CoordinatorSettings settings, std::string token,
                                     std::vector<UniqueFd> sockets, Listen listen_again)
    : io_(io),
      coordinator_(std::move(settings), Coordinator::Clock::now()),
      token_(std::move(token)),
      listen_again_(std::move(listen_again)),
      timer_(io) {
  listen(std::move(sockets));
  asio::co_spawn(io, keep_time(), rethrow);
}

void CoordinatorServer::listen(std::vector<UniqueFd> sockets) {
  listening_ = true;
  for (UniqueFd& fd : sockets) {
    const auto protocol = family_of(fd.get()) == AF_INET6 ? tcp::v6() : tcp::v4();
    Acceptor& acceptor = acceptors_.emplace_back(io_, protocol, fd.release());
    asio::co_spawn(io_, accept(acceptor), rethrow);
  }
}

CoordinatorServer::~CoordinatorServer() {
  for (const auto& [id, connection] : connections_) connection->close();
}

void CoordinatorServer::end(int exit_code, const std::string& reason, bool dump_stacks,
                            std::optional<int> user_signal) {
  coordinator_.end(exit_code, reason, dump_stacks, user_signal);
  deliver();
}

bool CoordinatorServer::hand_over(const std::string& id, int signal, const std::string& reason) {
  const bool goes_on = coordinator_.hand_over(id, signal, reason, Coordinator::Clock::now());
  deliver();
  return goes_on;
}

void CoordinatorServer::recorded(int round) {
  coordinator_.recorded(round, Coordinator::Clock::now());
  deliver();
}

void CoordinatorServer::resign() {
  coordinator_.resign();
  deliver();
}

asio::awaitable<void> CoordinatorServer::accept(Acceptor& acceptor) {
  bool warned = false;
  for (;;) {
    boost::system::error_code error;
    tcp::socket socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (!acceptor.is_open()) co_return;
    if (error) {
      if (!warned) log_warning("cannot accept a node's connection: " + error.message());
      warned = true;
      Timer pause(io_, kPauseWithoutDescriptors);
      co_await pause.async_wait(asio::use_awaitable);
      continue;
    }
    auto connection = std::make_shared<Connection>(std::move(socket), Side::kCoordinator, token_);
    if (strangers_.size() >= max_strangers()) {  // the oldest has had more time than a node needs
      strangers_.begin()->second->close();
      strangers_.erase(strangers_.begin());
    }
    strangers_.emplace(next_id_, connection);
    asio::co_spawn(io_, serve(std::move(connection), next_id_++), asio::detached);
  }
}

/// Serves one connection from its greeting to its end. Does not log strangers: port scanners come all day.
asio::awaitable<void> CoordinatorServer::serve(std::shared_ptr<Connection> connection, Id id) {
  const std::string address = origin(connection->socket());
  const std::int64_t accepted_ms = time_of_day_ms();
  std::string reason;
  bool malformed = false;
  try {
    connection->set_time_limit(kJoinTimeout);
    co_await connection->greet();
    for (;;) {
      NodeMessage message = decode_node_message(co_await connection->read());
      if (auto* join = std::get_if<Join>(&message); join != nullptr && join->unfit.empty() && join->clock_ms)
        join->unfit = clock_problem(*join->clock_ms, accepted_ms, time_of_day_ms());
      if (strangers_.contains(id)) {
        if (!std::holds_alternative<Join>(message))
          throw ProtocolError("expected the first message to be a join, got another one");
        strangers_.erase(id);
        connection->clear_time_limit();
        connections_.emplace(id, connection);
      }
      coordinator_.receive(id, message, address, Coordinator::Clock::now());
      const auto* summary = std::get_if<Summary>(&message);
      if (const auto* node = coordinator_.node_name(id); node != nullptr && summary != nullptr && on_summary_)
        on_summary_(*node, *summary);
      deliver();
    }
  } catch (const boost::system::system_error& error) {
    reason = describe(error.code());
  } catch (const std::exception& error) {
    reason = error.what();
    malformed = connection->greeted();
  }
  if (malformed) {
    warn("a connection from " + (address.empty() ? "this host" : address) + ": " + printable(reason));
    connection->write(
        encode(Refused{reason}));  // with another token the node cannot read it, which tells it as much
    connection->finish(kRefusalTimeout);
  } else {
    connection->close();
  }
  coordinator_.lose(id, reason, Coordinator::Clock::now());
  strangers_.erase(id);
  connections_.erase(id);
  deliver();
}

asio::awaitable<void> CoordinatorServer::keep_time() {
  for (;;) {
    timer_.expires_at(coordinator_.next_tick());
    boost::system::error_code woken;
    co_await timer_.async_wait(asio::redirect_error(asio::use_awaitable, woken));
    if (woken) continue;  // the next tick is now earlier
    coordinator_.tick(Coordinator::Clock::now());
    deliver();
    if (const auto line = limit_.pass_rest(Coordinator::Clock::now())) log_warning(*line);
  }
}

/// Nodes that arrive after the end belong to the next job at this endpoint.
void CoordinatorServer::open_or_close_port() {
  const bool wanted =
      listen_again_ ? coordinator_.wants_nodes() : !coordinator_.ended() && !coordinator_.resigned();
  if (listening_ && !wanted) {
    for (Acceptor& acceptor : acceptors_) acceptor.close();
    listening_ = false;
  } else if (wanted && !listening_) {
    try {
      listen(listen_again_());
    } catch (const LaunchError& error) {
      coordinator_.end(error.exit_code, error.what());
    }
  }
}

void CoordinatorServer::warn(const std::string& line) {
  if (const auto text = limit_.pass(line, Coordinator::Clock::now())) log_warning(*text);
}

/// Sends what the coordinator decided.
void CoordinatorServer::deliver() {
  open_or_close_port();  // before the node of rank 0 reserves the port
  for (const auto& [node, text] : coordinator_.take_drains())
    if (on_drain_) on_drain_(node, text);
  for (auto& [id, message] : coordinator_.take_messages()) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    const auto* refused = std::get_if<Refused>(&message);
    if (refused != nullptr && !(ended() && how_ended()->reason.find(refused->reason) != std::string::npos))
      warn("refused: " + refused->reason);  // else it is the job's error
    found->second->write(encode(message));
    if (refused != nullptr) found->second->finish(kRefusalTimeout);
  }
  if (coordinator_.resigned() || coordinator_.all_ended())
    for (const auto& [id, connection] : std::map(connections_)) connection->finish(kRefusalTimeout);
  if (coordinator_.next_tick() != timer_.expiry()) timer_.cancel();
  if (on_change_) on_change_();
  // A node of ours that takes no part any more hears of the end only here.
  if ((all_gone() || coordinator_.ended()) && on_all_gone_) on_all_gone_();
}

}  // namespace ddprun::launcher
