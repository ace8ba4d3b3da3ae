#include "launcher/rendezvous/node_link.h"

#include <csignal>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <optional>

#include "launcher/events/signals.h"
#include "launcher/rendezvous/connection.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

/// A port of this host that refuses connections until somebody listens.
tcp::acceptor bound(asio::io_context& io) {
  tcp::acceptor acceptor(io, tcp::v4());
  acceptor.bind({asio::ip::address_v4::loopback(), 0});
  return acceptor;
}

Endpoint endpoint_of(const tcp::acceptor& acceptor) {
  return {"127.0.0.1", acceptor.local_endpoint().port()};
}

asio::awaitable<void> accept_and_end(tcp::acceptor& acceptor) {
  co_await acceptor.async_accept(asio::use_awaitable);
  acceptor.close();
}

/// As the coordinator: the first node's Join.
asio::awaitable<void> receive(tcp::acceptor& acceptor, asio::io_context& io, std::optional<Join>& join) {
  acceptor.listen();
  const auto node = std::make_shared<Connection>(co_await acceptor.async_accept(asio::use_awaitable),
                                                 Side::kCoordinator, /*token=*/"");
  co_await node->greet();
  join = std::get<Join>(decode_node_message(co_await node->read()));
  io.stop();
}

TEST_CASE("a lost coordinator that accepts a node's connection and only then ends has ended", "[node_link]") {
  sigset_t before;
  ::sigprocmask(SIG_SETMASK, nullptr, &before);
  asio::io_context io;
  const SignalFd signals({}, {});
  ::sigprocmask(SIG_SETMASK, &before, nullptr);  // other tests need them
  JobEvents events(io, signals);
  tcp::acceptor ending = bound(io), next = bound(io);
  ending.listen();
  std::optional<Join> join;
  NodeLink::Settings settings;
  settings.endpoints = {endpoint_of(ending), endpoint_of(next)};
  settings.former_coordinator = settings.endpoints[0];
  settings.connect_timeout = std::chrono::minutes(1);  // the machine may be busy
  settings.after_loss = true;
  settings.since = std::chrono::steady_clock::now();
  settings.before_connecting = [&](std::size_t place, bool asked_all, const auto&, auto&) {
    if (place == 1 && asked_all) asio::co_spawn(io, receive(next, io, join), asio::detached);
  };
  asio::co_spawn(io, accept_and_end(ending), asio::detached);
  const NodeLink link(io, events, settings);
  io.run_for(std::chrono::seconds(60));
  REQUIRE(join);
  CHECK(join->former.nobody_listens);
}

}  // namespace
}  // namespace ddprun::launcher
