// The network that the other tests here run in.
#include "tests/network/network.h"

#include <unistd.h>

#include "tests/integration/job.h"
#include "tests/network/sockets.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

/// Sends so many bytes from one host to the other and returns the time until the last was there.
std::chrono::milliseconds time_of_sending(const Network& network, int from, int to, std::size_t bytes) {
  UniqueFd listener;
  network.run_on(to, [&] { listener = listen_at(Network::ipv4(to)); });
  const auto begin = std::chrono::steady_clock::now();
  network.run_on(from, [&] {
    const UniqueFd sending = connect_to(Network::ipv4(to), port_of(listener));
    const UniqueFd receiving(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::vector<char> data(bytes, 'x'), got(bytes);
    std::size_t received = 0;
    std::size_t sent = 0;
    while (received < bytes) {
      const ssize_t n = ::send(sending.get(), data.data() + sent, bytes - sent, MSG_DONTWAIT);
      if (n > 0) sent += static_cast<std::size_t>(n);
      pollfd readable{receiving.get(), POLLIN, 0};
      if (::poll(&readable, 1, 30'000) != 1) throw std::runtime_error("nothing comes");
      const ssize_t m = ::read(receiving.get(), got.data(), got.size());
      if (m <= 0) throw std::runtime_error("the connection broke");
      received += static_cast<std::size_t>(m);
    }
  });
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
}

bool reaches(const Network& network, int from, const std::string& address, int port) {
  try {
    network.run_on(from, [&] { connect_to(address, port, 300ms); });
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("hosts reach each other by IPv4 and IPv6, and nothing else", "[network]") {
  const Network network(3);
  for (const auto& address : {Network::ipv4(0), Network::ipv6(0)}) {
    UniqueFd listener;
    network.run_on(0, [&] { listener = listen_at(address); });
    for (const int host : {0, 1, 2}) network.run_on(host, [&] { connect_to(address, port_of(listener)); });
  }
  CHECK_THROWS_WITH(network.run_on(1, [] { connect_to("192.0.2.1", 80); }),
                    ContainsSubstring("Network is unreachable"));
}

TEST_CASE("a host is called by its name and knows those that it was told", "[network]") {
  const Network network(2);
  network.set_names(Network::ipv4(0) + " first\n");
  Child child(
      network.on(1, {{"sh", "-c", "uname -n; getent ahostsv4 first | head -n 1; getent hosts h0 h1"}}));
  child.wait();
  CHECK(child.out().rfind("h1\n" + Network::ipv4(0) + " ", 0) == 0);
  CHECK(count_of("\n", child.out()) == 2);  // names without an entry are not known
}

TEST_CASE("a host whose link is cut is not reached until it is mended", "[network]") {
  const Network network(2);
  UniqueFd listener;
  network.run_on(0, [&] { listener = listen_at(Network::ipv4(0)); });
  network.run_on(1, [&] { connect_to(Network::ipv4(0), port_of(listener)); });
  network.cut(1);
  CHECK_FALSE(reaches(network, 1, Network::ipv4(0), port_of(listener)));
  network.run_on(0, [&] { connect_to(Network::ipv4(0), port_of(listener)); });
  network.mend(1);
  CHECK(wait_until([&] { return reaches(network, 1, Network::ipv4(0), port_of(listener)); }));
}

TEST_CASE("hosts of IPv6 alone have no other way", "[network]") {
  const Network network(2, {.ipv4 = false, .slow = {}});
  UniqueFd listener;
  network.run_on(0, [&] { listener = listen_at(Network::ipv6(0)); });
  network.run_on(1, [&] { connect_to(Network::ipv6(0), port_of(listener)); });
  CHECK_THROWS_WITH(network.run_on(1, [] { connect_to(Network::ipv4(0), 80); }),
                    ContainsSubstring("Network is unreachable"));
}

TEST_CASE("a slow hub delays every frame and loses some", "[network]") {
  const Network late(2, {.ipv4 = true, .slow = Impairment{50ms, 0}});
  CHECK(time_of_sending(late, 0, 1, 1) >= 150ms);  // connect, there and back; the byte
  const Network lossy(2, {.ipv4 = true, .slow = Impairment{1ms, 0.05}});
  CHECK(time_of_sending(lossy, 0, 1, 1'000'000) > 10ms);  // it is all there
}

TEST_CASE("a job on one node needs no network, no name server and no host name", "[network]") {
  const Network network(1);
  const Finished run(network.on(0, job({"--nproc-per-node=2"}, {"ready"})));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("ready ", run.out) == 2);
}
