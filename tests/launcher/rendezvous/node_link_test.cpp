#include "launcher/rendezvous/node_link.h"

#include <dlfcn.h>
#include <netdb.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <memory>
#include <optional>

#include "launcher/events/signals.h"
#include "launcher/rendezvous/connection.h"
#include "tests/launcher/stopped_clock.h"
#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace {
std::atomic<int> look_ups{0}, answered_look_ups{0}, finished_look_ups{0};  // of slow.test
}

/// In the place of the C library's: slow.test is this host, when the test lets its name server answer.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  const bool is_slow = host != nullptr && std::strcmp(host, "slow.test") == 0;
  if (is_slow) {
    for (const int number = ++look_ups; number > answered_look_ups;)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    host = "127.0.0.1";
  }
  static const auto real = reinterpret_cast<decltype(&::getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  const int error = real(host, service, hints, found);
  if (is_slow) ++finished_look_ups;
  return error;
}

namespace ddprun::launcher {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using test::ContainsSubstring;

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

/// As the coordinator: lets a node wait, and then says nothing more.
asio::awaitable<void> fall_silent(tcp::acceptor& acceptor, Waiting answer,
                                  std::shared_ptr<Connection>& node) {
  node = std::make_shared<Connection>(co_await acceptor.async_accept(asio::use_awaitable), Side::kCoordinator,
                                      /*token=*/"");
  co_await node->greet();
  co_await node->read();
  node->write(encode(answer));
}

/// As the coordinator: begins a round. Notes which one the node says that it has begun.
asio::awaitable<void> begin_round(tcp::acceptor& acceptor, std::optional<int>& begun) {
  const auto node = std::make_shared<Connection>(co_await acceptor.async_accept(asio::use_awaitable),
                                                 Side::kCoordinator, /*token=*/"");
  co_await node->greet();
  co_await node->read();
  Start start;
  start.number = 7;
  start.world_size = start.group_world_size = start.role_world_size = start.master_port = 1;
  node->write(encode(start));
  while (!begun) {
    const NodeMessage message = decode_node_message(co_await node->read());
    if (const auto* beat = std::get_if<Beat>(&message)) begun = beat->begun;
  }
}

/// What a link needs.
struct Loop {
  Loop() { ::sigprocmask(SIG_SETMASK, &before, nullptr); }  // other tests need them

  /// Whether what peers send makes the condition true, while no time passes.
  template <typename Condition>
  bool run_until(Condition condition) {
    const auto end = std::chrono::steady_clock::now() + 30s;
    while (!condition() && std::chrono::steady_clock::now() < end) {
      io.restart();
      io.run_one_for(10ms);
    }
    return condition();
  }

