#include <ddprun/run/run_worker.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include <ddprun/common/error_file.h>
#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;

namespace {

/// Leaves a trace if the stack is unwound.
struct Trace {
  std::filesystem::path path;
  ~Trace() { write_file_atomic(path, ""); }
};

/// How a process ends whose main() is run_worker(train).
ExitStatus end_of(const std::filesystem::path& error_file,
                  const std::function<void(const WorkerEnv&)>& train) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (const auto& name : worker_variable_names()) ::unsetenv(name.c_str());
    ::setenv("TORCHELASTIC_ERROR_FILE", error_file.c_str(), 1);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) ::_exit(122);
    // On a thread, which nothing of Catch2's lies below that would catch.
    std::thread([&] { ::_exit(run_worker(train)); }).join();
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return ExitStatus::from_wait_status(status);
}

}  // namespace

TEST_CASE("run_worker hands over the environment and returns 0", "[run_worker]") {
  const TempDir dir;
  CHECK(end_of(dir.path() / "error.json", [](const WorkerEnv& env) {
          if (env.world_size != 1) throw std::runtime_error("expected a single process");
        }) == ExitStatus::exited(0));
  CHECK(!std::filesystem::exists(dir.path() / "error.json"));
}

TEST_CASE("what nobody catches in a worker is its error file, and nothing is unwound", "[run_worker]") {
  const TempDir dir;
  const auto error_file = dir.path() / "error.json", trace = dir.path() / "unwound";
  CHECK(end_of(error_file, [&](const WorkerEnv&) {
          const Trace left{trace};
          throw std::runtime_error("no data");
        }) == ExitStatus::exited(1));
  const auto found = read_error_file(error_file);
  REQUIRE(found.error);
  CHECK(found.error->message == "no data");
  CHECK(!std::filesystem::exists(trace));
}

TEST_CASE("a worker ends so on each of its threads, and with 2 after a usage error", "[run_worker]") {
  const TempDir dir;
  const auto error_file = dir.path() / "error.json";
  CHECK(end_of(error_file, [](const WorkerEnv&) {
          std::thread([] { throw UsageError("--lr: expected a number"); }).join();
        }) == ExitStatus::exited(2));
  REQUIRE(read_error_file(error_file).error);
  CHECK(read_error_file(error_file).error->message == "--lr: expected a number");
}

TEST_CASE("a worker that terminates without an exception is aborted as any program", "[run_worker]") {
  const TempDir dir;
  CHECK(end_of(dir.path() / "error.json", [](const WorkerEnv&) {
          const std::thread never_joined([] { ::pause(); });
        }).signal == SIGABRT);
}
