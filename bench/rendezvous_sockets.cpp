// Measures the coordinator with real connections: N nodes in this process, over loopback, each with its own
// connection.
//
// usage: rendezvous_sockets [N...]      default: 10 100 1000, and as many as the limit of open files allows
//
// A node does what a ddprun would, without workers. Prints a Markdown table: the first round (from the first
// connection to the last Start), a failure (from its report to the last End), and for each node the CPU time
// of both sides, messages and memory. Beyond about 4000 nodes at once the kernel's queue of connections is
// full, and some of them try again after a second.

#include <sys/resource.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "launcher/rendezvous/listen.h"
#include "launcher/rendezvous/server.h"

namespace {

using namespace ddprun;
using namespace ddprun::launcher;
namespace asio = boost::asio;
using asio::ip::tcp;
using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double resident_mb() {
  std::ifstream statm("/proc/self/statm");
  long size = 0, resident = 0;
  statm >> size >> resident;
  return static_cast<double>(resident) * 4096 / 1e6;
}

struct Run {
  asio::io_context io{1};
  tcp::endpoint coordinator;
  int nodes = 0, connected = 0, started = 0, ended = 0;
  Clock::time_point begin, failed;
  double forming_ms = 0, ending_ms = 0, memory_mb = 0;
  long messages = 0;
};

asio::awaitable<void> node(Run& run, int rank) {
  tcp::socket socket(run.io);
  co_await socket.async_connect(run.coordinator, asio::use_awaitable);
  const auto connection = std::make_shared<Connection>(std::move(socket), Side::kNode, "");
  co_await connection->greet();
  const auto send = [&](const NodeMessage& message) {
    ++run.messages;
    connection->write(encode(message));
  };
  send(Join{"bench", "node" + std::to_string(rank), {}, run.nodes, run.nodes, 8, ""});
  for (;;) {
    const CoordinatorMessage message = decode_coordinator_message(co_await connection->read());
    ++run.messages;
    if (const auto* lead = std::get_if<Lead>(&message)) {
      send(Leading{lead->round, 29500});
    } else if (const auto* start = std::get_if<Start>(&message)) {
      if (++run.started < run.nodes) continue;
      run.forming_ms = milliseconds_since(run.begin);
      run.memory_mb = resident_mb();
      run.failed = Clock::now();
      send(Failed{start->number, WorkerFailed{ExitStatus::exited(3)}, "rank 0 failed"});
    } else if (std::holds_alternative<End>(message)) {
      if (++run.ended == run.nodes) run.ending_ms = milliseconds_since(run.failed);
      break;
    }
  }
  connection->close();
}

void measure(int nodes) {
  const double before_mb = resident_mb();
  const std::clock_t cpu_begin = std::clock();
  Run run;
  run.nodes = nodes;
  std::vector<UniqueFd> sockets;
  int port = 30000;
  for (;; ++port) try {
      auto listening =
          listen_at({"127.0.0.1", port}, {tcp::endpoint(asio::ip::make_address("127.0.0.1"), port)}, true);
      sockets = std::move(listening.sockets);
      break;
    } catch (const std::exception&) {
      if (port == 30100) throw;
    }
  run.coordinator = tcp::endpoint(asio::ip::make_address("127.0.0.1"), static_cast<unsigned short>(port));
  CoordinatorSettings settings;
  settings.run_id = "bench";
  settings.min_nodes = settings.max_nodes = nodes;
  CoordinatorServer server(run.io, settings, "", std::move(sockets));
  server.on_all_gone([&] { run.io.stop(); });
  run.begin = Clock::now();
  for (int i = 0; i < nodes; ++i) asio::co_spawn(run.io, node(run, i), asio::detached);
  run.io.run();
  const double cpu_us = 1e6 * static_cast<double>(std::clock() - cpu_begin) / CLOCKS_PER_SEC;
  std::printf("| %d | %.0f | %.0f | %.0f | %.1f | %.1f |\n", nodes, run.forming_ms, run.ending_ms,
              cpu_us / nodes, static_cast<double>(run.messages) / nodes,
              1000 * (run.memory_mb - before_mb) / nodes);
}

}  // namespace

int main(int argc, char** argv) {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(std::atoi(argv[i]));
  if (sizes.empty())
    sizes = {10, 100, 1000, static_cast<int>(std::min<rlim_t>(10'000, (files.rlim_max - 50) / 2))};
  std::printf(
      "| nodes | first round, ms | failure to the last end, ms | CPU, us a node | messages a node | kB a "
      "node |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const int nodes : sizes) measure(nodes);
}
