// A worker that performs the actions in its arguments one by one, then exits with 0:
//
//   stub_worker ready --rank 1 exit 7 --all await     rank 1 exits with 7, the others wait for a signal
//
// It prints lines such as "ready RANK PID" in one write each, so that a test can wait for a line.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include <ddprun/common/recovery.h>
#include "tests/support/hex.h"
#include "tests/support/stub_hang.h"
#include "tests/support/stub_meet.h"

extern char** environ;

/// For LeakSanitizer, whose search at the end hangs if the process gets a signal meanwhile, as ddprun's
/// SIGCONT.
extern "C" int __lsan_is_turned_off() { return 1; }

namespace {

using ddprun::test::hex;
using nlohmann::json;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) ::_exit(110);
}

[[noreturn]] void die(const std::string& why) {
  say("stub_worker: " + why);
  ::_exit(111);
}

std::set<int> open_descriptors() {
  std::set<int> fds;
  for (int fd = 0; fd < 1024; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) fds.insert(fd);
  return fds;
}

std::vector<int> ignored_signals() {
  std::vector<int> list;
  struct sigaction action {};
  for (int signal = 1; signal < NSIG; ++signal)
    if (::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) list.push_back(signal);
  return list;
}

std::vector<int> blocked_signals() {
  std::vector<int> list;
  sigset_t set;
  ::sigprocmask(SIG_SETMASK, nullptr, &set);
  for (int signal = 1; signal < NSIG; ++signal)
    if (sigismember(&set, signal) == 1) list.push_back(signal);
  return list;
}

/// Everything that a launcher decides for a worker, as one line of JSON, with bytes in hex.
void dump(const std::vector<std::string>& argv) {
  json all = {{"fds", open_descriptors()},
              {"ignored", ignored_signals()},
              {"blocked", blocked_signals()},
              {"leads_session", ::getsid(0) == ::getpid() && ::getpgrp() == ::getpid()}};
  for (const std::string& argument : argv) all["argv"].push_back(hex(argument));
  std::map<std::string, std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    env[text.substr(0, text.find('='))] = text.substr(std::min(text.find('=') + 1, text.size()));
  }
  all["env"] = env;
  say(all.dump(-1, ' ', true, json::error_handler_t::replace));
}

sigset_t awaited_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) sigaddset(&set, signal);
  return set;
}

void await_signal() {
  const sigset_t set = awaited_signals();
  int signal = 0;
  ::sigwait(&set, &signal);
  say("got " + ddprun::signal_name(signal) + " rank " + variable("RANK"));
}

void expect_no_signal(int milliseconds) {
  const sigset_t set = awaited_signals();
  const timespec time{milliseconds / 1000, milliseconds % 1000 * 1'000'000L};
  if (::sigtimedwait(&set, nullptr, &time) >= 0) die("got a second signal");
  say("no second signal");
}

/// A child that lives until it is killed, by SIGKILL if it ignores SIGTERM.
void spawn_child(bool ignores_term) {
  if (::fork() != 0) return;
  sigset_t none;
  sigemptyset(&none);
  if (ignores_term) ::signal(SIGTERM, SIG_IGN);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  say("child " + std::to_string(::getpid()));
  for (;;) ::pause();
}

int loader = -1;

/// A child that answers a byte with a byte, as a process that loads data, until SIGTERM.
void spawn_loader() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) die("cannot make a pair of sockets");
  if (::fork() != 0) {
    ::close(ends[1]);
    loader = ends[0];
    return;
  }
  ::close(ends[0]);
  ::signal(SIGTERM, [](int) {
    say("loader ends by SIGTERM");
    ::_exit(0);
  });
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  char byte;
  while (::read(ends[1], &byte, 1) == 1)
    if (::write(ends[1], &byte, 1) != 1) break;
  for (;;) ::pause();
}

bool load() {
  char byte = 'x';
  return ::send(loader, &byte, 1, MSG_NOSIGNAL) == 1 && ::read(loader, &byte, 1) == 1;
}

/// A process that has left its parent, group and session, like a daemon.
void spawn_daemon() {
  int ready[2];
  if (::pipe(ready) != 0) die("cannot make a pipe");
  if (::fork() == 0) {
    ::setsid();
    if (::fork() != 0) ::_exit(0);
    sigset_t none;
    sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    say("daemon " + std::to_string(::getpid()));
    ::close(ready[0]);
    ::close(ready[1]);
    for (;;) ::pause();
  }
  ::close(ready[1]);
  char byte;
  [[maybe_unused]] const ssize_t end = ::read(ready[0], &byte, 1);  // until it is a daemon
  ::close(ready[0]);
}

void listen_without_accepting(int fd) {
  if (::listen(fd, 16) != 0) die("cannot listen");
}

void listen_on(int fd) {
  listen_without_accepting(fd);
  const int peer = ::accept(fd, nullptr, nullptr);
  if (peer < 0) die("cannot accept");
  say("accepted");
}

sockaddr_in master_address() {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(std::stoi(variable("MASTER_PORT"))));
  ::inet_pton(AF_INET, variable("MASTER_ADDR").c_str(), &address.sin_addr);
  return address;
}

