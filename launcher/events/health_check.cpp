#include "launcher/events/health_check.h"

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <string_view>

#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include "launcher/events/timer.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
using asio::ip::tcp;
namespace {

constexpr char kHealthPort[] = "TORCHELASTIC_HEALTH_CHECK_PORT";
constexpr std::string_view kAnswer =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
constexpr std::chrono::milliseconds kRequestTimeout{200};  // silent clients are answered after it
constexpr std::chrono::milliseconds kCloseTimeout{1000};
constexpr int kMaxClients = 16;

/// Waits until there is something to read, at most this long.
asio::awaitable<void> wait_to_read(std::shared_ptr<tcp::socket> socket, std::chrono::milliseconds limit) {
  Timer timer(socket->get_executor(), limit);
  timer.async_wait([socket](const boost::system::error_code& cancelled) {
    boost::system::error_code ignored;
    if (!cancelled) socket->cancel(ignored);
  });
  boost::system::error_code ignored;
  co_await socket->async_wait(tcp::socket::wait_read, asio::redirect_error(asio::use_awaitable, ignored));
}

asio::awaitable<void> answer(std::shared_ptr<tcp::socket> socket, std::shared_ptr<int> clients) {
  const auto left = [](int* count) { --*count; };
  const std::unique_ptr<int, decltype(left)> one_less(clients.get(), left);
  char request[4096];
  boost::system::error_code error;
  socket->non_blocking(true, error);
  co_await wait_to_read(socket, kRequestTimeout);
  socket->read_some(asio::buffer(request), error);
  socket->write_some(asio::buffer(kAnswer), error);
  socket->shutdown(tcp::socket::shutdown_send, error);
  co_await wait_to_read(socket, kCloseTimeout);  // closing before the client does may lose the answer
}

asio::awaitable<void> serve(tcp::acceptor acceptor) {
  const auto clients = std::make_shared<int>(0);
  for (;;) {
    boost::system::error_code error;
    auto socket = std::make_shared<tcp::socket>(
        co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error)));
    if (error) {  // for instance no descriptor left
      Timer timer(acceptor.get_executor(), kCloseTimeout);
      co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else if (*clients < kMaxClients) {
      ++*clients;
      asio::co_spawn(acceptor.get_executor(), answer(std::move(socket), clients), asio::detached);
    }
  }
}

/// On all IPv6 and IPv4 addresses, or only IPv4 where there is no IPv6.
tcp::acceptor listen_everywhere(asio::io_context& io, unsigned short port, boost::system::error_code& error) {
  tcp::acceptor acceptor(io);
  auto address = tcp::endpoint(tcp::v6(), port);
  acceptor.open(tcp::v6(), error);
  if (error) {
    address = tcp::endpoint(tcp::v4(), port);
    acceptor.open(tcp::v4(), error);
  } else {
    acceptor.set_option(asio::ip::v6_only(false), error);
  }
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(address, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  return acceptor;
}

}  // namespace

void answer_health_checks(asio::io_context& io, const std::string& port) {
  const auto number = parse_integer(port, 1, 65535);
  if (!number)
    return log_warning(std::string(kHealthPort) + ": expected a port from 1 to 65535, got " +
                       single_quoted(port) + "; nothing listens there");
  boost::system::error_code error;
  tcp::acceptor acceptor = listen_everywhere(io, static_cast<unsigned short>(*number), error);
  if (error)
    return log_warning(std::string(kHealthPort) + ": cannot listen on port " + port + ": " + error.message());
  asio::co_spawn(io, serve(std::move(acceptor)), asio::detached);
}

}  // namespace ddprun::launcher
