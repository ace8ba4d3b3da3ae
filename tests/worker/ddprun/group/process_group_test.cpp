#include <ddprun/group/process_group.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/logging.h>
#include <ddprun/group/collectives.h>
#include "tests/support/catch.h"
#include "tests/support/own_addresses.h"
#include "tests/support/run_ranks.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddprun::ddp::ProcessGroup;
using ddprun::test::ContainsSubstring;

TEST_CASE("process group of one needs no launcher", "[process_group]") {
  auto group = ProcessGroup::connect(from_env([](const std::string&) { return std::nullopt; }), {});
  CHECK(group.rank() == 0);
  CHECK(group.size() == 1);
  CHECK(ddp::all_reduce_sum(group, {1.5, -2}) == std::vector<double>{1.5, -2});
  group.close();
  group.close();  // twice does no harm
}

TEST_CASE("process group sums and broadcasts over its ranks", "[process_group]") {
  test::run_ranks(3, [](const ProcessGroup& group) {
    ensure(group.size() == 3, "three ranks");
    const auto sums = ddp::all_reduce_sum(group, {1.0, static_cast<double>(group.rank())});
    ensure(sums == std::vector<double>{3, 3}, "sums over ranks");
    auto tensor = torch::full({5}, group.rank() + 7);
    ddp::broadcast_from_rank_0(group, {tensor});
    ensure(tensor.eq(7).all().item<bool>(), "rank 0's values");
  });
}

TEST_CASE("rank 0's store listens on the launcher's socket, on loopback only", "[process_group]") {
  const HeldPort port;
  test::fork_ranks(2, [&](int rank) {
    const auto env = test::rank_env(port, rank, 2);
    auto group = ProcessGroup::connect(env, {});
    if (rank == 0) {
      int listening = 0;
      socklen_t size = sizeof listening;
      ensure(::getsockopt(port.socket.get(), SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 &&
                 listening == 1,
             "the launcher's socket listens");
      ensure((::fcntl(*env.store_fd, F_GETFD) & FD_CLOEXEC) != 0, "our own children do not get it");
    }
    group.close();
  });
}

TEST_CASE("ranks meet at any address of rank 0's host", "[process_group]") {
  for (const std::string& address : test::own_addresses()) {
    CAPTURE(address);
    test::run_ranks(
        2,
        [](const ProcessGroup& group) {
          ensure(ddp::all_reduce_sum(group, {1.0}) == std::vector<double>{2}, "the sum over ranks");
        },
        address);
  }
}

TEST_CASE("a store descriptor that is not MASTER_PORT's socket is refused", "[process_group]") {
  const HeldPort port, other;
  auto env = test::rank_env(port, 0, 1);
  SECTION("another port's socket") { env.store_fd = other.socket.get(); }
  SECTION("no socket") { env.store_fd = ::open("/dev/null", O_RDONLY); }
  SECTION("nothing") { env.store_fd = 987654; }
  CHECK_THROWS_AS(ProcessGroup::connect(env, {}), UsageError);
  CHECK_THROWS_WITH(ProcessGroup::connect(env, {}),
                    ContainsSubstring("DDPRUN_STORE_FD: expected a socket bound to MASTER_PORT " +
                                      std::to_string(port.port)));
}

TEST_CASE("a network interface that is not there is refused by name", "[process_group]") {
  ::setenv("GLOO_SOCKET_IFNAME", "nosuch0", 1);
  CHECK_THROWS_WITH(ProcessGroup::connect(WorkerEnv{}, {}),
                    "GLOO_SOCKET_IFNAME: expected a network interface of this host, got 'nosuch0'");
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  ProcessGroup::connect(WorkerEnv{}, {}).close();
  ::unsetenv("GLOO_SOCKET_IFNAME");
}

TEST_CASE("a rank whose peers do not come gives up after the connect timeout", "[process_group]") {
  const HeldPort port;
  const auto begin = std::chrono::steady_clock::now();
  CHECK_THROWS(ProcessGroup::connect(test::rank_env(port, 0, 2), {.connect_timeout = 500ms}));
  CHECK(std::chrono::steady_clock::now() - begin < 30s);
}

TEST_CASE("a rank that waits long for its peers says where, once", "[process_group]") {
  const TempDir dir;
  const UniqueFd log(::open((dir.path() / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  const UniqueFd before(::dup(STDERR_FILENO));
  const HeldPort port;
  REQUIRE(::dup2(log.get(), STDERR_FILENO) == STDERR_FILENO);
  configure_logging("worker");
  CHECK_THROWS(
      ProcessGroup::connect(test::rank_env(port, 0, 2), {.connect_timeout = 1500ms, .notice_after = 1ms}));
  ProcessGroup::connect(WorkerEnv{}, {}).close();  // is there at once
  ::dup2(before.get(), STDERR_FILENO);
  const auto line =
      "worker: rank 0 waits at 127.0.0.1:" + std::to_string(port.port) + " for all 2 ranks, up to 2 s\n";
  const auto text = read_file(dir.path() / "log");
  CAPTURE(text);
  CHECK(text.find(line) != std::string::npos);
  CHECK(text.find(" waits ") == text.rfind(" waits "));
}

TEST_CASE("a collective that a rank does not join fails after the timeout", "[process_group]") {
  const HeldPort port;
  int failed[2];  // rank 0 tells rank 1 that it has failed
  REQUIRE(::pipe2(failed, O_CLOEXEC) == 0);
  UniqueFd seen(failed[0]), failing(failed[1]);
  test::fork_ranks(2, [&](int rank) {
    auto group =
        ProcessGroup::connect(test::rank_env(port, rank, 2), {.timeout = 1s, .connect_timeout = 30s});
    if (rank == 1) {
      failing.reset();
      char byte;
      ensure(::read(seen.get(), &byte, 1) == 1, "rank 0's collective failed");
      return;
    }
    bool thrown = false;
    try {
      ddp::all_reduce_sum(group, {1});
    } catch (const std::exception&) {
      thrown = true;
    }
    ensure(thrown && ::write(failing.get(), "", 1) == 1, "the collective failed");
  });
}
