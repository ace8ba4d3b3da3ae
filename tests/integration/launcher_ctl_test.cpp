// ddpctl, and the socket that it asks.

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include <ddprun/common/files.h>
#include <ddprun/common/worker_env.h>
#include "tests/integration/node_job.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using namespace std::chrono_literals;

/// A job whose socket is in a folder of its own, and ddpctl beside it.
struct SeenJob {
  explicit SeenJob(Command command) : child(prepared(std::move(command), runtime.path())) {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (std::chrono::steady_clock::now() < end && socket().empty()) std::this_thread::sleep_for(10ms);
    INFO(child.err());
    REQUIRE_FALSE(socket().empty());
  }
  static Command prepared(Command command, const fs::path& folder) {
    command.env["DDPRUN_CONTROL_DIR"] = (folder / "ddprun").string();
    return command;
  }
  fs::path socket() const {
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(runtime.path() / "ddprun", none))
      if (entry.path().extension() == ".sock") return entry.path();
    return {};
  }
  /// The job's name for ddpctl: jobs of other tests run beside it.
  std::string name() const { return socket().stem(); }
  Finished ctl(std::vector<std::string> words) const {
    words.insert(words.begin(), DDPCTL_PROGRAM);
    return Finished(prepared(Command{std::move(words)}, runtime.path()));
  }
  ExitStatus end() {
    child.send_signal(SIGTERM);
    return child.wait();
  }

  TempDir runtime;
  Child child;
};

/// The bytes that come back from the socket.
std::string ask(const fs::path& path, const std::string& request) {
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  REQUIRE(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) > 0);
  ::shutdown(fd.get(), SHUT_WR);
  std::string bytes;
  char buffer[4096];
  for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, 0)) > 0;)
    bytes.append(buffer, static_cast<std::size_t>(n));
  return bytes;
}

Command speaking_job() {
  return script(
      {"--nproc-per-node=2", "--prefix"},
      "echo hello from $RANK; echo problem of $RANK >&2; "
      "echo '{\"step\": 5, \"steps\": 10, \"phase\": \"think\"}' > /proc/self/fd/$DDPRUN_STATUS_FD; "
      "while :; do sleep 0.1; done");
}

/// A socket that nobody listens on.
UniqueFd bind_socket(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  return fd;
}

TEST_CASE("ddpctl lists a job and shows its ranks", "[ctl]") {
  SeenJob job(speaking_job());
  const std::string name = job.name();
  CHECK(name.size() == 8);
  std::string table;
  for (int i = 0; i < 100 && count_of("think", table) < 2; ++i) table = job.ctl({"top", name, "--once"}).out;
  CHECK_THAT(table, ContainsSubstring("job " + name) && ContainsSubstring("step 5/10 ") &&
                        ContainsSubstring("think"));
  const Finished list = job.ctl({"ps"});
  CHECK_THAT(list.out, ContainsSubstring(name + "  running") && ContainsSubstring("5 of 10"));
  CHECK_THAT(job.ctl({"top", name}).out, ContainsSubstring("RANK"));   // no terminal
  CHECK_THAT(job.ctl({"top"}).out, ContainsSubstring("job " + name));  // all jobs
  const Finished wrong = job.ctl({"top", "nobody"});
  CHECK(wrong.status == ExitStatus::exited(2));
  CHECK_THAT(wrong.err,
             ContainsSubstring("no job is called 'nobody'; these are running: ") && ContainsSubstring(name));
  CHECK(job.end() == ExitStatus::killed(SIGTERM));
  CHECK(job.socket().empty());
  CHECK_THAT(job.ctl({"ps"}).out, !ContainsSubstring(name));
  CHECK(job.ctl({"top", name}).status == ExitStatus::exited(2));
}