/// Binds the port itself, on all interfaces, as rank 0 of other programs does, such as Python's TCPStore.
void bind_master_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address = master_address();
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) die("cannot bind");
  listen_on(fd);
}

void connect_to_master() {
  const sockaddr_in address = master_address();
  for (;;) {  // until rank 0 listens; the test has a deadline
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return;
    ::close(fd);
    ::usleep(1000);
  }
}

/// Takes many ports from the kernel: MASTER_PORT must not be among them.
void bind_many(int count) {
  const std::uint16_t master = master_address().sin_port;
  for (int i = 0; i < count; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(i % 2 == 0 ? INADDR_LOOPBACK : INADDR_ANY);
    socklen_t size = sizeof address;
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0) die("cannot bind");
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    if (address.sin_port == master) die("got the master port");
  }
  say("bound");
}

/// Waits for all ranks of the job: "met RANK of WORLD_SIZE, round N at MASTER_ADDR MASTER_PORT".
void meet() {
  if (!ddprun::test::meet_all_ranks()) die("cannot meet the other ranks");
  say("met " + variable("RANK") + " of " + variable("WORLD_SIZE") + ", round " +
      variable("TORCHELASTIC_RESTART_COUNT") + " at " + variable("MASTER_ADDR") + " " +
      variable("MASTER_PORT"));
}

void fill_memory(std::size_t megabytes) {
  const std::string memory(megabytes << 20, 'x');
  say("holds " + std::to_string(memory.size()));
}

/// In this thread alone. 0: all signals, for a second, as while a program starts a thread or another program.
void block(int signal) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  signal == 0 ? sigfillset(&blocked) : sigaddset(&blocked, signal);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  say("blocks");
  std::this_thread::sleep_for(std::chrono::seconds(1));
  if (signal == 0) ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// Until it comes, or for a second.
void wait_for_signal(int signal) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, signal);
  ::pthread_sigmask(SIG_BLOCK, &awaited, nullptr);
  say("waits");
  const timespec second{1, 0};
  if (::sigtimedwait(&awaited, nullptr, &second) == signal) say("got it");
}

/// Waits for the notice of a new round, and adapts the environment to a worker that starts in it.
void wait_for_round() {
  pollfd entry{std::stoi(variable("DDPRUN_ROUND_FD")), POLLIN, 0};
  if (::poll(&entry, 1, -1) != 1) die("cannot wait for a round");
  auto received = ddprun::receive_notice(entry.fd);
  if (!received) die("no notice came");
  const auto& notice = received->notice;
  say("rank " + variable("RANK") + " lost " + json(notice.lost).dump() + " in round " +
      std::to_string(notice.round) + (received->store ? " with a socket" : ""));
  ::setenv("MASTER_ADDR", notice.master_addr.c_str(), 1);
  ::setenv("MASTER_PORT", std::to_string(notice.master_port).c_str(), 1);
  ::setenv("TORCHELASTIC_RESTART_COUNT", std::to_string(notice.restart_count).c_str(), 1);
  if (received->store) ::setenv("DDPRUN_STORE_FD", std::to_string(received->store.release()).c_str(), 1);
}

void read_stdin() {
  std::string text;
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) == 1) text += byte;
  say("stdin rank " + variable("RANK") + ": '" + text + "'");
}

void read_line() {
  std::string text;
  char byte;
  ssize_t n = 0;
  while ((n = ::read(STDIN_FILENO, &byte, 1)) == 1 && byte != '\n') text += byte;
  if (n != 1) die("cannot read a line");
  termios modes{};
  if (::tcgetattr(STDIN_FILENO, &modes) == 0 && ::tcsetattr(STDIN_FILENO, TCSANOW, &modes) != 0)
    die("cannot set the terminal's modes");
  say("line '" + text + "'");
}

void make_bad_error_file(const std::string& kind) {
  const std::string path = variable("TORCHELASTIC_ERROR_FILE");
  if (kind == "garbage") ddprun::write_file_atomic(path, "}not json\x1b[2J");
  if (kind == "huge") ddprun::write_file_atomic(path, std::string(1 << 20, 'x'));
  if (kind == "legacy") ddprun::write_file_atomic(path, R"({"message": "old words", "timestamp": "10"})");
  if (kind == "fifo" && ::mkfifo(path.c_str(), 0600) != 0) die("cannot make a FIFO");
  if (kind == "link" && ::symlink("/etc/passwd", path.c_str()) != 0) die("cannot make a link");
}

class Script {
 public:
  explicit Script(std::vector<std::string> words) : words_(std::move(words)) {}

  void run() {
    while (next_ < words_.size()) {
      const std::string word = take();
      if (word == "--rank") {
        applies_ = take() == variable("RANK");
      } else if (word == "--all") {
        applies_ = true;
      } else if (word == "--old-rank") {  // not one started in its place
        applies_ = take() == variable("RANK") && variable("DDPRUN_ROUND") == "0";
      } else if (word == "--old") {
        applies_ = variable("DDPRUN_ROUND") == "0";
      } else {
        const auto action = actions_.find(word);
        if (action == actions_.end()) die("no such action: " + word);
        const std::string argument = action->second.has_argument ? take() : "";
        if (applies_) action->second.run(argument);
      }
    }
  }

