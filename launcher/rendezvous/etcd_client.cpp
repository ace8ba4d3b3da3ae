#include "launcher/rendezvous/etcd_client.h"

#include <algorithm>
#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/system/system_error.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include <ddprun/common/text.h>
#include "launcher/events/clock.h"
#include "launcher/events/threads.h"
#include "launcher/rendezvous/connection.h"

namespace ddprun::launcher {
namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Json = nlohmann::json;
using Kind = EtcdError::Kind;
namespace {

constexpr std::size_t kMaxReply = std::size_t{8} << 20;  // a value of etcd has at most 1.5 MB
constexpr std::size_t kMaxReason = 200;                  // bytes of a server's text
// gRPC's codes in the gateway's errors.
constexpr int kNotFound = 5;
constexpr std::array kWrongRequests = {3 /* invalid argument */, 7 /* permission denied */,
                                       9 /* authentication is not enabled */, 16 /* unauthenticated */};
constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(std::string_view bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned long bits = 0;
    for (std::size_t k = 0; k < 3; ++k)
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    for (std::size_t k = 0; k < 4; ++k)
      text += i + k <= bytes.size() ? kAlphabet[bits >> (18 - 6 * k) & 63U] : '=';
  }
  return text;
}

/// Ends at the first character that is not base64.
std::string from_base64(std::string_view text) {
  std::string bytes;
  unsigned long bits = 0;
  int count = 0;
  for (const char c : text) {
    const auto value = kAlphabet.find(c);
    if (value == std::string_view::npos) break;
    bits = bits << 6 | value;
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 255U);
  }
  return bytes;
}

/// 64-bit numbers are strings in the gateway's JSON; absent means 0.
std::int64_t number(const Json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end()) return 0;
  return found->is_string() ? std::stoll(found->get<std::string>()) : found->get<std::int64_t>();
}

std::string header_line(const char* name, const std::string& value) {
  return std::string(name) + ": " + value + "\r\n";
}

/// Reads the files anew for each connection, as certificates expire, and aside: their disk may stall.
asio::awaitable<std::unique_ptr<TlsSession>> begin_tls(TlsFiles files, std::string host,
                                                       LoopClock::time_point deadline) {
  const auto made = std::make_shared<std::unique_ptr<TlsSession>>();
  const std::function<void()> work = [made, files, host] {
    *made = std::make_unique<TlsSession>(files, host);
  };
  const AsideEnd end = co_await run_aside(work, deadline);
  if (end == AsideEnd::kLate)
    throw std::runtime_error("cannot read the certificates: their disk does not answer");
  co_return std::move(*made);
}

/// A connection to etcd, with or without TLS.
class EtcdStream {
 public:
  EtcdStream(asio::io_context& io, std::unique_ptr<TlsSession> tls, std::chrono::milliseconds timeout)
      : tcp_(io), tls_(std::move(tls)) {
    tcp_.expires_after(timeout);
  }

  asio::awaitable<void> connect(AddressBook::Addresses addresses) {
    co_await tcp_.async_connect(addresses, asio::use_awaitable);
    if (!tls_) co_return;
    while (!tls_->shake_hands()) {
      co_await flush();
      tls_->feed(co_await receive());
    }
  }
  asio::awaitable<void> write(std::string bytes) {
    if (tls_) tls_->write(bytes);
    if (tls_) co_return co_await flush();
    co_await asio::async_write(tcp_, asio::buffer(bytes), asio::use_awaitable);
  }
  /// Empty: the end.
  asio::awaitable<std::string> read() {
    if (!tls_) co_return co_await receive();
    for (;;) {
      std::string text = tls_->read();
      if (!text.empty()) co_return text;
      const std::string bytes = co_await receive();
      if (bytes.empty()) co_return bytes;
      tls_->feed(bytes);
    }
  }
  std::string local_address() const {
    boost::system::error_code error;
    const auto endpoint = tcp_.socket().local_endpoint(error);
    return error ? "" : endpoint.address().to_string();
  }

 private:
  asio::awaitable<void> flush() {
    const std::string bytes = tls_->take_output();
    if (!bytes.empty()) co_await asio::async_write(tcp_, asio::buffer(bytes), asio::use_awaitable);
  }
  asio::awaitable<std::string> receive() {
    std::array<char, 16384> bytes;
    boost::system::error_code error;
    const auto size =
        co_await tcp_.async_read_some(asio::buffer(bytes), asio::redirect_error(asio::use_awaitable, error));
    if (error && error != asio::error::eof) throw boost::system::system_error(error);
    co_return std::string(bytes.data(), size);
  }

  beast::tcp_stream tcp_;
  std::unique_ptr<TlsSession> tls_;  ///< null: without
};

