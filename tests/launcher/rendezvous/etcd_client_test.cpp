#include "launcher/rendezvous/etcd_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/child.h"

namespace ddprun::launcher {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using namespace std::chrono_literals;
using test::ContainsSubstring;
using Error = EtcdError::Kind;

int free_port() {
  asio::io_context io;
  tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
  return acceptor.local_endpoint().port();
}

/// A client, and the loop that runs its requests to their end.
struct Rig {
  explicit Rig(std::vector<int> ports, std::chrono::milliseconds timeout = 5s) {
    EtcdSettings settings;
    for (const int port : ports) settings.endpoints.push_back({"127.0.0.1", port});
    settings.timeout = timeout;
    client.emplace(io, settings);
  }

  template <typename Result>
  Result run(asio::awaitable<Result> request) {
    std::optional<Result> result;
    std::exception_ptr failure;
    asio::co_spawn(io, std::move(request), [&](std::exception_ptr error, Result value) {
      failure = error;
      if (!error) result = std::move(value);
      io.stop();
    });
    io.restart();
    io.run();
    if (failure) std::rethrow_exception(failure);
    return *result;
  }
  EtcdClient::Snapshot read(const std::vector<std::string>& keys) { return run(client->read(keys)); }
  std::optional<std::int64_t> commit(std::vector<std::pair<std::string, std::int64_t>> expected,
                                     std::vector<EtcdChange> changes) {
    return run(client->commit(std::move(expected), std::move(changes)));
  }
  bool renew(std::int64_t lease) {
    const auto renewed = [](EtcdClient& asked, std::int64_t which) -> asio::awaitable<bool> {
      co_await asked.renew(which);
      co_return true;
    };
    try {
      return run(renewed(*client, lease));
    } catch (const EtcdError& error) {
      CHECK(error.kind == Error::kLeaseGone);
      return false;
    }
  }
  /// What it fails with.
  EtcdError failure() {
    try {
      read({"a"});
    } catch (const EtcdError& error) {
      return error;
    }
    FAIL("it does not fail");
    std::abort();
  }

