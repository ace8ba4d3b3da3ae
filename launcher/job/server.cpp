#include "launcher/job/server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/basic_socket_acceptor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/clock.h"
#include "launcher/events/threads.h"
#include "launcher/rendezvous/listen.h"
#include "launcher/rendezvous/protocol.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
namespace {

using json = nlohmann::ordered_json;
using asio::local::stream_protocol;
using Response = http::response<http::string_body>;

constexpr std::chrono::seconds kDrainPatience{5};
constexpr int kMostRequestLevels = 4;
constexpr std::size_t kMaxQuestion = 4096;
constexpr std::chrono::seconds kAnswerTimeout{5};  // for a client to read its answer
constexpr std::chrono::seconds kAcceptPause{1};
constexpr int kMaxAskers = 32, kMaxBrowsers = 32, kMaxProbes = 16;
constexpr std::chrono::seconds kHttpTimeout{10};
constexpr std::uint32_t kMaxHttpHeader = 8192;
constexpr std::size_t kMostReportBytes = std::size_t{64} << 20;
constexpr char kHealthPort[] = "TORCHELASTIC_HEALTH_CHECK_PORT";
constexpr std::string_view kHealthy =
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nConnection: close\r\n\r\nok\n";
constexpr std::chrono::milliseconds kProbeTimeout{200};  // silent clients are answered after it
constexpr std::chrono::milliseconds kCloseTimeout{1000};

/// Accepts connections for ever, and answers this many of them at a time; further ones are closed.
template <typename Protocol, typename Answer>
asio::awaitable<void> serve(asio::basic_socket_acceptor<Protocol> acceptor, int most, Answer answer) {
  const auto clients = std::make_shared<int>(0);
  for (;;) {
    boost::system::error_code error;
    auto socket = std::make_shared<typename Protocol::socket>(
        co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error)));
    if (error) {  // for instance no descriptor left
      Timer pause(acceptor.get_executor(), kAcceptPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else if (*clients < most) {
      ++*clients;
      asio::co_spawn(acceptor.get_executor(), answer(std::move(socket)),
                     [clients](const std::exception_ptr&) { --*clients; });
    }
  }
}

template <typename Protocol>
void listen(asio::basic_socket_acceptor<Protocol>& acceptor, const typename Protocol::endpoint& place,
            boost::system::error_code& error) {
  if (!acceptor.is_open()) acceptor.open(place.protocol(), error);
  if constexpr (std::is_same_v<Protocol, tcp>)
    if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(place, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
}

// -- ddpctl --

bool is_this_user(stream_protocol::socket& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket.native_handle(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 &&
         (peer.uid == ::geteuid() || peer.uid == 0);
}

asio::awaitable<std::string> answer_line(JobMonitor& monitor, std::string line) {
  json reply = {{"error", R"(expected {"ask": "status", "output", "stacks", "drain" or "stop"})"}};
  try {
    const auto request = parse_shallow_json(line, kMostRequestLevels);
    const std::string ask = request.is_object() ? request.value("ask", "") : "";
    const auto rank = request.is_object() && request.contains("rank")
                          ? std::optional(request.at("rank").get<int>())
                          : std::nullopt;
    if (ask == "status") reply = monitor.view();
    if (ask == "output") reply = monitor.output(rank.value_or(0), request.value("seen", std::uint64_t{0}));
    if (ask == "stop") reply = monitor.stop();
    if (ask == "drain") reply = co_await monitor.drain(request.value("node", ""), kDrainPatience);
    if (ask == "stacks") reply = co_await monitor.stacks(rank);
  } catch (const std::exception& error) {  // not JSON, or of another form
    reply = {{"error", error.what()}};
  }
  co_return reply.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

asio::awaitable<void> answer_asker(JobMonitor& monitor, std::shared_ptr<stream_protocol::socket> socket) {
  std::string received;
  while (is_this_user(*socket)) {
    boost::system::error_code error;
    const auto size = co_await asio::async_read_until(*socket, asio::dynamic_buffer(received, kMaxQuestion),
                                                      '\n', asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const std::string line = received.substr(0, size);  // named: GCC 12
    const std::string reply = co_await answer_line(monitor, line);
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

// -- metrics --

/// The current content of the page that a worker of this node has named.
/// The newest report of a worker of this node; nullopt: there is none, or the disk does not answer.
asio::awaitable<std::optional<std::string>> read_report(const nlohmann::ordered_json& view) {
  std::vector<std::filesystem::path> pages;
  for (const auto& rank : view["ranks"]) pages.emplace_back(rank["status"].value("report", ""));
  const auto found = std::make_shared<std::optional<std::string>>();
  const std::function<void()> read = [found, pages] {
    for (const auto& page : pages) try {
        std::error_code error;
        if (page.empty() || !std::filesystem::is_regular_file(page, error)) continue;  // not yet
        *found = read_file(page, kMostReportBytes);
        return;
      } catch (const IoError&) {  // as if there were none
      }
  };
  const AsideEnd end = co_await run_aside(read, LoopClock::now() + kHttpTimeout);
  co_return end == AsideEnd::kDone ? *found : std::nullopt;
}

Response respond(JobMonitor& monitor, const std::string& token,
                 const http::request<http::string_body>& request) {
  Response response(http::status::ok, request.version());
  response.keep_alive(request.keep_alive());
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  const auto target = request.target().substr(0, request.target().find('?'));
  const auto said = request[http::field::authorization];
  if (!token.empty() && !equal_in_constant_time("Bearer " + token, {said.data(), said.size()})) {
    response.result(http::status::unauthorized);
    response.set(http::field::www_authenticate, "Bearer");
    response.body() = "expected the header Authorization: Bearer TOKEN\n";
  } else if (const auto host = request[http::field::host];
             token.empty() && !names_this_host({host.data(), host.size()}, host_name())) {
    response.result(http::status::misdirected_request);
    response.body() = "expected the header Host to name this host (an address, localhost or " + host_name() +
                      "), got " + in_quotes({host.data(), host.size()}) + "\n";
  } else if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
  } else if (target == "/metrics") {
    response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response.body() = metrics_text(monitor.view());
  } else if (target == "/status") {
    response.set(http::field::content_type, "application/json");
    response.body() = monitor.view().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  } else if (target == "/report") {
    response.result(http::status::not_found);  // unless it can be read(), aside
    response.body() = "no worker of this node has written a report yet\n";
  } else if (target == "/healthz") {
    response.body() = "ok\n";
  } else {
    response.result(http::status::not_found);
    response.body() = "expected /metrics, /report, /status or /healthz\n";
  }
  response.prepare_payload();
  if (request.method() == http::verb::head) response.body().clear();
  return response;
}

asio::awaitable<void> answer_browser(JobMonitor& monitor, std::string token,
                                     std::shared_ptr<tcp::socket> socket) {
  boost::beast::tcp_stream stream(std::move(*socket));
  boost::beast::flat_buffer buffer;
  for (bool keep = true; keep;) {
    boost::system::error_code error;
    http::request_parser<http::string_body> parser;
    parser.header_limit(kMaxHttpHeader);
    parser.body_limit(kMaxHttpHeader);
    stream.expires_after(kHttpTimeout);
    co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    Response response = respond(monitor, token, parser.get());
    if (response.result() == http::status::not_found && parser.get().target().starts_with("/report")) {
      const auto view = monitor.view();
      auto page = co_await read_report(view);
      if (page) {
        response.result(http::status::ok);
        response.set(http::field::content_type, "text/html; charset=utf-8");
        response.body() = std::move(*page);
        response.prepare_payload();
        if (parser.get().method() == http::verb::head) response.body().clear();
      }
    }
    keep = response.keep_alive();
    stream.expires_after(kHttpTimeout);
    co_await http::async_write(stream, response, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
  }
}

// -- health checks --

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

/// Also one that never sends a request, which an HTTP server would wait for.
asio::awaitable<void> answer_probe(std::shared_ptr<tcp::socket> socket) {
  char request[4096];
  boost::system::error_code error;
  socket->non_blocking(true, error);
  co_await wait_to_read(socket, kProbeTimeout);
  socket->read_some(asio::buffer(request), error);
  socket->write_some(asio::buffer(kHealthy), error);
  socket->shutdown(tcp::socket::shutdown_send, error);
  co_await wait_to_read(socket, kCloseTimeout);  // closing before the client does may lose the answer
}

}  // namespace

std::filesystem::path control_folder() {
  if (const auto named = process_env("DDPRUN_CONTROL_DIR"); named && !named->empty()) return *named;
  return "/tmp/ddprun-" + std::to_string(::geteuid());
}

bool is_private_folder(const std::filesystem::path& folder) {
  struct stat info {};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0;
}

ControlSocket::ControlSocket(asio::io_context& io, const std::string& name, JobMonitor& monitor) {
  stream_protocol::acceptor acceptor(io);
  boost::system::error_code error;
  const auto folder = control_folder(), path = folder / (name + ".sock"), unready = folder / (name + ".new");
  ::mkdir(folder.c_str(), 0700);
  if (is_private_folder(folder)) {
    in_use_.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ::flock(in_use_.get(), LOCK_SH | LOCK_NB);  // whoever holds it alone keeps no job from starting
  } else {
    error = asio::error::access_denied;
  }
  if (path.native().size() >= sizeof(sockaddr_un::sun_path)) error = asio::error::name_too_long;
  if (!error) listen<stream_protocol>(acceptor, unready.string(), error);
  if (!error) ::chmod(unready.c_str(), 0600);
  // Only now, because ddpctl treats a socket without a listener as abandoned.
  if (!error && ::rename(unready.c_str(), path.c_str()) == 0) path_ = path;
  if (error) {
    log_info("ddpctl cannot see this job: no socket in " + folder.string() + ": " + error.message());
    return;
  }
  const auto answer = [&monitor](auto socket) { return answer_asker(monitor, std::move(socket)); };
  asio::co_spawn(io, serve<stream_protocol>(std::move(acceptor), kMaxAskers, answer), asio::detached);
}

bool is_job_socket(const std::filesystem::path& path) {
  const std::string name = path.filename();
  return name.size() == 8 + 5 && name.ends_with(".sock") && name.find_first_not_of("0123456789abcdef") == 8;
}

void remove_if_dead(const std::filesystem::path& socket) {
  constexpr std::time_t kMinute = 60;  // whose ddprun was killed before it listened, or is about to
  struct stat info {};
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = socket;
  const bool unready = socket.extension() == ".new";
  if (!is_job_socket(unready ? std::filesystem::path(socket).replace_extension(".sock") : socket) ||
      path.size() >= sizeof address.sun_path || ::lstat(path.c_str(), &info) != 0 ||
      !S_ISSOCK(info.st_mode) || info.st_uid != ::geteuid() ||
      (unready && std::time(nullptr) - info.st_mtime <= kMinute))
    return;
  path.copy(address.sun_path, path.size());
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (fd && ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
      errno == ECONNREFUSED)
    ::unlink(path.c_str());
}

void remove_dead_sockets() {
  const auto folder = control_folder();
  if (!is_private_folder(folder)) return;
  for (const auto& entry : folder_entries(folder)) remove_if_dead(entry);
}

ControlSocket::~ControlSocket() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

bool names_this_host(std::string_view host, const std::string& own_name) {
  if (host.empty()) return true;
  std::string name(host.substr(0, host.find(':')));
  if (host.starts_with('[')) name = host.substr(1, host.find(']') - 1);
  if (name.ends_with('.')) name.pop_back();
  name = lower_case(name);
  const std::string own = lower_case(own_name);
  boost::system::error_code no_address;
  asio::ip::make_address(name, no_address);
  return !no_address || name == "localhost" || name.ends_with(".localhost") || name == own ||
         name == own.substr(0, own.find('.'));
}

void serve_metrics(asio::io_context& io, const Endpoint& endpoint, const std::string& token,
                   JobMonitor& monitor) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(endpoint.host, error);
  tcp::acceptor acceptor(io);
  if (!error) listen<tcp>(acceptor, {address, static_cast<unsigned short>(endpoint.port)}, error);
  if (error)
    return log_warning("--metrics-port: cannot listen on " + to_string(endpoint) + port_owner(endpoint.port) +
                       ": " + error.message() + "; metrics are not served");
  log_info("metrics: http://" + to_string({endpoint.host, acceptor.local_endpoint().port()}) + "/metrics");
  const auto answer = [&monitor, token](auto socket) {
    return answer_browser(monitor, token, std::move(socket));
  };
  asio::co_spawn(io, serve<tcp>(std::move(acceptor), kMaxBrowsers, answer), asio::detached);
}

void answer_health_checks(asio::io_context& io, const std::string& port) {
  const auto number = parse_integer(port, 1, 65535);
  if (!number)
    return log_warning(std::string(kHealthPort) + ": expected a port from 1 to 65535, got " +
                       single_quoted(port) + "; nothing listens there");
  boost::system::error_code error;
  tcp::acceptor acceptor(io);
  acceptor.open(tcp::v6(), error);  // for IPv4 too; where there is no IPv6, only for that
  if (!error) acceptor.set_option(asio::ip::v6_only(false), error);
  const auto protocol = acceptor.is_open() ? tcp::v6() : tcp::v4();
  if (!acceptor.is_open()) error.clear();
  if (!error) listen<tcp>(acceptor, {protocol, static_cast<unsigned short>(*number)}, error);
  if (error)
    return log_warning(std::string(kHealthPort) + ": cannot listen on port " + port + ": " + error.message());
  asio::co_spawn(io, serve<tcp>(std::move(acceptor), kMaxProbes, answer_probe), asio::detached);
}

}  // namespace ddprun::launcher
