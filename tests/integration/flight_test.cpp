// The real ddprun with the real worker: what is left when a rank hangs, and on request.
#include <chrono>
#include <csignal>
#include <optional>
#include <thread>

#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// The worker of that rank among the job's processes; nullopt if it is not there (any more).
std::optional<pid_t> worker_of_rank(const Child& job, int rank) {
  const std::string wanted = "RANK=" + std::to_string(rank);
  for (const pid_t pid : job.processes()) {
    std::error_code gone;
    const fs::path proc = "/proc/" + std::to_string(pid);
    if (fs::read_symlink(proc / "exe", gone) != fs::canonical(WORKER_PROGRAM)) continue;
    const std::string environ = '\0' + read_file(proc / "environ");
    if (environ.find('\0' + wanted + '\0') != std::string::npos) return pid;
  }
  return std::nullopt;
}

std::vector<fs::path> records_in(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code none;
  for (const auto& entry : fs::recursive_directory_iterator(folder, none))
    if (entry.path().filename().string().rfind("flight_", 0) == 0 && entry.path().extension() == ".json")
      found.push_back(entry.path());
  return found;
}

Command logged(const TempDir& dir, const std::vector<std::string>& flags) {
  auto command = mnist(2, dir.path() / "run", flags);
  command.argv.insert(command.argv.begin() + 1, "--log-dir=" + (dir.path() / "logs").string());
  return command;
}

Command flight(const TempDir& dir) { return {{WORKER_PROGRAM, "flight", (dir.path() / "logs").string()}}; }

}  // namespace

TEST_CASE("a job whose rank hangs ends with an error that names it, and its record tells the same",
          "[training][flight]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(logged(dir, small({"--epochs=1000", "--timeout=15"})));
  REQUIRE(child.wait_for_output("Train Epoch: 1"));
  const auto hanging = worker_of_rank(child, 1);
  REQUIRE(hanging);
  REQUIRE(::kill(*hanging, SIGSTOP) == 0);
  CHECK(child.wait(kTraining) == ExitStatus::exited(1));
  CHECK_THAT(child.err(),
             ContainsSubstring(" #") && ContainsSubstring(": rank 1 has ended or does not answer"));
  check_nothing_left(child);

  Child report(flight(dir));
  const auto status = report.wait();
  CHECK_THAT(report.out(), ContainsSubstring("rank 0 at #"));
  // Continued for its end, it may write its record before the end comes.
  const bool wrote = count_of("rank 1 at #", report.out()) == 1;
  CHECK(status == ExitStatus::exited(wrote ? 0 : 1));
  CHECK(count_of("rank 1: no record", report.out()) == (wrote ? 0 : 1));
}

TEST_CASE("SIGUSR2 makes every rank write its record and harms nothing", "[training][flight]") {
  need_fashion_mnist();
  const TempDir dir;
  Child child(logged(dir, small({"--epochs=1000"})));
  REQUIRE(child.wait_for_output("Train Epoch: 1"));
  const auto worker = worker_of_rank(child, 1);
  REQUIRE(worker);
  REQUIRE(::kill(*worker, SIGUSR2) == 0);
  const auto deadline = std::chrono::steady_clock::now() + kTraining;
  while (records_in(dir.path() / "logs").size() < 2 && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(10ms);
  CHECK(records_in(dir.path() / "logs").size() == 2);
  REQUIRE(child.wait_for_output("Train Epoch: 2"));  // and it goes on
  Child report(flight(dir));
  CHECK(report.wait() == ExitStatus::exited(0));
  CHECK_THAT(report.out(), ContainsSubstring("rank 0 at #") && ContainsSubstring("rank 1 at #"));
  child.send_signal(SIGTERM);
  child.wait(kTraining);
  check_nothing_left(child);
}