  asio::io_context io;
  std::optional<EtcdClient> client;
};

TEST_CASE("a real etcd keeps keys as long as their leases, and changes them only as expected", "[etcd]") {
  if (std::system("command -v etcd > /dev/null") != 0)  // NOLINT
    test::skip("no etcd here (etcd-server: scripts/setup.sh --dev installs it)");
  const TempDir dir;
  const int port = free_port();
  const auto url = [](int number) { return "http://127.0.0.1:" + std::to_string(number); };
  const std::string peer = url(free_port());
  test::Child etcd({{"etcd", "--data-dir", (dir.path() / "data").string(), "--listen-client-urls", url(port),
                     "--advertise-client-urls", url(port), "--listen-peer-urls", peer,
                     "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer}});
  Rig rig({free_port(), port});  // the first one is down
  std::int64_t lease = 0;
  REQUIRE(test::wait_until([&] {
    try {
      lease = rig.run(rig.client->grant(2s));
    } catch (const EtcdError& error) {
      CHECK(error.kind != Error::kWrong);
    }
    return lease != 0;
  }));
  CHECK(rig.client->local_address() == "127.0.0.1");

  std::string bytes;  // every byte, and every length of base64's last group
  for (int c = 0; c < 256; ++c) bytes += static_cast<char>(c);
  const auto first = rig.commit({{"/a", 0}, {"/b", 0}}, {{"/a", bytes, 0}, {"/b", "x", lease}});
  REQUIRE(first);
  CHECK_FALSE(rig.commit({{"/a", 0}}, {{"/a", "y", 0}}));  // it exists by now
  for (const char* text : {"", "1", "12", "123", "1234"}) {
    REQUIRE(rig.commit({{"/b", rig.read({"/b"}).values[0].revision}}, {{"/b", text, lease}}));
    const auto found = rig.read({"/b", "/a", "/none"});
    CHECK(found.values[0].text == text);
    CHECK(found.values[0].revision == found.revision);
    CHECK(found.values[1].text == bytes);
    CHECK(found.values[1].revision == *first);
    CHECK(found.values[2].revision == 0);
  }
  REQUIRE(rig.commit({}, {{"/a", std::nullopt, 0}}));
  CHECK(rig.read({"/a"}).values[0].revision == 0);

  for (int i = 0; i < 6; ++i) {
    ::usleep(500'000);
    CHECK(rig.renew(lease));  // 3 s in all
  }
  CHECK(rig.read({"/b"}).values[0].revision != 0);
  CHECK(test::wait_until([&] { return rig.read({"/b"}).values[0].revision == 0; }));
  CHECK_FALSE(rig.renew(lease));
  CHECK_THROWS_WITH(rig.commit({}, {{"/b", "x", lease}}), ContainsSubstring("requested lease not found"));
}

asio::awaitable<void> answer_and_end(tcp::acceptor& acceptor, const std::string& text) {
  tcp::socket socket = co_await acceptor.async_accept(asio::use_awaitable);
  std::string request(4096, ' ');
  co_await socket.async_read_some(asio::buffer(request), asio::use_awaitable);
  co_await asio::async_write(socket, asio::buffer(text), asio::use_awaitable);
}

/// Answers a connection with this text and ends it.
struct Stranger {
  Stranger(Rig& rig, const std::string& answer)
      : acceptor(rig.io, {asio::ip::address_v4::loopback(), 0}), text(answer) {
    asio::co_spawn(rig.io, answer_and_end(acceptor, text), asio::detached);
    rig.client.emplace(rig.io, EtcdSettings{{{"127.0.0.1", acceptor.local_endpoint().port()}}, {}, "", ""});
  }
  tcp::acceptor acceptor;
  std::string text;
};

std::string http(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST_CASE("whoever is not etcd is found out by its first answer", "[etcd]") {
  const auto [answer, reason] = GENERATE(table<std::string, std::string>({
      {"SSH-2.0-OpenSSH_9.2p1\r\n", "this is not an etcd with a v3 JSON gateway: bad version"},
      {http("404 Not Found", "nothing\nhere"), "it answers HTTP 404 with 'nothing'"},
      {http("501 Unsupported method", "<html>"), "it answers HTTP 501 with '<html>'"},
      {http("200 OK", "<html>"), "it answers HTTP 200 with '<html>'"},
      {http("200 OK", "[1]"), "it answers HTTP 200 with '[1]'"},
      {http("400 Bad Request", R"({"message": "what?"})"),
       R"(it answers HTTP 400 with '{"message": "what?"}')"},
      {http("400 Bad Request", R"({"code": 3, "message": "what\u001b[2J?"})"), "what?[2J?"},
      {http("400 Bad Request", R"({"code": 3, "message": "etcdserver: user name is empty"})"),
       "user name is"},
  }));
  Rig rig({1});
  const Stranger stranger(rig, answer);
  const EtcdError failure = rig.failure();
  CHECK_THAT(failure.what(), ContainsSubstring(reason));
  CHECK(failure.kind == Error::kWrong);
}

TEST_CASE("an etcd that cannot answer now is asked again", "[etcd]") {
  const auto [answer, reason] = GENERATE(table<std::string, std::string>({
      {http("503 Service Unavailable", R"({"code": 14, "message": "etcdserver: no leader"})"), "no leader"},
      {http("502 Bad Gateway", "<html>"), "it answers HTTP 502"},
      {http("503 Service Unavailable", R"({"message": "upstream is down"})"), "upstream is down"},
      {http("429 Too Many Requests", "slower"), "it answers HTTP 429"},
      {"", "it closed the connection without an answer (does it want https?)"},
      {http("200 OK", "{}"), ""},
      {http("200 OK", R"({"header": {"revision": "x"}, "responses": []})"), ""},
  }));
  Rig rig({1});
  const Stranger stranger(rig, answer);
  try {
    rig.read({"a"});
    FAIL("it does not fail");
  } catch (const EtcdError& error) {
    CHECK(error.kind == Error::kUnreachable);
    CHECK_THAT(error.what(), ContainsSubstring(reason));
  }
}

TEST_CASE("an etcd that is down or silent is one that cannot be reached", "[etcd]") {
  CHECK(Rig({free_port(), free_port()}).failure().kind == Error::kUnreachable);
  Rig rig({}, 200ms);
  const tcp::acceptor silent(rig.io, {asio::ip::address_v4::loopback(), 0});
  Rig mixed({silent.local_endpoint().port(), free_port()}, 200ms);
  CHECK(mixed.failure().kind == Error::kUnreachable);
  Rig alone({silent.local_endpoint().port()}, 200ms);
  CHECK_THAT(alone.failure().what(), ContainsSubstring("no answer within 0.2 s"));
}

}  // namespace
}  // namespace ddprun::launcher
