#include <ddprun/group/spawn.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/Parallel.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/group/collectives.h>
#include "tests/support/catch.h"
#include "tests/support/child.h"

using namespace ddprun;
using namespace std::chrono_literals;
using ddprun::test::ContainsSubstring;

namespace {

/// Memory that the ranks and the test share.
template <typename T>
class Shared {
 public:
  Shared()
      : value_(new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   T()) {}
  ~Shared() { ::munmap(value_, sizeof(T)); }
  T* operator->() const { return value_; }

 private:
  T* value_;
};

struct Pids {
  std::atomic<int> ready{0};
  std::atomic<pid_t> of_rank[4] = {};
};

/// Waits until all ranks have said that they are there.
void meet(const Shared<Pids>& pids, int rank, int size, sighandler_t on_sigterm = SIG_DFL) {
  ::signal(SIGTERM, on_sigterm);  // Catch2's own handler says more of it than one wants to see
  pids->of_rank[rank] = ::getpid();
  ++pids->ready;
  ensure(test::wait_until([&] { return pids->ready == size; }), "all ranks start");
}

}  // namespace

TEST_CASE("spawn runs ranks that meet, with their environment set", "[spawn]") {
  ::setenv("TORCHELASTIC_RUN_ID", "of-another-launcher", 1);
  spawn(3, [](const WorkerEnv& env) {
    auto group = ddp::ProcessGroup::connect(env, {});
    ensure(ddp::all_reduce_sum(group, {env.rank + 1.0})[0] == 6, "the sum over ranks");
    const WorkerEnv read = from_env();
    ensure(read.rank == env.rank && read.local_rank == env.rank && read.world_size == 3 &&
               read.master_port == env.master_port && read.run_id == "none",
           "the environment is the rank's");
    ensure(env.store_fd.has_value() == (env.rank == 0), "rank 0 listens on the socket that was held");
    group.close();
  });
  ::unsetenv("TORCHELASTIC_RUN_ID");
}

TEST_CASE("ranks of spawn share the CPUs, unless OMP_NUM_THREADS says otherwise", "[spawn]") {
  ::unsetenv("OMP_NUM_THREADS");
  spawn(64, [](const WorkerEnv&) {
    ensure(at::get_num_threads() == 1 && std::getenv("OMP_NUM_THREADS") == std::string("1"),
           "one thread each");
  });
  ::setenv("OMP_NUM_THREADS", "3", 1);
  spawn(2, [](const WorkerEnv&) {
    ensure(std::getenv("OMP_NUM_THREADS") == std::string("3"), "the user's own number");
  });
}

TEST_CASE("spawn refuses no ranks, and a process with threads", "[spawn]") {
  CHECK_THROWS_WITH(spawn(0, [](const WorkerEnv&) {}), "spawn: expected at least one rank, got 0");
  std::jthread other([](const std::stop_token& stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
  });
  CHECK_THROWS_AS(spawn(1, [](const WorkerEnv&) {}), std::logic_error);
  CHECK_THROWS_WITH(spawn(1, [](const WorkerEnv&) {}),
                    ContainsSubstring("this process has 2 threads, expected one"));
}

TEST_CASE("spawn names the rank that failed and ends the others", "[spawn]") {
  const Shared<Pids> pids;
  std::string expected;
  std::function<void()> fail;
  SECTION("an exception") {
    fail = [] { throw std::runtime_error("no luck"); };
    expected = "rank 1: no luck";
  }
  SECTION("a signal") {
    fail = [] { ::raise(SIGUSR1); };
    expected = "rank 1: signal 10 (SIGUSR1)";
  }
  SECTION("an exit") {
    fail = [] { ::_exit(3); };
    expected = "rank 1: exit code 3";
  }
  CHECK_THROWS_WITH(spawn(3,
                          [&](const WorkerEnv& env) {
                            meet(pids, env.rank, 3);
                            if (env.rank == 1) fail();
                            for (;;) ::pause();
                          }),
                    expected);
  CHECK((::waitpid(-1, nullptr, WNOHANG) == -1 && errno == ECHILD));
}

TEST_CASE("spawn kills a rank that does not end when it is asked to", "[spawn]") {
  const Shared<Pids> pids;
  CHECK_THROWS_WITH(spawn(2,
                          [&](const WorkerEnv& env) {
                            meet(pids, env.rank, 2, SIG_IGN);
                            if (env.rank == 0) throw std::runtime_error("first");
                            for (;;) ::pause();
                          },
                          {.grace = 10ms}),
                    "rank 0: first");
}

TEST_CASE("spawn can let every rank run to its end, and names all that failed", "[spawn]") {
  CHECK_THROWS_WITH(spawn(3,
                          [](const WorkerEnv& env) {
                            if (env.rank != 1) throw std::runtime_error("of " + std::to_string(env.rank));
                          },
                          {.end_others = false}),
                    ContainsSubstring("rank 0: of 0") && ContainsSubstring("rank 2: of 2"));
}

TEST_CASE("ranks end with the process that spawned them", "[spawn]") {
  const Shared<Pids> pids;
  const pid_t parent = ::fork();
  REQUIRE(parent >= 0);
  if (parent == 0) {
    spawn(2, [&](const WorkerEnv& env) {
      meet(pids, env.rank, 2);
      for (;;) ::pause();
    });
    ::_exit(0);
  }
  REQUIRE(test::wait_until([&] { return pids->ready == 2; }));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  const auto is_gone = [](pid_t pid) {  // or a zombie, where nobody waits for orphans
    try {
      return read_file("/proc/" + std::to_string(pid) + "/stat").find(") Z") != std::string::npos;
    } catch (const IoError&) {
      return true;
    }
  };
  for (int rank : {0, 1}) CHECK(test::wait_until([&] { return is_gone(pids->of_rank[rank]); }));
}

TEST_CASE("what was written before and in spawn comes out once", "[spawn]") {
  const TempDir dir;
  const auto path = dir.path() / "out";
  std::FILE* file = std::fopen(path.c_str(), "w");
  REQUIRE(file != nullptr);
  std::fputs("before\n", file);  // in the buffer still
  spawn(2, [&](const WorkerEnv&) { std::fputs("rank\n", file); });
  std::fclose(file);
  const auto text = read_file(path);
  CAPTURE(text);
  CHECK(text == "before\nrank\nrank\n");
}