TEST_CASE("ddpctl shows what ranks wrote, from files or from memory", "[ctl]") {
  const TempDir logs;
  const bool files = GENERATE(false, true);
  Command command = speaking_job();
  if (files)
    command.argv.insert(command.argv.begin() + 1, {"--log-dir=" + logs.path().string(), "--redirects=3"});
  SeenJob job(command);
  std::string all;
  for (int i = 0; i < 100 && count_of("problem", all) < 2; ++i) all = job.ctl({"logs", job.name()}).out;
  for (const char* line :
       {"[0]: hello from 0\n", "[1]: hello from 1\n", "[0]: problem of 0\n", "[1]: problem of 1\n"})
    CHECK(count_of(line, all) == 1);
  const std::string one = job.ctl({"logs", job.name(), "--rank", "1"}).out;
  CHECK(count_of("hello from 1\n", one) == 1);
  CHECK(count_of("from 0", one) == 0);
  CHECK(job.ctl({"logs", job.name(), "--rank", "9"}).status == ExitStatus::exited(2));
  job.end();
}

TEST_CASE("ddpctl logs -f goes on until the job ends", "[ctl]") {
  SeenJob job(
      script({"--nproc-per-node=2"}, "for i in 1 2 3 4 5 6 7 8; do echo line $i of $RANK; sleep 0.25; done"));
  const Finished followed = job.ctl({"logs", "-f", job.name()});
  CHECK(followed.status == ExitStatus::exited(0));
  for (const char* line : {"[0]: line 1 of 0\n", "[1]: line 7 of 1\n"})
    CHECK(count_of(line, followed.out) == 1);
  CHECK(job.child.wait() == ExitStatus::exited(0));
}

TEST_CASE("ddpctl stop ends a job, stacks leave it alone", "[ctl]") {
  SeenJob job(speaking_job());
  const Finished stacks = job.ctl({"stacks", job.name(), "--rank=1"});
  CHECK(stacks.status == ExitStatus::exited(0));
  CHECK_THAT(stacks.out,
             ContainsSubstring("rank 1\n") && ContainsSubstring("(sh): ") && !ContainsSubstring("rank 0"));
  CHECK(job.ctl({"stacks", job.name(), "--rank=7"}).status == ExitStatus::exited(2));
  CHECK(job.ctl({"stop", job.name()}).status == ExitStatus::exited(0));
  CHECK(job.child.wait() == ExitStatus::killed(SIGTERM));
  CHECK_THAT(job.child.err(),
             ContainsSubstring("ddpctl stop: ending the job") && !ContainsSubstring("received SIGTERM"));
}

TEST_CASE("a debugger that never answers holds up neither ddpctl stacks nor the rank", "[ctl]") {
  const TempDir tools;
  for (const char* tool : {"eu-stack", "gdb", "py-spy"}) {
    write_file_atomic(tools.path() / tool,
                      "#!/bin/sh\nkill -STOP $2; exec sleep 600\n");  // as one that has attached
    fs::permissions(tools.path() / tool, fs::perms::owner_all);
  }
  Command command = speaking_job();
  command.env["PATH"] = tools.path().string() + ":" + process_env("PATH").value_or("/bin:/usr/bin");
  SeenJob job(command);
  REQUIRE(wait_until([&] { return count_of("hello", job.child.out()) == 2; }));
  const auto begin = std::chrono::steady_clock::now();
  const Finished stacks = job.ctl({"stacks", job.name()});
  CHECK(std::chrono::steady_clock::now() - begin < 15s);
  CHECK(count_of("no stacks: eu-stack: not done in time\n", stacks.out) == 2);
  const std::string table = job.ctl({"top", job.name(), "--once"}).out;
  CHECK(count_of("stopped", table) == 0);
  job.end();
}

