// The real ddprun from outside: how it starts, what it accepts, and what it exits with.

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include <ddprun/common/files.h>
#include "tests/integration/job.h"
#include "tests/support/own_network.h"

namespace ddprun::test {
namespace {

int lines_in(const std::string& text) { return count_of("\n", text); }

void make_file(const std::filesystem::path& path, const std::string& text, mode_t mode) {
  write_file_atomic(path, text);
  ::chmod(path.c_str(), mode);
}

TEST_CASE("ddprun exits with 0 when all workers succeed", "[launcher]") {
  const Finished run(job({"--standalone", "--nproc-per-node=4"}, {"ready"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("ready ", run.out) == 4);
  CHECK(run.err.empty());
}

TEST_CASE("ddprun starts one worker by default", "[launcher]") {
  CHECK(count_of("ready 0", Finished(job({}, {"ready"})).out) == 1);
}

TEST_CASE("ddprun runs 64 workers", "[launcher]") {
  const Finished run(job({"--nproc-per-node", "64"}, {"ready"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("ready ", run.out) == 64);
}

TEST_CASE("ddprun waits for the others when one worker has succeeded early", "[launcher]") {
  Child ddprun(job({"--nproc-per-node=2"}, {"ready", "--rank", "0", "exit", "0", "--rank", "1", "await"}));
  REQUIRE(ddprun.wait_for_output("ready ", 2));
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait() == ExitStatus::exited(0));
  check_nothing_left(ddprun);
}

TEST_CASE("ddprun exits with the code of the worker that failed", "[launcher]") {
  const auto code = GENERATE(1, 2, 3, 7, 42, 64, 99, 124, 125, 126, 127, 128, 130, 137, 143, 200, 254, 255);
  const Finished run(
      job({"--nproc-per-node=2"}, {"--rank", "1", "exit", std::to_string(code), "--all", "pause"}));
  CHECK(run.status == ExitStatus::exited(code));
}

TEST_CASE("ddprun exits with 128 + S when signal S killed a worker", "[launcher]") {
  const auto signal = GENERATE(SIGSEGV, SIGABRT, SIGKILL, SIGTERM, SIGFPE, SIGPIPE);
  Command command =
      job({"--nproc-per-node=2"}, {"--rank", "1", "kill", std::to_string(signal), "--all", "pause"});
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(128 + signal));
  CHECK_THAT(run.err, ContainsSubstring("rank      : 1 (local_rank: 1"));
  CHECK_THAT(run.err, ContainsSubstring(signal_name(signal)));
  CHECK((run.err.find("OOM killer") != std::string::npos) == (signal == SIGKILL));
}

TEST_CASE("ddprun says in one line what is wrong with its flags and exits with 2", "[launcher]") {
  const auto flags = GENERATE(values<std::vector<std::string>>({{"--nproc_per_node=0"},
                                                                {"--nproc-per-node=foo"},
                                                                {"--nproc-per-node", "-1"},
                                                                {"--nproc-per-node=1000000000"},
                                                                {"--nope"},
                                                                {"--nnodes=2"},
                                                                {"--master-port=65536"}}));
  const Finished run(job(flags, {"ready"}));
  CHECK(run.status == ExitStatus::exited(2));
  CHECK(lines_in(run.err) == 1);
  CHECK_THAT(run.err, ContainsSubstring("ddprun: error: "));
  CHECK(run.out.empty());
}

TEST_CASE("one line says what to do instead", "[launcher]") {
  const auto [flags, text] = GENERATE(table<std::vector<std::string>, std::string>(
      {{{"-np", "2"}, "did you mean --nproc-per-node?"},
       {{"--nprocs-per-node=2"}, "did you mean --nproc-per-node?"},
       {{"--nnodes=2", "--node-rank=0"}, "got only --node-rank"},
       {{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=/shared/file", "--rdzv-conf=store_type=file"},
        "store_type=file is not supported; use --rdzv-endpoint=HOST:PORT"}}));
  const Finished run(script(flags, "true"));
  CHECK(run.status == ExitStatus::exited(2));
  CHECK_THAT(run.err, ContainsSubstring(text));
  CHECK(lines_in(run.err) == 1);
}

TEST_CASE("reports and warnings say no more than they know", "[launcher]") {
  CHECK(count_of("hint", Finished(script({}, "exit 138")).err) == 0);
  CHECK(lines_in(Finished(script({}, "echo usage >&2; exit 2")).err) == 2);
  CHECK_THAT(Finished(script({"--max-restarts=1", "--restart-backoff=0.1"}, "exit 3")).err,
             ContainsSubstring("restart 1 of 1 in 0.1 s"));
  Command command = script({}, "true");
  command.env["DDPRUN_UNHEARD_OF"] = command.env["DDPRUN_HANG_TIMOUT"] = "1";
  const Finished variables(command);
  CHECK(count_of("unknown variable DDPRUN_UNHEARD_OF\n", variables.err) == 1);
  CHECK(count_of("unknown variable DDPRUN_HANG_TIMOUT: did you mean DDPRUN_HANG_TIMEOUT?\n", variables.err) ==
        1);
}

TEST_CASE("ddprun exits with 2 when no program is given", "[launcher]") {
  const Finished run({{DDPRUN_PROGRAM, "--nproc-per-node=2"}});
  CHECK(run.status == ExitStatus::exited(2));
  CHECK_THAT(run.err, ContainsSubstring("no program given"));
}

TEST_CASE("ddprun exits with 2 when GPUs are asked for and none is visible", "[launcher]") {
  Command command = job({"--nproc-per-node=gpu"}, {"ready"});
  command.env["CUDA_VISIBLE_DEVICES"] = "";
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(2));
  CHECK(lines_in(run.err) == 1);
}

TEST_CASE("ddprun starts one worker a CPU with auto when no GPU is visible", "[launcher]") {
  Command command = job({"--nproc-per-node=auto"}, {"ready"});
  command.env["CUDA_VISIBLE_DEVICES"] = "-1";
  const Finished by_auto(command);
  const Finished by_cpu(job({"--nproc-per-node=cpu"}, {"ready"}));
  CHECK(count_of("ready ", by_auto.out) >= 1);
  CHECK(count_of("ready ", by_auto.out) == count_of("ready ", by_cpu.out));
}

TEST_CASE("ddprun says once that the program cannot be run", "[launcher]") {
  need_vfork();
  const TempDir folder;
  make_file(folder.path() / "plain", "#!/bin/sh\n", 0644);
  make_file(folder.path() / "no_interpreter", "#!/nowhere/sh\n", 0755);
  make_file(folder.path() / "no_format", "just words\n", 0755);
  const auto [name, code] = GENERATE(table<std::string, int>(
      {{"missing", 127}, {"plain", 126}, {"no_interpreter", 127}, {"no_format", 126}, {".", 126}}));
  const std::string path = (folder.path() / name).string();
  const Finished run(ddprun_command({"--nproc-per-node=3", path}));
  // access(2) lets root execute only what somebody may execute, so this holds for root too.
  CHECK(run.status == ExitStatus::exited(code));
  CHECK_THAT(run.err, ContainsSubstring(path));
  CHECK(lines_in(run.err) == 1);
}

TEST_CASE("ddprun exits with 127 when the program is not in PATH", "[launcher]") {
  const Finished run({{DDPRUN_PROGRAM, "--nproc-per-node=2", "no-such-program-anywhere"}});
  CHECK(run.status == ExitStatus::exited(127));
  CHECK(lines_in(run.err) == 1);
}

TEST_CASE("ddprun prints help and version on stdout", "[launcher]") {
  const Finished help({{DDPRUN_PROGRAM, "--help"}});
  CHECK(help.status == ExitStatus::exited(0));
  CHECK_THAT(help.out, ContainsSubstring("--nproc-per-node"));
  const Finished version({{DDPRUN_PROGRAM, "--version"}});
  CHECK(version.status == ExitStatus::exited(0));
  CHECK_THAT(version.out, ContainsSubstring("ddprun "));
}

TEST_CASE("output and files that cannot be written are named", "[launcher]") {
  const auto flags = GENERATE("--help", "--version", "--dry-run true");
  const Finished full({{"sh", "-c", DDPRUN_PROGRAM " " + std::string(flags) + " > /dev/full"}});
  CHECK(full.status == ExitStatus::exited(125));
  CHECK(full.err == "ddprun: error: stdout: cannot write: No space left on device\n");
  const Finished events(script({"--events-json=/nonexistent/x"}, "true"));
  CHECK(events.status == ExitStatus::exited(2));
  CHECK(events.err ==
        "ddprun: error: --events-json: expected a file that can be written, got '/nonexistent/x': No such "
        "file or directory\n");
  const Finished logs(script({"--log-dir=/dev/null/x"}, "true"));
  CHECK(logs.status == ExitStatus::exited(2));
  CHECK_THAT(logs.err, ContainsSubstring("--log-dir: /dev/null: cannot open"));
  const std::string flag =
      GENERATE("--config", "--token-file", "--token-file --nnodes=2 --rdzv-endpoint=localhost");
  const std::string name = flag.substr(0, flag.find(' '));
  const Finished mistyped(
      {{"sh", "-c", DDPRUN_PROGRAM " " + flag.substr(name.size()) + " " + name + "=/no/such true"}});
  CHECK(mistyped.status == ExitStatus::exited(2));
  CHECK(mistyped.err == "ddprun: error: " + name + ": /no/such: cannot open: No such file or directory\n");
}

TEST_CASE("a program beside the user that PATH does not have is hinted at", "[launcher]") {
  const TempDir folder;
  write_file_atomic(folder.path() / "train.py", "");
  const auto run = [&](std::vector<std::string> words) {
    Command command = ddprun_command(std::move(words));
    command.in_child = [&] { [[maybe_unused]] const int ignored = ::chdir(folder.path().c_str()); };
    return Finished(command);
  };
  const std::string cannot = "ddprun: error: cannot run ",
                    meant = ": not found in PATH; did you mean ./train.py?\n";
  const Finished named = run({"--no-python", "train.py"});
  CHECK(named.status == ExitStatus::exited(127));
  CHECK(named.err == cannot + "train.py" + meant);
  CHECK(run({"train"}).err == cannot + "train" + meant);
  CHECK(run({"no-such-program"}).err == cannot + "no-such-program: not found in PATH\n");
  const Finished mistyped = run({"trian.py"});
  CHECK(mistyped.status == ExitStatus::exited(127));
  CHECK(mistyped.err == cannot + "trian.py: No such file or directory: did you mean train.py?\n");
  CHECK(run({"no-such.py"}).err == cannot + "no-such.py: No such file or directory\n");
  std::filesystem::create_directory(folder.path() / "src");
  const Finished bare = run({"src"});
  CHECK(bare.status == ExitStatus::exited(127));
  CHECK(bare.err == cannot + "src: not found in PATH; here it is a folder: name the program in it\n");
  for (const std::string name : {".", "./src"}) {
    const Finished refused = run({name});
    CHECK(refused.status == ExitStatus::exited(126));
    CHECK(refused.err == cannot + name + ": it is a folder; name the program in it\n");
  }
}

TEST_CASE("a script that refuses one of ddprun's flags is followed by a line about their place",
          "[launcher]") {
  const TempDir folder;
  const std::string script = folder.path() / "train.py";
  write_file_atomic(script, "import argparse\nargparse.ArgumentParser().parse_args()\n");
  const std::string line = "ddprun's own flags, such as --tee, go before " + script + "\n";
  CHECK(Finished(ddprun_command({script, "--tee=3"})).err.ends_with(line));
  CHECK(count_of("ddprun's own flags", Finished(ddprun_command({script, "--lr=3"})).err) == 0);

  // One that only launchers have is told of at once: a script that takes any flag would run on one rank
  // unnoticed.
  const std::string after = "--nproc-per-node=2 comes after " + script + ", so it goes to that program";
  const auto refused = Finished(ddprun_command({script, "--nproc-per-node=2"}));
  CHECK(refused.status == ExitStatus::exited(2));
  CHECK(count_of(after, refused.err) == 1);
  CHECK(count_of("ddprun's own flags", refused.err) == 0);
  write_file_atomic(script, "");
  const auto ignored = Finished(ddprun_command({script, "--nproc-per-node=2"}));
  CHECK(ignored.status == ExitStatus::exited(0));
  CHECK(count_of(after, ignored.err) == 1);
  CHECK(Finished(ddprun_command({script, "--tee=3"})).err.empty());
}

TEST_CASE("a variable for the version, as container files have it, does not keep a job from running",
          "[launcher]") {
  Command command = script({}, "echo ran");
  command.env["DDPRUN_VERSION"] = "1";
  command.env["DDPRUN_HELP"] = "1";
  const Finished run(command);
  CHECK(run.out == "ran\n");
  CHECK(run.err.empty());
}

TEST_CASE("ddprun refuses a master port that is in use, naming it", "[launcher]") {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + GENERATE(0U, 1U));  // rank 0 listens on all
  socklen_t size = sizeof address;
  REQUIRE(::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener.get(), 1) == 0);
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const Finished run(job({"--master-port", port}, {"ready"}));
  CHECK(run.status == ExitStatus::exited(125));
  CHECK_THAT(run.err, ContainsSubstring("port " + port));
  CHECK_THAT(run.err, ContainsSubstring("in use by process " + std::to_string(::getpid()) + " ("));
  CHECK(run.out.empty());
}

TEST_CASE("ddprun keeps MASTER_PORT away from everyone who asks for a free port", "[launcher]") {
  const Finished run(job({"--nproc-per-node=8"}, {"bind-many", "500"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("bound", run.out) == 8);
}

TEST_CASE("rank 0 can listen on the socket it inherits, or bind the port itself", "[launcher]") {
  const auto action = GENERATE(as<std::string>(), "listen-store-fd", "bind-master-port");
  const Finished run(job({"--nproc-per-node=2"}, {"--rank", "0", action, "--rank", "1", "connect"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("accepted", run.out) == 1);
}

TEST_CASE("ranks meet on a host of IPv4 alone and on one of IPv6 alone", "[launcher]") {
  const bool v4 = GENERATE(true, false);
  const std::string flag = GENERATE("", "--master-addr=", "--master-port=29517");
  INFO((v4 ? "IPv4 " : "IPv6 ") << flag);
  constexpr int kForbidden = 99;
  std::vector<std::string> flags{"--nproc-per-node=2"};
  if (!flag.empty()) flags.push_back(flag + (flag.back() != '=' ? "" : v4 ? "127.0.0.1" : "::1"));
  Command command = job(flags, {"meet"});
  command.in_child = [v4] {
    if (!enter_own_network() || !(v4 ? leave_only_ipv4() : leave_only_ipv6())) ::_exit(kForbidden);
  };
  const Finished run(command);
  if (run.status == ExitStatus::exited(kForbidden)) skip("a network of one's own is not allowed here");
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("met ", run.out) == 2);
}

TEST_CASE("twenty jobs at once do not get in each other's way", "[launcher]") {
  std::vector<std::unique_ptr<Child>> jobs;
  for (int i = 0; i < 20; ++i)
    jobs.push_back(std::make_unique<Child>(
        job({"--nproc-per-node=2"}, {"--rank", "0", "bind-master-port", "--rank", "1", "connect"})));
  for (const auto& ddprun : jobs) {
    CHECK(ddprun->wait() == ExitStatus::exited(0));
    check_nothing_left(*ddprun);
  }
}

}  // namespace
}  // namespace ddprun::test