[[noreturn]] void fail_as_stranger(const std::string& what) {
  throw EtcdError(Kind::kWrong, "this is not an etcd with a v3 JSON gateway: " + what);
}

std::string first_line(const std::string& text) {
  return single_quoted(shortened(text.substr(0, text.find_first_of("\r\n")), kMaxReason));
}

Json parse_or_null(const std::string& text) {
  try {
    return parse_shallow_json(text);
  } catch (const std::exception&) {
    return nullptr;
  }
}

/// throws  EtcdError for an error that etcd answers with
Json checked(int status, const std::string& body) {
  const Json reply = parse_or_null(body);
  const int code = reply.is_object() && reply.contains("code") && reply["code"].is_number_integer()
                       ? reply["code"].get<int>()
                       : 0;
  if (status == 200 && reply.is_object()) return reply;
  if (code == 0) {
    const std::string what = "it answers HTTP " + std::to_string(status) + " with " + first_line(body);
    if (status == 429 || (status >= 502 && status <= 504))
      throw EtcdError(Kind::kUnreachable, what);  // of a proxy
    fail_as_stranger(what);
  }
  const auto message = reply.find("message");
  const std::string reason = message != reply.end() && message->is_string()
                                 ? printable(shortened(message->get<std::string>(), kMaxReason))
                                 : "it answers HTTP " + std::to_string(status);
  if (code == kNotFound) throw EtcdError(Kind::kLeaseGone, reason);
  const bool wrong = std::ranges::find(kWrongRequests, code) != kWrongRequests.end();
  throw EtcdError(wrong ? Kind::kWrong : Kind::kUnreachable, reason);
}

}  // namespace

std::string describe(const EtcdSettings& settings) {
  std::vector<std::string> places;
  for (const Endpoint& endpoint : settings.endpoints) places.push_back(to_string(endpoint));
  return std::string("etcd at ") + (settings.tls ? "https://" : "http://") + joined(places, ",");
}

struct EtcdClient::Reply {
  int status = 0;
  std::string body;
};

EtcdClient::EtcdClient(asio::io_context& io, EtcdSettings settings)
    : io_(io), settings_(std::move(settings)) {}

/// One HTTP exchange. throws EtcdError, boost::system::system_error, std::runtime_error
asio::awaitable<EtcdClient::Reply> EtcdClient::exchange(Endpoint endpoint, std::string request) {
  const auto deadline = LoopClock::now() + settings_.timeout;
  const auto addresses = co_await address_book_.resolve(endpoint, deadline);
  std::unique_ptr<TlsSession> tls;
  if (settings_.tls) tls = co_await begin_tls(*settings_.tls, endpoint.host, deadline);
  EtcdStream stream(io_, std::move(tls), settings_.timeout);
  co_await stream.connect(addresses);
  local_address_ = stream.local_address();
  co_await stream.write(request);
  http::response_parser<http::string_body> parser;
  parser.body_limit(kMaxReply);
  parser.eager(true);
  std::string unread;
  while (!parser.is_done()) {
    const std::string bytes = co_await stream.read();
    boost::system::error_code error;
    unread += bytes;
    if (!unread.empty()) unread.erase(0, parser.put(asio::buffer(unread), error));
    if (error == http::error::need_more) error = {};
    if (bytes.empty() && !error && !parser.is_done()) {
      if (!parser.got_some())
        throw EtcdError(Kind::kUnreachable, std::string("it closed the connection without an answer") +
                                                (settings_.tls ? "" : " (does it want https?)"));
      parser.put_eof(error);
    }
    if (error) fail_as_stranger(error.message());
  }
  co_return Reply{static_cast<int>(parser.get().result_int()), parser.get().body()};
}

asio::awaitable<Json> EtcdClient::ask(Endpoint endpoint, const char* path, std::string body) {
  std::string request =
      std::string("POST /v3/") + path + " HTTP/1.1\r\n" + header_line("Host", to_string(endpoint)) +
      header_line("Content-Type", "application/json") +
      header_line("Content-Length", std::to_string(body.size())) + header_line("Connection", "close");
  if (!token_.empty()) request += header_line("Authorization", token_);
  request += "\r\n" + body;
  const Reply reply = co_await exchange(endpoint, request);
  co_return checked(reply.status, reply.body);
}