TEST_CASE("ddpctl stop ends an elastic job on all nodes, whichever node it is on", "[ctl]") {
  const std::size_t stopped = GENERATE(0U, 1U);
  CAPTURE(stopped);
  NodeJob nodes;
  std::vector<std::string> flags = nodes.flags({"--nnodes=1:2", "--last-call=600"});
  flags[0] += ",127.0.0.1:" + free_port();
  SeenJob first(job(flags, {"meet", "ready", "pause"}));
  flags[2] = "--rdzv-conf=is_host=0";
  SeenJob second(job(flags, {"meet", "ready", "pause"}));
  for (const SeenJob* each : {&first, &second}) REQUIRE(each->child.wait_for_output("ready "));
  SeenJob& asked = stopped == 0 ? first : second;
  CHECK(asked.ctl({"stop", asked.name()}).status == ExitStatus::exited(0));
  CHECK(asked.child.wait() == ExitStatus::killed(SIGTERM));
  SeenJob& other = stopped == 0 ? second : first;
  CHECK(other.child.wait() == ExitStatus::exited(128 + SIGTERM));
  CHECK_THAT(other.child.err(), ContainsSubstring("ddpctl stop on node "));
  for (const SeenJob* each : {&first, &second}) check_nothing_left(each->child);
}

TEST_CASE("ddpctl on the coordinator's node shows the ranks of all nodes, the slow one named", "[ctl]") {
  const std::string text =
      "own=0.02; [ $RANK = 3 ] && own=0.04; i=0; while :; do i=$((i+1)); "
      "echo \"{\\\"step\\\": $i, \\\"seconds\\\": {\\\"compute\\\": $(echo $i $own | awk '{print $1 * "
      "$2}')}}\" "
      "> /proc/self/fd/$DDPRUN_STATUS_FD; sleep 0.1; done";
  const TempDir other;
  NodeJob nodes;
  const std::vector<std::string> flags = nodes.flags({"--nnodes=2", "--nproc-per-node=2"});
  SeenJob job(script(flags, text));
  auto joining = flags;
  joining[2] = "--rdzv-conf=is_host=0";
  Child second(SeenJob::prepared(script(joining, text), other.path()));
  REQUIRE(wait_until([&] { return count_of("rank 3 on node ", job.child.err()) == 1; }));
  CHECK_THAT(job.child.err(), ContainsSubstring(" is 2.0 times slower than the median since step "));
  std::string table;
  CHECK(wait_until([&] {
    table = job.ctl({"top", job.name(), "--once"}).out;
    return count_of("running ", table) >= 4 && count_of("2.0x compute", table) == 1;
  }));
  INFO(table);
  CHECK_THAT(table, ContainsSubstring("RANK  NODE "));
  CHECK_THAT(job.ctl({"ps"}).out, ContainsSubstring("NODE"));
  for (const char* command : {"logs", "stacks"}) {
    const Finished refused = job.ctl({command, job.name(), "--rank=3"});
    CHECK(refused.status == ExitStatus::exited(2));
    CHECK_THAT(refused.err,
               ContainsSubstring("rank 3 runs on node ") && ContainsSubstring(": run ddpctl there\n"));
    CHECK(count_of("\n", refused.err) == 1);
  }
  CHECK_THAT(job.ctl({"stacks", job.name()}).out, ContainsSubstring("\nthe other ranks run on node "));
  CHECK(count_of("slower than the median", second.err()) == 0);
  job.end();
  second.wait();
}