 private:
  struct Action {
    bool has_argument;
    std::function<void(const std::string&)> run;
  };

  std::string take() {
    if (next_ == words_.size()) die("a word is missing");
    return words_[next_++];
  }

  std::vector<std::string> words_;
  std::size_t next_ = 0;
  bool applies_ = true;
  std::map<std::string, Action> actions_ = {
      {"ready", {false, [](auto&) { say("ready " + variable("RANK") + " " + std::to_string(::getpid())); }}},
      {"say", {true, [](auto& text) { say(text); }}},
      {"exit", {true, [](auto& code) { ::_exit(std::stoi(code)); }}},
      {"kill",
       {true,
        [](auto& signal) {
          ::signal(std::stoi(signal), SIG_DFL);  // sanitizers handle some
          ::kill(::getpid(), std::stoi(signal));
          for (;;) ::pause();
        }}},
      {"await", {false, [](auto&) { await_signal(); }}},
      {"expect-no-signal", {true, [](auto& ms) { expect_no_signal(std::stoi(ms)); }}},
      {"block", {true, [](auto& signal) { block(std::stoi(signal)); }}},
      {"wait-for-signal", {true, [](auto& signal) { wait_for_signal(std::stoi(signal)); }}},
      {"ignore-term", {false, [](auto&) { ::signal(SIGTERM, SIG_IGN); }}},
      {"pause",
       {false,
        [](auto&) {
          for (;;) ::pause();
        }}},
      {"stop-self", {false, [](auto&) { ::raise(SIGSTOP); }}},
      {"fill-memory", {true, [](auto& mb) { fill_memory(std::stoul(mb)); }}},
      {"spin", {false, [](auto&) { ddprun::test::stub_worker_spin(); }}},
      {"thread", {false, [](auto&) { ddprun::test::start_pausing_thread(); }}},
      {"catch-abort", {false, [](auto&) { ::signal(SIGABRT, [](int) { ::_exit(99); }); }}},
      {"beat",
       {true,
        [](auto& count) {
          if (!ddprun::test::send_beats(std::stoi(count))) die("no pipe for heartbeats");
        }}},
      {"child", {false, [](auto&) { spawn_child(false); }}},
      {"stubborn-child", {false, [](auto&) { spawn_child(true); }}},
      {"daemon", {false, [](auto&) { spawn_daemon(); }}},
      {"loader", {false, [](auto&) { spawn_loader(); }}},
      {"load", {false, [](auto&) { load() ? say("loaded") : die("the loader has ended"); }}},
      {"loader-ends",
       {false,
        [](auto&) {
          while (load()) ::usleep(1000);
          say("the loader has ended");
        }}},
      {"wait-for-file",
       {true,
        [](auto& path) {
          while (!std::filesystem::exists(path)) ::usleep(1000);
        }}},
      {"error",
       {true,
        [](auto& text) {
          ddprun::write_error_file(variable("TORCHELASTIC_ERROR_FILE"), {text, "", 1});
        }}},
      {"bad-error-file", {true, [](auto& kind) { make_bad_error_file(kind); }}},
      {"listen-store-fd", {false, [](auto&) { listen_on(std::stoi(variable("DDPRUN_STORE_FD"))); }}},
      {"listen", {false, [](auto&) { listen_without_accepting(std::stoi(variable("DDPRUN_STORE_FD"))); }}},
      {"bind-master-port", {false, [](auto&) { bind_master_port(); }}},
      {"connect", {false, [](auto&) { connect_to_master(); }}},
      {"meet", {false, [](auto&) { meet(); }}},
      {"recovers",
       {true,
        [](auto& yes) {
          ddprun::send_abilities(std::stoi(variable("DDPRUN_ROUND_FD")),
                                 {yes == "true", ddprun::can_stand_by()});
        }}},
      {"stand-by",
       {true,
        [](auto& file) {  // it appears once the program waits
          const bool waits = ddprun::stands_by();
          if (waits) ddprun::write_file_atomic(file, "");
          ddprun::stand_by();
          if (waits) say("stood by for rank " + variable("RANK"));
        }}},
      {"wait-for-round", {false, [](auto&) { wait_for_round(); }}},
      {"bind-many", {true, [](auto& count) { bind_many(std::stoi(count)); }}},
      {"read-stdin", {false, [](auto&) { read_stdin(); }}},
      {"read-line", {false, [](auto&) { read_line(); }}},
  };
};

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (!words.empty() && words[0] == "dump") {
    dump({argv, argv + argc});
    return 0;
  }
  for (const std::string& word : words) {
    if (word != "await") continue;  // first, so that no signal arrives too early
    const sigset_t set = awaited_signals();
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    ::signalfd(-1, &set, SFD_CLOEXEC);  // tells ddprun that it will look for them
    break;
  }
  Script(words).run();
}
