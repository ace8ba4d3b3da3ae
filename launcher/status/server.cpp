#include "launcher/status/server.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

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
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/json_file.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/clock.h"
#include "launcher/rendezvous/listen.h"
#include "launcher/rendezvous/protocol.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
namespace {

using json = nlohmann::ordered_json;
constexpr int kMostRequestLevels = 4;

json refusal(const std::string& text) { return {{"error", text}}; }

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

constexpr std::chrono::seconds kHttpTimeout{10};
constexpr std::chrono::seconds kHttpPause{1};
constexpr int kMaxBrowsers = 32;
constexpr std::uint32_t kMaxHttpHeader = 8192;
constexpr std::size_t kMostReportBytes = std::size_t{64} << 20;

struct MetricsService {
  JobQuestions questions;
  std::string token;
  int clients = 0;
};

using Response = http::response<http::string_body>;

/// The current content of the page that a worker of this node has named.
void answer_report(const nlohmann::ordered_json& view, Response& response) {
  for (const auto& rank : view["ranks"]) {
    const std::filesystem::path page = rank["status"].value("report", "");
    std::error_code error;
    if (page.empty() || !std::filesystem::is_regular_file(page, error)) continue;  // not yet
    try {
      response.body() = read_file(page, kMostReportBytes);
      response.set(http::field::content_type, "text/html; charset=utf-8");
      return;
    } catch (const IoError&) {  // as if there were none
    }
  }
  response.result(http::status::not_found);
  response.body() = "no worker of this node has written a report yet\n";
}

Response respond(const MetricsService& service, const http::request<http::string_body>& request) {
  Response response(http::status::ok, request.version());
  response.keep_alive(request.keep_alive());
  response.set(http::field::content_type, "text/plain; charset=utf-8");
  const auto target = request.target().substr(0, request.target().find('?'));
  const auto said = request[http::field::authorization];
  if (!service.token.empty() &&
      !equal_in_constant_time("Bearer " + service.token, {said.data(), said.size()})) {
    response.result(http::status::unauthorized);
    response.set(http::field::www_authenticate, "Bearer");
    response.body() = "expected the header Authorization: Bearer TOKEN\n";
  } else if (const auto host = request[http::field::host];
             service.token.empty() && !names_this_host({host.data(), host.size()}, host_name())) {
    response.result(http::status::misdirected_request);
    response.body() = "expected the header Host to name this host (an address, localhost or " + host_name() +
                      "), got " + in_quotes({host.data(), host.size()}) + "\n";
  } else if (request.method() != http::verb::get && request.method() != http::verb::head) {
    response.result(http::status::method_not_allowed);
    response.set(http::field::allow, "GET, HEAD");
  } else if (target == "/metrics") {
    response.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    response.body() = metrics_text(service.questions.view());
  } else if (target == "/status") {
    response.set(http::field::content_type, "application/json");
    response.body() =
        service.questions.view().dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  } else if (target == "/report") {
    answer_report(service.questions.view(), response);
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

asio::awaitable<void> serve_browser(tcp::socket socket, std::shared_ptr<MetricsService> service) {
  const auto left = [](MetricsService* of) { --of->clients; };
  const std::unique_ptr<MetricsService, decltype(left)> one_less(service.get(), left);
  boost::beast::tcp_stream stream(std::move(socket));
  boost::beast::flat_buffer buffer;
  for (bool keep = true; keep;) {
    boost::system::error_code error;
    http::request_parser<http::string_body> parser;
    parser.header_limit(kMaxHttpHeader);
    parser.body_limit(kMaxHttpHeader);
    stream.expires_after(kHttpTimeout);
    co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
    const Response response = respond(*service, parser.get());
    keep = response.keep_alive();
    stream.expires_after(kHttpTimeout);
    co_await http::async_write(stream, response, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return;
  }
}

asio::awaitable<void> accept_browsers(tcp::acceptor acceptor, std::shared_ptr<MetricsService> service) {
  for (;;) {
    boost::system::error_code error;
    tcp::socket socket = co_await acceptor.async_accept(asio::redirect_error(asio::use_awaitable, error));
    if (error) {  // for instance no descriptor left
      Timer pause(acceptor.get_executor(), kHttpPause);
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, error));
    } else if (service->clients < kMaxBrowsers) {
      ++service->clients;
      asio::co_spawn(acceptor.get_executor(), serve_browser(std::move(socket), service), asio::detached);
    }
  }
}

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

boost::asio::awaitable<std::string> answer_line(const JobQuestions& questions, std::string line) {
  json reply = refusal(R"(expected {"ask": "status", "output", "stacks" or "stop"})");
  try {
    const auto request = parse_shallow_json(line, kMostRequestLevels);
    const std::string ask = request.is_object() ? request.value("ask", "") : "";
    const auto rank = request.is_object() && request.contains("rank")
                          ? std::optional(request.at("rank").get<int>())
                          : std::nullopt;
    if (ask == "status") reply = questions.view();
    if (ask == "output") reply = questions.output(rank.value_or(0), request.value("seen", std::uint64_t{0}));
    if (ask == "stop") reply = questions.stop();
    if (ask == "stacks") reply = co_await questions.stacks(rank);
  } catch (const std::exception& error) {  // not JSON, or of another form
    reply = refusal(error.what());
  }
  co_return reply.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::filesystem::path control_folder() {
  if (const auto named = process_env("DDPRUN_CONTROL_DIR"); named && !named->empty()) return *named;
  return "/tmp/ddprun-" + std::to_string(::geteuid());
}

bool is_private_folder(const std::filesystem::path& folder) {
  struct stat info {};
  return ::lstat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & 077) == 0;
}

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
                   JobQuestions questions) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(endpoint.host, error);
  const tcp::endpoint place(address, static_cast<unsigned short>(endpoint.port));
  tcp::acceptor acceptor(io);
  if (!error) acceptor.open(place.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(place, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  if (error) {
    log_warning("--metrics-port: cannot listen at " + to_string(endpoint) + port_owner(endpoint.port) + ": " +
                error.message() + "; metrics are not served");
    return;
  }
  log_info("metrics: http://" + to_string({endpoint.host, acceptor.local_endpoint().port()}) + "/metrics");
  auto service = std::make_shared<MetricsService>(std::move(questions), token);
  asio::co_spawn(io, accept_browsers(std::move(acceptor), std::move(service)), asio::detached);
}

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
