#include "launcher/rendezvous/connection.h"

#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

// Messages are small and rare: a side this far behind is dead.
constexpr std::size_t kMaxQueue = 1024;

}  // namespace

Connection::Connection(Socket socket, Side side, const std::string& token)
    : socket_(std::move(socket)), side_(side), token_(token), timer_(socket_.get_executor()) {
  boost::system::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

asio::awaitable<void> Connection::greet() {
  const Greeting ours = make_greeting(!token_.empty());
  const std::string text = encode(ours);
  co_await asio::async_write(socket_, asio::buffer(text), asio::use_awaitable);
  std::string theirs(kGreetingSize, '\0');
  for (std::size_t got = 0; got < theirs.size();) {
    got += co_await receive(theirs.data() + got, theirs.size() - got);
    // A stranger may send fewer bytes than a greeting has.
    const auto begin = std::string_view(theirs).substr(0, got);
    if (!may_be_greeting(begin)) decode_greeting(begin);
  }
  const Greeting other = decode_greeting(theirs);
  greeted_ = true;
  const bool node = side_ == Side::kNode;
  const SessionSecrets secrets{token_, node ? ours : other, node ? other : ours};
  writer_.emplace(side_, secrets);
  reader_.emplace(node ? Side::kCoordinator : Side::kNode, secrets);
}

asio::awaitable<std::string> Connection::read() {
  for (;;) {
    if (auto payload = reader_->next()) co_return *payload;
    std::array<char, 4096> bytes;
    const std::size_t got = co_await receive(bytes.data(), bytes.size());
    reader_->feed(std::string_view(bytes.data(), got));
  }
}

asio::awaitable<std::size_t> Connection::receive(char* bytes, std::size_t most) {
  const auto self = shared_from_this();
  boost::system::error_code error;
  const std::size_t got = co_await socket_.async_read_some(asio::buffer(bytes, most),
                                                           asio::redirect_error(asio::use_awaitable, error));
  if (error) throw boost::system::system_error(timed_out_ ? asio::error::timed_out : error);
  co_return got;
}

void Connection::write(const std::string& payload) {
  if (!socket_.is_open() || !writer_ || finishing_) return;
  if (queue_.size() >= kMaxQueue) return close();
  queue_.push_back(writer_->frame(payload));
  if (sending_) return;
  sending_ = true;
  asio::co_spawn(socket_.get_executor(), send_queue(), asio::detached);
}

asio::awaitable<void> Connection::send_queue() {
  const auto self = shared_from_this();
  boost::system::error_code error;
  while (!queue_.empty() && !error) {
    const std::string frame = std::move(queue_.front());
    queue_.pop_front();
    co_await asio::async_write(socket_, asio::buffer(frame),
                               asio::redirect_error(asio::use_awaitable, error));
  }
  sending_ = false;
  if (error || finishing_) close();
}

void Connection::finish(std::chrono::milliseconds timeout) {
  finishing_ = true;
  if (!sending_) return close();
  set_time_limit(timeout);
}

void Connection::set_time_limit(std::chrono::milliseconds timeout) {
  timer_.expires_after(timeout);
  timer_.async_wait([self = shared_from_this()](const boost::system::error_code& cancelled) {
    if (cancelled) return;
    self->timed_out_ = true;
    self->close();
  });
}

void Connection::close() {
  boost::system::error_code ignored;
  socket_.close(ignored);
  timer_.cancel();
}

bool has_ended(const boost::system::error_code& error) {
  // A dying process resets the connection if it has unread data.
  return error == asio::error::eof || error == asio::error::connection_reset ||
         error == asio::error::broken_pipe || error == asio::error::not_connected;
}

std::string describe(const boost::system::error_code& error) {
  return has_ended(error) ? "the connection ended" : error.message();
}

}  // namespace ddprun::launcher