  sigset_t before = [] {
    sigset_t mask;
    ::sigprocmask(SIG_SETMASK, nullptr, &mask);
    return mask;
  }();
  asio::io_context io;
  const SignalFd signals{{}, {}};
  JobEvents events{io, signals};
};

std::optional<std::string> lost(NodeLink& link) {
  while (const auto news = link.next())
    if (const auto* gone = std::get_if<CoordinatorLost>(&*news)) return gone->reason;
  return {};
}

TEST_CASE("a lost coordinator that accepts a node's connection and only then ends has ended", "[node_link]") {
  Loop loop;
  asio::io_context& io = loop.io;
  tcp::acceptor ending = bound(io), next = bound(io);
  ending.listen();
  std::optional<Join> join;
  NodeLink::Settings settings;
  settings.endpoints = {endpoint_of(ending), endpoint_of(next)};
  settings.former_coordinator = settings.endpoints[0];
  settings.connect_timeout = std::chrono::minutes(1);  // the machine may be busy
  settings.after_loss = true;
  settings.since = LoopClock::now();
  settings.before_connecting = [&](const Endpoint&, std::size_t place, bool asked_all, const auto&) {
    if (place == 1 && asked_all) asio::co_spawn(io, receive(next, io, join), asio::detached);
    return NodeLink::Way();
  };
  asio::co_spawn(io, accept_and_end(ending), asio::detached);
  const NodeLink link(io, loop.events, settings);
  io.run_for(std::chrono::seconds(60));
  REQUIRE(join);
  CHECK(join->former.nobody_listens);
}

TEST_CASE("after a loss a node waits for a name server no longer than for a node, and uses its late answer",
          "[node_link]") {
  const test::StoppedClock clock;
  Loop loop;
  const tcp::acceptor nobody = bound(loop.io);
  NodeLink::Settings settings;
  settings.endpoints = {endpoint_of(nobody), endpoint_of(nobody)};
  settings.endpoints[0].host = "slow.test";
  settings.connect_timeout = 500ms;
  settings.after_loss = true;
  settings.since = LoopClock::now();
  std::vector<std::size_t> asked;
  settings.before_connecting = [&](const Endpoint&, std::size_t place, auto...) {
    asked.push_back(place);
    return NodeLink::Way();
  };
  const NodeLink link(loop.io, loop.events, settings);
  const auto asks = [&](std::size_t place) {
    asked.clear();
    const auto until = LoopClock::now() + 10s;
    while (std::ranges::count(asked, place) == 0 && LoopClock::now() < until) clock.pass(loop.io, 10ms);
    return std::ranges::count(asked, place) > 0;
  };
  CHECK(asks(1));
  CHECK(LoopClock::now() - settings.since <= 600ms);
  answered_look_ups = 1;  // the first, which the node has given up; no other one
  REQUIRE(test::wait_until([] { return finished_look_ups == 1; }));
  CHECK(asks(0));
  answered_look_ups = INT_MAX;
}

TEST_CASE("a node asks until the join timeout for a coordinator that is not there", "[node_link]") {
  const test::StoppedClock clock;
  Loop loop;
  const tcp::acceptor nobody = bound(loop.io);
  NodeLink::Settings settings;
  settings.endpoints = {endpoint_of(nobody)};
  settings.timeout = 10min;
  settings.since = LoopClock::now();
  NodeLink link(loop.io, loop.events, settings);
  std::optional<std::string> reason;
  while (!(reason = lost(link)) && LoopClock::now() < settings.since + 11min) clock.pass(loop.io, 1s);
  CHECK_THAT(reason.value_or(""), ContainsSubstring("(--join-timeout): Connection refused"));
  CHECK(LoopClock::now() - settings.since >= 10min - 1s);  // less than a pause is left
  CHECK(LoopClock::now() - settings.since <= 10min);
}

TEST_CASE("a node that hears nothing for the node timeout has lost the coordinator", "[node_link]") {
  const test::StoppedClock clock;
  Loop loop;
  tcp::acceptor acceptor = bound(loop.io);
  acceptor.listen();
  std::shared_ptr<Connection> node;
  asio::co_spawn(loop.io, fall_silent(acceptor, {.present = 1, .node_timeout_ms = 60'000}, node),
                 asio::detached);
  NodeLink::Settings settings;
  settings.endpoints = {endpoint_of(acceptor)};
  settings.since = LoopClock::now();
  NodeLink link(loop.io, loop.events, settings);
  REQUIRE(loop.run_until([&] { return link.has_joined(); }));
  clock.pass(loop.io, 0s);
  for (int quarter = 0; quarter < 4; ++quarter) clock.pass(loop.io, 15s);
  CHECK_FALSE(lost(link));
  clock.pass(loop.io, 15s);
  CHECK_THAT(lost(link).value_or(""), ContainsSubstring("it gave no sign of life"));
}

TEST_CASE("a node says at once that it has begun a round", "[node_link]") {
  const test::StoppedClock clock;
  Loop loop;
  tcp::acceptor acceptor = bound(loop.io);
  acceptor.listen();
  std::optional<int> begun;
  asio::co_spawn(loop.io, begin_round(acceptor, begun), asio::detached);
  NodeLink::Settings settings;
  settings.endpoints = {endpoint_of(acceptor)};
  settings.since = LoopClock::now();
  const NodeLink link(loop.io, loop.events, settings);
  CHECK(loop.run_until([&] { return begun.has_value(); }));
  CHECK(begun == 7);
}

}  // namespace
}  // namespace ddprun::launcher
