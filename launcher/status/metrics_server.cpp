#include "launcher/status/metrics_server.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
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
#include <utility>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/common/text.h>
#include <ddprun/common/worker_env.h>
#include "launcher/events/timer.h"
#include "launcher/host/port_owner.h"
#include "launcher/rendezvous/hmac.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
namespace {

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

}  // namespace

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

}  // namespace ddprun::launcher
