#include "launcher/remote/start_order.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;

namespace {

using Words = std::vector<std::string>;

/// What the command prints, run by this shell.
std::string output_of(const std::string& shell, const std::string& command,
                      const std::filesystem::path& folder) {
  std::ofstream(folder / "command") << command;
  const std::string line = shell + " -c \"$(cat '" + (folder / "command").string() + "')\" 2>&1";
  FILE* pipe = ::popen(line.c_str(), "r");
  std::string text;
  char buffer[256];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
  ::pclose(pipe);
  return text;
}

}  // namespace

TEST_CASE("an order arrives as it was sent, whatever bytes it has") {
  StartOrder order;
  order.hosts = {{"me@a", 2}, {"b", {}}};
  order.own = 1;
  order.port = 20000;
  order.token = "t";
  order.prefix = true;
  order.folder = "/a b/\xff";
  order.environment = {"A=1\n2", "B="};
  order.words = {"--hosts=a", "", "\x01 \xfe'\"\n"};
  const std::string sent = encode_order(order);
  const auto newline = sent.find('\n');
  CHECK(std::stoul(sent.substr(0, newline)) == sent.size() - newline - 1);
  CHECK(decode_order(sent.substr(newline + 1)) == order);
}

TEST_CASE("bytes that are no order are refused") {
  const std::string good = encode_order({{{"a", {}}}, 0, 1, "t", false, "/", {}, {}});
  const std::string bytes = good.substr(good.find('\n') + 1);
  REQUIRE(decode_order(bytes));
  for (std::size_t size = 0; size < bytes.size(); ++size) CHECK_FALSE(decode_order(bytes.substr(0, size)));
  CHECK_FALSE(decode_order(std::string(100, '\xff')));
  const std::string other = encode_order({{{"a", {}}}, 1, 1, "t", false, "/", {}, {}});
  CHECK_FALSE(decode_order(other.substr(other.find('\n') + 1)));  // no such host
}

TEST_CASE("other hosts get what sets up programs, and nothing that is this host's alone or secret") {
  const Words environment = {"PATH=/bin",      "HOME=/me",        "PYTHONPATH=x",      "NCCL_DEBUG=INFO",
                             "DDPRUN_TOKEN=s", "DDPRUN_JOB_ID=1", "DDPRUN_TEE=3",      "DDPRUN_STORE_FD=3",
                             "OURS=1",         "OURS_A=2",        "DDPRUN_LAUNCHER=1", "DDPRUN_COMMAND=c",
                             "PET_NNODES=1",   "no variable",     "=strange",          "TORCH_LOGS=+dynamo"};
  CHECK(environment_for_others(environment, {}) == Words{"PATH=/bin", "PYTHONPATH=x", "NCCL_DEBUG=INFO",
                                                         "DDPRUN_TEE=3", "PET_NNODES=1",
                                                         "TORCH_LOGS=+dynamo"});
  CHECK(environment_for_others({"OURS=1", "OURS_A=2", "HOME=/me"}, {"OURS_*", "HOME"}) ==
        Words{"OURS_A=2", "HOME=/me"});
  CHECK(environment_for_others({"DDPRUN_TOKEN=s"}, {"DDPRUN_TOKEN", "*"}).empty());
}

TEST_CASE("the remote command runs the first ddprun that is there, in any shell") {
  const TempDir folder;
  const auto program = folder.path() / "it's a $(ddprun) `x` \"y\"";
  std::ofstream(program) << "#!/bin/sh\necho started \"$@\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  for (const char* shell : {"sh", "bash", "csh", "tcsh", "fish", "zsh"}) {
    if (std::system((std::string("command -v ") + shell + " >/dev/null 2>&1").c_str()) != 0) continue;
    CAPTURE(shell);
    CHECK(output_of(shell, remote_command({program.string()}), folder.path()) ==
          "started --started-over-ssh\n");
    CHECK(output_of(shell, remote_command({"/nowhere/x", program.string()}), folder.path()) ==
          "started --started-over-ssh\n");
    CHECK(output_of(shell, remote_command({"/nowhere/x"}), folder.path()) ==
          "there is no ddprun at /nowhere/x or on the PATH (--ssh-ddprun)\n");
  }
}

TEST_CASE("OpenSSH gets options after the user's own, another command gets none") {
  HostsOptions hosts;
  hosts.ssh = {"/usr/bin/ssh", "-o", "BatchMode=no"};
  hosts.ddprun = "/opt/ddprun";
  Words words = ssh_command(hosts, {"me@a", 2});
  const auto place = [&](const char* word) {
    return std::find(words.begin(), words.end(), word) - words.begin();
  };
  CHECK(place("BatchMode=no") < place("BatchMode=yes"));
  CHECK(words[words.size() - 2] == "me@a");
  CHECK(words.back() == remote_command({"/opt/ddprun"}));
  hosts.ssh = {"./my_ssh"};
  words = ssh_command(hosts, {"a", {}});
  CHECK(words == Words{"./my_ssh", "a", remote_command({"/opt/ddprun"})});
}
