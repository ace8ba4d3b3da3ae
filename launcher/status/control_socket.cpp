#include "launcher/status/control_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <memory>
#include <utility>

#include <ddprun/common/logging.h>
#include "launcher/events/timer.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace {

using asio::local::stream_protocol;
using Socket = stream_protocol::socket;

constexpr std::size_t kMaxQuestion = 4096;
constexpr std::chrono::seconds kAnswerTimeout{5};  // for a client to read its answer
constexpr std::chrono::seconds kAcceptPause{1};
constexpr int kMaxAskers = 32;

bool is_this_user(Socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

asio::awaitable<void> serve_asker(std::shared_ptr<Socket> socket,
                                  std::shared_ptr<const JobQuestions> questions,
                                  std::shared_ptr<int> askers) {
  const auto left = [](int* count) { --*count; };
  const std::unique_ptr<int, decltype(left)> one_less(askers.get(), left);
  std::string received;
  for (;;) {
    boost::system::error_code error;
    const auto size = co_await asio::async_read_until(*socket, asio::dynamic_buffer(received, kMaxQuestion),
                                                      '\n', asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const std::string reply = co_await answer_line(*questions, received.substr(0, size));
    received.erase(0, size);
    Timer patience(socket->get_executor(), kAnswerTimeout);
    patience.async_wait([socket](const boost::system::error_code& cancelled) {
      boost::system::error_code ignored;
      if (!cancelled) socket->close(ignored);
    });
    co_await asio::async_write(*socket, asio::buffer(reply),
                               asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
  }
}

asio::awaitable<void> accept_askers(stream_protocol::acceptor acceptor,
                                    std::shared_ptr<const JobQuestions> questions) {
  const auto askers = std::make_shared<int>(0);
  for (;;) {
    boost::system::error_code error;
    auto socket = std::make_shared<Socket>(
        co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error)));
    if (error) {  // for instance no descriptor left
      Timer pause(acceptor.get_executor(), kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else if (*askers < kMaxAskers && is_this_user(*socket)) {
      ++*askers;
      asio::co_spawn(acceptor.get_executor(), serve_asker(std::move(socket), questions, askers),
                     asio::detached);
    }
  }
}

}  // namespace

ControlSocket::ControlSocket(asio::io_context& io, const std::string& name, JobQuestions questions) {
  stream_protocol::acceptor acceptor(io);
  boost::system::error_code error;
  const auto folder = control_folder(), path = folder / (name + ".sock"), unready = folder / (name + ".new");
  ::mkdir(folder.c_str(), 0700);
  if (is_private_folder(folder)) {
    in_use_.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ::flock(in_use_.get(), LOCK_SH);
  } else {
    error = asio::error::access_denied;
  }
  if (path.native().size() >= sizeof(sockaddr_un::sun_path)) error = asio::error::name_too_long;
  if (!error) acceptor.open(stream_protocol(), error);
  if (!error) acceptor.bind(unready.string(), error);
  if (!error) ::chmod(unready.c_str(), 0600);
  if (!error) acceptor.listen(stream_protocol::acceptor::max_listen_connections, error);
  // Only now, because ddpctl treats a socket without a listener as abandoned.
  if (!error && ::rename(unready.c_str(), path.c_str()) == 0) path_ = path;
  if (error) {
    log_info("ddpctl cannot see this job: no socket in " + folder.string() + ": " + error.message());
    return;
  }
  asio::co_spawn(
      io, accept_askers(std::move(acceptor), std::make_shared<const JobQuestions>(std::move(questions))),
      asio::detached);
}

void remove_control_socket(const std::string& name) {
  const auto folder = control_folder();
  if (is_private_folder(folder)) ::unlink((folder / (name + ".sock")).c_str());
}

ControlSocket::~ControlSocket() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

}  // namespace ddprun::launcher
