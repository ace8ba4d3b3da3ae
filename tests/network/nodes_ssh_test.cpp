// --hosts over a real ssh to a real sshd on another host, whose cable is pulled out.
#include <unistd.h>

#include <filesystem>

#include <ddprun/common/text.h>
#include "tests/network/nodes.h"

using namespace ddprun;
using namespace ddprun::test;
using namespace std::chrono_literals;

namespace {

namespace fs = std::filesystem;

/// An sshd on host 1, and what ssh on host 0 needs to reach it.
class Sshd {
 public:
  explicit Sshd(const Network& network) {
    const std::string at = folder_.path().string();
    for (const std::string key : {"host", "user"}) {
      Command keygen{{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at + "/" + key}};
      if (Child(keygen).wait() == ExitStatus::exited(127)) skip("no ssh-keygen");
    }
    fs::copy(folder_.path() / "user.pub", folder_.path() / "authorized");
    write_file_atomic(folder_.path() / "known", "* " + read_file(folder_.path() / "host.pub"));
    write_file_atomic(folder_.path() / "sshd_config",
                      "Port 22\nListenAddress " + Network::ipv4(1) + "\nHostKey " + at +
                          "/host\nAuthorizedKeysFile " + at +
                          "/authorized\nPidFile none\nUsePAM no\nStrictModes no\nPermitRootLogin yes\n");
    write_file_atomic(folder_.path() / "ssh_config", "IdentityFile " + at +
                                                         "/user\nIdentitiesOnly yes\nUserKnownHostsFile " +
                                                         at + "/known\nGlobalKnownHostsFile /dev/null\n");
    fs::create_directories("/run/sshd");  // it refuses to start without
    const char* program = fs::exists("/usr/sbin/sshd") ? "/usr/sbin/sshd" : "sshd";
    child_.emplace(network.on(1, {{program, "-D", "-e", "-f", at + "/sshd_config"}}));
    if (!wait_until([&] { return count_of("listening", child_->err()) > 0; }))
      skip("no sshd here: " + child_->err());
  }

  /// It notices after 6 s that nobody answers.
  std::string ssh() const {
    return "ssh -F " + (folder_.path() / "ssh_config").string() + " -o ServerAliveInterval=2";
  }

  /// The sessions that it serves.
  bool is_idle() const {
    const std::string pid = std::to_string(child_->pid());
    return trimmed(read_or_empty("/proc/" + pid + "/task/" + pid + "/children")).empty();
  }

 private:
  TempDir folder_;
  std::optional<Child> child_;
};

/// What runs in this folder, on whatever host.
int processes_in(const fs::path& folder) {
  int found = 0;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    std::error_code error;  // it has ended, or is no process
    found += fs::read_symlink(entry.path() / "cwd", error) == folder ? 1 : 0;
  }
  return found;
}

}  // namespace

TEST_CASE("a host of --hosts whose cable is pulled out ends the job, and nothing is left on any host",
          "[nodes]") {
  const Network network(2);
  const Sshd sshd(network);
  const TempDir work;
  Command command = script(
      {"--hosts=" + Network::ipv4(0) + "," + Network::ipv4(1), "--ssh=" + sshd.ssh(), "--node-timeout=3"},
      "echo begun $RANK on $(hostname); sleep 1000 & wait");
  command.in_child = [&] {
    if (::chdir(work.path().c_str()) != 0) ::_exit(123);
  };
  Child job(network.on(0, command));
  CAPTURE(job.out(), job.err());
  REQUIRE(job.wait_for_output("begun 0 on h0"));
  REQUIRE(job.wait_for_output("begun 1 on h1"));
  CHECK(processes_in(work.path()) >= 6);  // a ddprun, a shell and its sleep on each host
  network.cut(1);
  CHECK(job.wait() == ExitStatus::exited(125));
  CHECK_THAT(job.err(), ContainsSubstring(Network::ipv4(1)));
  CHECK(job.nothing_left());
  CHECK(wait_until([&] { return processes_in(work.path()) == 0; }));  // nor on the host that is alone
  network.mend(1);
  CHECK(wait_until([&] { return sshd.is_idle(); }, 60s));
}

TEST_CASE("Open MPI's tasks on two hosts are two nodes of one job, whose first host its variables name",
          "[nodes]") {
  const Network network(2);
  const Sshd sshd(network);
  Command command{{"mpirun.openmpi", "--allow-run-as-root", "-n", "2", "--host",
                   Network::ipv4(0) + ":1," + Network::ipv4(1) + ":1", "--mca", "plm_rsh_agent", sshd.ssh(),
                   DDPRUN_PROGRAM, "--nproc-per-node=2", "sh", "-c",
                   "echo rank $RANK of $WORLD_SIZE, node $GROUP_RANK, on $(hostname), first $MASTER_ADDR."}};
  if (Child({{"mpirun.openmpi", "--version"}}).wait() == ExitStatus::exited(127)) skip("no mpirun.openmpi");
  Child job(network.on(0, command));
  CHECK(job.wait() == ExitStatus::exited(0));
  CAPTURE(job.out(), job.err());
  for (const std::string rank : {"0", "1", "2", "3"}) {
    const std::string node = rank < "2" ? "0" : "1";
    CHECK_THAT(job.out(), ContainsSubstring("rank " + rank + " of 4, node " + node + ", on h" + node +
                                            ", first " + Network::ipv4(0) + "."));
  }
}