TEST_CASE("the socket is for its user only, and answers nonsense with an error", "[ctl]") {
  SeenJob job(speaking_job());
  struct stat info {};
  REQUIRE(::stat(job.socket().c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0600);
  REQUIRE(::stat(job.socket().parent_path().c_str(), &info) == 0);
  CHECK((info.st_mode & 07777) == 0700);
  // systemd-tmpfiles, which clears old files from /tmp, leaves locked folders alone.
  const UniqueFd folder(::open(job.socket().parent_path().c_str(), O_RDONLY | O_DIRECTORY));
  CHECK(::flock(folder.get(), LOCK_EX | LOCK_NB) == -1);
  for (const char* nonsense :
       {"hello\n", "[]\n", "{\"ask\": 1}\n", "{\"ask\": \"fly\"}\n",
        "{\"ask\": \"output\", \"rank\": \"x\"}\n", "{\"ask\": \"output\", \"rank\": -1}\n", "[[[[[[[[[[\n"})
    CHECK(json::parse(ask(job.socket(), nonsense)).contains("error"));
  CHECK(ask(job.socket(), std::string(100'000, 'x')).empty());
  CHECK(json::parse(ask(job.socket(), "{\"ask\": \"status\"}\n"))["workers"] == 2);
  job.end();
}

TEST_CASE("clients that do not read do not delay a job's end", "[ctl]") {
  SeenJob job(speaking_job());
  std::vector<UniqueFd> clients;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, job.socket().c_str());
  for (int i = 0; i < 40; ++i) {
    clients.emplace_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ::connect(clients.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    std::string requests;
    for (int k = 0; k < 200; ++k) requests += "{\"ask\": \"status\"}\n";
    [[maybe_unused]] const ssize_t sent =
        ::send(clients.back().get(), requests.data(), requests.size(), MSG_NOSIGNAL);
  }
  std::this_thread::sleep_for(500ms);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(job.end() == ExitStatus::killed(SIGTERM));
  CHECK(std::chrono::steady_clock::now() - begin < 5s);
}

TEST_CASE("a socket that a killed ddprun left behind is removed", "[ctl]") {
  SeenJob job(speaking_job());
  job.child.send_signal(SIGKILL);
  job.child.wait();
  CHECK_FALSE(job.socket().empty());
  const auto folder = job.socket().parent_path();
  const auto unready = folder / "0123abcd.new";
  bind_socket(unready);
  const std::set<fs::path> others = {folder / "notes.new", folder / "01234567.new"};
  for (const auto& file : others) std::ofstream(file) << "a user's";
  const timespec times[2] = {{0, UTIME_OMIT}, {std::time(nullptr) - 120, 0}};
  for (const auto& file : {unready, folder / "notes.new", folder / "01234567.new"})
    REQUIRE(::utimensat(AT_FDCWD, file.c_str(), times, 0) == 0);
  CHECK(job.ctl({"ps"}).status == ExitStatus::exited(0));
  CHECK(job.socket().empty());
  CHECK_FALSE(fs::exists(unready));
  for (const auto& file : others) CHECK(fs::exists(file));
}

TEST_CASE("another program's socket in the folder keeps no job from being seen", "[ctl]") {
  SeenJob job(speaking_job());
  const std::string name = job.name();
  for (const char* file : {"notes.sock", "01234567.sock"}) {
    for (const std::string answer :
         {"{}", R"({"status": "ok"})", R"({"error": 7})", R"({"job": 1, "pid": "x"})"}) {
      const fs::path socket = job.runtime.path() / "ddprun" / file;
      const UniqueFd stranger = bind_socket(socket);
      REQUIRE(::listen(stranger.get(), 1) == 0);
      std::thread asked([&] {
        const UniqueFd one(::accept4(stranger.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (one)
          static_cast<void>(::send(one.get(), (answer + "\n").data(), answer.size() + 1, MSG_NOSIGNAL));
      });
      const auto shown = job.ctl({"ps"});
      ::shutdown(stranger.get(), SHUT_RDWR);
      asked.join();
      CAPTURE(answer, shown.err);
      CHECK(shown.status == ExitStatus::exited(0));
      CHECK_THAT(shown.out, ContainsSubstring(name));
      fs::remove(socket);
    }
  }
  job.end();
}

TEST_CASE("a job is seen when its user has logged out and come back", "[ctl]") {
  const TempDir runtime;  // emptied when the user logs out
  Command command = speaking_job();
  command.env["XDG_RUNTIME_DIR"] = runtime.path().string();
  command.argv.insert(command.argv.begin() + 1, "--rdzv-id=" + runtime.path().string());
  Child job(command);
  REQUIRE(wait_until([&] { return count_of("hello", job.out()) == 2; }));
  CHECK(fs::is_empty(runtime.path()));
  const Finished seen(Command{{DDPCTL_PROGRAM, "top", runtime.path().string()}});
  CHECK(seen.status == ExitStatus::exited(0));
  CHECK_THAT(seen.out, ContainsSubstring("RANK"));
  job.send_signal(SIGTERM);
  job.wait();
}

TEST_CASE("a job whose ddprun is stopped does not answer, and that is said", "[ctl]") {
  SeenJob job(speaking_job());
  job.child.send_signal(SIGSTOP);
  const Finished list = job.ctl({"ps"});
  job.child.send_signal(SIGCONT);
  CHECK_THAT(list.err, ContainsSubstring(job.name() + ".sock: the job does not answer"));
  job.end();
}

TEST_CASE("a job that ends while it is asked has ended", "[ctl]") {
  const TempDir folder;
  ::chmod(folder.path().c_str(), 0700);
  const UniqueFd ending(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, (folder.path() / "01234567.sock").c_str());
  REQUIRE(::bind(ending.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(ending.get(), 1) == 0);
  Command command{{DDPCTL_PROGRAM, "ps"}};
  command.env["DDPRUN_CONTROL_DIR"] = folder.path().string();
  Child list(command);
  {
    const auto readable = [](const UniqueFd& fd) {
      pollfd wanted{fd.get(), POLLIN, 0};
      return ::poll(&wanted, 1, std::chrono::milliseconds(kDeadline).count()) == 1;
    };
    REQUIRE(readable(ending));
    const UniqueFd asked(::accept(ending.get(), nullptr, nullptr));
    REQUIRE(readable(asked));
  }
  CHECK(list.wait() == ExitStatus::exited(0));
  CHECK(list.err() == "");
}

TEST_CASE("a rank that is stopped is shown as such", "[ctl]") {
  SeenJob job(script({}, "kill -STOP $$"));
  CHECK(wait_until([&] { return count_of(" stopped ", job.ctl({"top", job.name()}).out) == 1; }));
  job.child.send_signal(SIGKILL);
  job.child.wait();
}

TEST_CASE("long logs are shown at once", "[ctl]") {
  const TempDir logs;
  SeenJob job(script({"--nproc-per-node=2", "--redirects=3", "--log-dir=" + logs.path().string()},
                     "[ $RANK = 1 ] || yes 'a line of a long log' | head -n 800000; echo last; sleep 1000"));
  REQUIRE(wait_until([&] { return count_of("last", job.ctl({"logs", job.name(), "--rank=1"}).out) == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  CHECK(wait_until([&] { return count_of("\n", job.ctl({"logs", job.name(), "--rank=0"}).out) == 800001; }));
  CHECK(std::chrono::steady_clock::now() - begin < kDeadline);
  job.end();
}

TEST_CASE("a lock on the folder keeps no job from starting", "[ctl]") {
  const TempDir folder;
  ::chmod(folder.path().c_str(), 0700);
  const UniqueFd held(::open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  REQUIRE(::flock(held.get(), LOCK_EX) == 0);
  Command command = script({}, "true");
  command.env["DDPRUN_CONTROL_DIR"] = folder.path().string();
  CHECK(Finished(command).status == ExitStatus::exited(0));
}

TEST_CASE("a folder that others can enter is not used", "[ctl]") {
  const TempDir runtime;
  fs::create_directory(runtime.path() / "ddprun");
  fs::permissions(runtime.path() / "ddprun", fs::perms::all);
  const Finished run(SeenJob::prepared(script({}, "true"), runtime.path()));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(fs::is_empty(runtime.path() / "ddprun"));
}

}  // namespace
}  // namespace ddprun::test
