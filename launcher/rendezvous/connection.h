#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "launcher/events/clock.h"
#include "launcher/rendezvous/protocol.h"

namespace ddprun::launcher {

/// A TCP connection that carries messages. Held by shared_ptr, because pending operations keep it alive until
/// it is closed.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;

  /// side     ours
  /// token    empty: none
  Connection(Socket socket, Side side, const std::string& token);

  /// Exchanges greetings, before anything else. throws ProtocolError, boost::system::system_error
  boost::asio::awaitable<void> greet();
  /// True if the other side is a ddprun of our version, with or without our token.
  bool greeted() const { return greeted_; }

  /// The next message's payload. throws ProtocolError; boost::system::system_error, also at the end (eof)
  boost::asio::awaitable<std::string> read();

  /// Queues a payload. Ignored after close().
  void write(const std::string& payload);

  /// Closes it after the timeout; pending operations fail with timed_out.
  void set_time_limit(std::chrono::milliseconds timeout);
  void clear_time_limit() { timer_.cancel(); }

  /// Closes it once everything is sent, or after the timeout.
  void finish(std::chrono::milliseconds timeout);
  void close();

  bool is_open() const { return socket_.is_open(); }
  bool is_sending() const { return sending_; }
  const Socket& socket() const { return socket_; }

 private:
  boost::asio::awaitable<void> send_queue();
  boost::asio::awaitable<std::size_t> receive(char* bytes, std::size_t most);

  Socket socket_;
  Side side_;
  std::string token_;
  Timer timer_;
  std::optional<FrameReader> reader_;
  std::optional<FrameWriter> writer_;
  std::deque<std::string> queue_;
  bool sending_ = false;
  bool finishing_ = false;
  bool greeted_ = false;
  bool timed_out_ = false;
};

/// Whether the other side has ended the connection.
bool has_ended(const boost::system::error_code& error);

/// An error of a connection in words.
std::string describe(const boost::system::error_code& error);

}  // namespace ddprun::launcher