/// With the user's token, which etcd forgets after a while and when it restarts.
asio::awaitable<Json> EtcdClient::call_as_user(Endpoint endpoint, const char* path, std::string body) {
  if (settings_.user.empty()) co_return co_await ask(endpoint, path, body);
  bool fresh = token_.empty();
  for (;; fresh = true) {
    if (fresh) {
      token_.clear();
      const std::string who = Json{{"name", settings_.user}, {"password", settings_.password}}.dump(
          -1, ' ', false, Json::error_handler_t::replace);
      const Json reply = co_await ask(endpoint, "auth/authenticate", who);
      token_ = reply.value("token", "");
      if (token_.empty() || token_.find_first_of("\r\n") != std::string::npos)
        fail_as_stranger("it gives the user no token");
    }
    try {
      co_return co_await ask(endpoint, path, body);
    } catch (const EtcdError& error) {
      if (fresh || error.kind != Kind::kWrong) throw;
    }
  }
}

asio::awaitable<void> EtcdClient::call(const char* path, std::string body, Reader read) {
  bool all_wrong = true;
  std::string reason;
  for (std::size_t tried = 0; tried < settings_.endpoints.size(); ++tried) {
    const Endpoint endpoint = settings_.endpoints[place_];
    Kind kind = Kind::kUnreachable;
    try {
      const Json reply = co_await call_as_user(endpoint, path, body);
      co_return read(reply);
    } catch (const EtcdError& error) {
      if (error.kind == Kind::kLeaseGone) throw;
      kind = error.kind;
      reason = error.what();
    } catch (const boost::system::system_error& error) {
      reason = error.code() == beast::error::timeout ? "no answer within " + in_seconds(settings_.timeout)
                                                     : describe(error.code());
    } catch (const TlsError& error) {
      kind = Kind::kWrong;
      reason = error.what();
    } catch (const std::runtime_error& error) {  // of a name server
      reason = error.what();
    } catch (const std::exception&) {  // of JSON
      reason = "its answer is not understood";
    }
    all_wrong = all_wrong && kind == Kind::kWrong;
    place_ = (place_ + 1) % settings_.endpoints.size();
    if (settings_.endpoints.size() > 1) reason = to_string(endpoint) + ": " + reason;
  }
  throw EtcdError(all_wrong ? Kind::kWrong : Kind::kUnreachable, reason);
}

asio::awaitable<EtcdClient::Snapshot> EtcdClient::read(std::vector<std::string> keys) {
  Json body;
  for (const std::string& key : keys)
    body["success"].push_back({{"request_range", {{"key", to_base64(key)}}}});
  const std::string text = body.dump();  // named, like the readers: GCC 12
  Snapshot found;
  const Reader reader = [&](const Json& reply) {
    found = {{}, number(reply.at("header"), "revision")};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const Json& range = reply.at("responses").at(i).at("response_range");
      EtcdValue& value = found.values.emplace_back();
      if (!range.contains("kvs") || range["kvs"].empty()) continue;
      const Json& first = range["kvs"][0];
      value = {from_base64(first.value("value", "")), number(first, "mod_revision")};
    }
  };
  co_await call("kv/txn", text, reader);
  co_return found;
}

asio::awaitable<std::optional<std::int64_t>> EtcdClient::commit(
    std::vector<std::pair<std::string, std::int64_t>> expected, std::vector<EtcdChange> changes) {
  Json body;
  for (const auto& [key, revision] : expected)
    body["compare"].push_back({{"key", to_base64(key)},
                               {"target", "MOD"},
                               {"result", "EQUAL"},
                               {"mod_revision", std::to_string(revision)}});
  for (const EtcdChange& change : changes) {
    const Json key = to_base64(change.key);
    const Json put = {{"key", key},
                      {"value", to_base64(change.text.value_or(""))},
                      {"lease", std::to_string(change.lease)}};
    body["success"].push_back(change.text ? Json{{"request_put", put}}
                                          : Json{{"request_delete_range", {{"key", key}}}});
  }
  const std::string text = body.dump();
  std::optional<std::int64_t> revision;
  const Reader reader = [&](const Json& reply) {
    if (reply.value("succeeded", false)) revision = number(reply.at("header"), "revision");
  };
  co_await call("kv/txn", text, reader);
  co_return revision;
}

asio::awaitable<std::int64_t> EtcdClient::grant(std::chrono::seconds time) {
  const std::string text = Json{{"TTL", std::to_string(time.count())}}.dump();
  std::int64_t lease = 0;
  const Reader reader = [&](const Json& reply) {
    lease = number(reply, "ID");
    if (lease == 0) fail_as_stranger("it grants no lease");
  };
  co_await call("lease/grant", text, reader);
  co_return lease;
}

asio::awaitable<void> EtcdClient::renew(std::int64_t lease) {
  const std::string text = Json{{"ID", std::to_string(lease)}}.dump();
  const Reader reader = [](const Json& reply) {
    if (number(reply.at("result"), "TTL") <= 0) throw EtcdError(Kind::kLeaseGone, "the lease has expired");
  };
  co_await call("lease/keepalive", text, reader);
}

}  // namespace ddprun::launcher
