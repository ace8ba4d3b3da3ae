#include "launcher/worker_logs.h"

#include <sys/ioctl.h>

#include <atomic>
#include <fstream>
#include <list>

#include "tests/launcher/output_rig.h"
#include "tests/support/catch.h"

namespace ddprun::test {
namespace {

namespace asio = boost::asio;
using namespace std::string_literals;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

StreamPlan to_console(const std::string& prefix = "") {
  StreamPlan plan;
  plan.prefix = prefix;
  return plan;
}

StreamPlan to_file(const std::string& file) {
  StreamPlan plan;
  plan.console = false;
  plan.file = file;
  return plan;
}

StreamPlan to_nowhere() { return to_file(""); }

/// The console of a ddprun, its log folder and its workers.
struct Rig {
  explicit Rig(LogSettings settings = {}, Ends out_ends = make_pipe(), Ends err_ends = make_pipe())
      : out(std::move(out_ends)),
        err(std::move(err_ends)),
        console(std::in_place, io, out.theirs.get(), err.theirs.get()),
        logs(std::in_place, io, *console, &folder, settings) {}

  void start(std::size_t index, const WorkerLogPlan& plan, const std::function<void()>& work) {
    writers.emplace_back(logs->open(index, plan), work);
  }
  void drain() { REQUIRE(run(io, logs->drain(steady_clock::now() + kDeadline))); }
  /// Closes all that can still write to the console: its readers come to an end.
  void close_console() {
    logs.reset();
    console.reset();
    out.theirs.reset();
    err.theirs.reset();
  }
  std::string file(const std::string& name) const { return read_file(temp.path() / name); }

  TempDir temp;
  LogFolder folder{temp.path()};
  asio::io_context io;
  Ends out, err;
  std::optional<Console> console;
  std::optional<WorkerLogs> logs;
  std::list<Writer> writers;
};

/// Counts the lines "RANK STREAM NUMBER xxx" of a stream that comes in any pieces.
class LineCheck {
 public:
  LineCheck(int ranks, char stream) : next_(static_cast<std::size_t>(ranks)), stream_(stream) {}
  void take(std::string_view bytes) {
    splitter_.add(bytes, [this](std::string_view line) {
      int rank = -1, number = -1;
      char stream = 0;
      const std::string text(line);
      const int fields = std::sscanf(text.c_str(), "[%d]:%c %d", &rank, &stream, &number);
      const auto at = static_cast<std::size_t>(rank);
      if (fields != 3 || at >= next_.size() || stream != stream_ || number != next_[at] ||
          text.compare(text.size() - 5, 5, " end\n") != 0) {
        ++wrong_;
      } else {
        ++next_[at];
      }
    });
  }
  int wrong() const { return wrong_; }
  bool all_have(int lines) const {
    return std::all_of(next_.begin(), next_.end(), [&](int next) { return next == lines; });
  }

 private:
  std::vector<int> next_;
  char stream_;
  int wrong_ = 0;
  LineSplitter splitter_;
};

void put_numbered_lines(int lines) {
  std::string text[2];
  for (int i = 0; i < lines; ++i) {
    for (const int stream : {0, 1}) {
      text[stream] += (stream == 0 ? "o " : "e ") + std::to_string(i) + " end\n";
      if (text[stream].size() < 3000 && i + 1 < lines) continue;  // no multiple of a line
      put(stream + 1, text[stream]);
      text[stream].clear();
    }
  }
}

[[maybe_unused]] long peak_memory_kb() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.rfind("VmHWM:", 0) == 0) return std::stol(line.substr(6));
  return 0;
}

TEST_CASE("eight workers fill both streams: no line is lost, mixed or held in memory", "[worker_logs]") {
  constexpr int kRanks = 8, kLines = 100000;
  Rig rig;
  LineCheck out(kRanks, 'o'), err(kRanks, 'e');
  [[maybe_unused]] const long before = peak_memory_kb();
  for (int rank = 0; rank < kRanks; ++rank) {
    const StreamPlan plan = to_console("[" + std::to_string(rank) + "]:");
    rig.start(static_cast<std::size_t>(rank), {plan, plan}, [] { put_numbered_lines(kLines); });
  }
  Collector read_out(rig.out.ours.get(), [&](std::string_view bytes) { out.take(bytes); });
  Collector read_err(rig.err.ours.get(), [&](std::string_view bytes) { err.take(bytes); });
  rig.drain();
  rig.close_console();
  read_out.join();
  read_err.join();
  CHECK(out.wrong() == 0);
  CHECK(err.wrong() == 0);
  CHECK(out.all_have(kLines));
  CHECK(err.all_have(kLines));
#ifndef __SANITIZE_ADDRESS__
  // Which would keep freed memory for a while.
  CHECK(peak_memory_kb() - before < 8 * 1024);  // of 30 MB that went through
#endif
}

TEST_CASE("every byte arrives, on the console and in the file", "[worker_logs]") {
  const std::string bytes =
      "a\0b\xff\xfe\r\n"s + "10%\r20%\r" + std::string((3 << 20) + 7, 'x') + "\n\n\x1b[2Jend";
  Rig rig;
  StreamPlan plan = to_console();
  plan.file = "0/stdout.log";
  rig.start(0, {plan, to_nowhere()}, [&] { put(1, bytes); });
  std::string shown;
  {
    std::atomic<std::size_t> count = 0;
    Collector reader(rig.out.ours.get(), [&](std::string_view part) {
      shown += part;
      count = shown.size();
    });
    rig.drain();
    CHECK(wait_until([&] { return count == bytes.size(); }));
    put(rig.out.theirs.get(), "|");
    wait_until([&] { return count == bytes.size() + 1; });
    rig.close_console();
  }
  CHECK((shown == bytes + "|"));
  CHECK((rig.file("0/stdout.log") == bytes));
}

TEST_CASE("a prefix comes once a line, and the last line gets its end", "[worker_logs]") {
  Rig rig;
  rig.start(0, {to_console("[d0]:"), to_nowhere()}, [] {
    put(1, "one\n\n10%\r");
    put(1, "20%\r\nno end");
  });
  rig.drain();
  CHECK(read_available(rig.out.ours) == "[d0]:one\n[d0]:\n[d0]:10%\r20%\r\n[d0]:no end\n");
}

TEST_CASE("a last line without an end keeps none, unless another worker's follows", "[worker_logs]") {
  Rig rig;
  rig.start(0, {to_console(), to_nowhere()}, [] { put(1, "first"); });
  rig.start(1, {to_nowhere(), to_nowhere()}, [] {});
  rig.drain();
  CHECK(read_available(rig.out.ours) == "first");
  rig.logs.emplace(rig.io, *rig.console, nullptr, LogSettings{});  // the next attempt
  rig.start(0, {to_console(), to_nowhere()}, [] { put(1, "second\n"); });
  rig.drain();
  CHECK(read_available(rig.out.ours) == "\nsecond\n");
}

TEST_CASE("lines bear the time if asked to", "[worker_logs]") {
  LogSettings settings;
  settings.timestamps = true;
  Rig rig(settings);
  StreamPlan plan = to_console("[d0]:");
  plan.file = "out";
  rig.start(0, {plan, to_nowhere()}, [] { put(1, "line\n"); });
  rig.drain();
  const std::string shown = read_available(rig.out.ours);
  REQUIRE(shown.size() == 25 + 10);
  CHECK(shown.substr(10, 1) == "T");
  CHECK(shown.substr(23) == "Z [d0]:line\n");
  CHECK(rig.file("out") == "line\n");
}

TEST_CASE("a grandchild that keeps a stream open is waited for until the deadline only", "[worker_logs]") {
  Rig rig;
  const Ends hold = make_pipe();
  rig.start(0, {to_console("[d0]:"), to_nowhere()}, [&] {
    if (::fork() == 0) {
      char byte;
      while (::read(hold.ours.get(), &byte, 1) == 1) {
      }
      ::_exit(0);
    }
    put(1, "whole\npart");
  });
  REQUIRE(run_until(rig.io, [&] { return rig.writers.front().ended(); }));
  const auto start = steady_clock::now();
  REQUIRE(run(rig.io, rig.logs->drain(start + milliseconds(200))));
  CHECK(steady_clock::now() - start >= milliseconds(200));
  CHECK(steady_clock::now() - start < kDeadline / 2);
  CHECK(read_available(rig.out.ours) == "[d0]:whole\n[d0]:part\n");
}

TEST_CASE("a slow reader makes the worker wait, and it does not count as silent", "[worker_logs]") {
  constexpr int kLines = 200000;
  Rig rig;
  rig.start(0, {to_console("[0]:"), to_nowhere()}, [] { put_numbered_lines(kLines); });
  // Both pipes and the buffer are full: nothing moves any more.
  REQUIRE(run_until(rig.io, [&] { return !rig.console->out()->has_room(); }));
  while (rig.io.restart(), rig.io.run_one_for(milliseconds(50)) > 0) {
  }
  CHECK_FALSE(rig.writers.front().ended());
  const auto now = steady_clock::now();
  CHECK(rig.logs->last_output(0) >= now);

  LineCheck check(1, 'o');
  CHECK(run_until(rig.io, [&] {
    check.take(read_available(rig.out.ours));
    return check.all_have(kLines);
  }));
  CHECK(check.wrong() == 0);
}

TEST_CASE("when ddprun's reader is gone the worker and its file go on", "[worker_logs]") {
  ::signal(SIGPIPE, SIG_IGN);
  CapturedLog log;
  Rig rig;
  rig.out.ours.reset();
  StreamPlan plan = to_console();
  plan.file = "out";
  rig.start(0, {plan, to_nowhere()}, [] { put(1, std::string(5 << 20, 'x')); });
  rig.drain();
  CHECK(rig.file("out").size() == 5 << 20);
  CHECK(run_until(rig.io, [&] { return rig.writers.front().ended(); }));
  CHECK(rig.writers.front().status() == ExitStatus::exited(0));
  CHECK(count_of("\n", log.text()) == 1);
}

TEST_CASE("a stream that goes only to a file is the file", "[worker_logs]") {
  Rig rig;
  const auto ends = rig.logs->open(0, {to_file("0/stdout.log"), to_file("0/stderr.log")});
  struct stat info {};
  REQUIRE(::fstat(ends.err.get(), &info) == 0);
  CHECK(S_ISREG(info.st_mode));
  put(ends.out.get(), "out\n");
  put(ends.err.get(), "one\ntwo\n");
  CHECK(rig.file("0/stdout.log") == "out\n");  // nobody has passed it on
  CHECK(rig.logs->last_error_lines(0) == std::vector<std::string>{"one", "two"});
  rig.drain();
}

TEST_CASE("a stream that has to be looked at is read even if it goes only to a file", "[worker_logs]") {
  LogSettings settings;
  SECTION("rotation") { settings.max_size = 4; }
  SECTION("activity") { settings.need_activity = true; }
  Rig rig(settings);
  rig.start(0, {to_file("out"), to_file("err")}, [] { put(1, "one\ntwo\n"); });
  const auto opened = rig.logs->last_output(0);
  rig.drain();
  CHECK(rig.logs->last_output(0) > opened);
  CHECK(rig.file("out") == (settings.max_size != 0 ? "two\n" : "one\ntwo\n"));
}

TEST_CASE("a worker may inherit ddprun's own streams, or write to nowhere", "[worker_logs]") {
  Rig rig;
  StreamPlan inherit;
  inherit.inherit = true;
  const auto inherited = rig.logs->open(0, {inherit, inherit});
  CHECK_FALSE(inherited.out);
  CHECK_FALSE(inherited.err);
  CHECK(rig.logs->last_error_lines(0).empty());

  rig.start(1, {to_nowhere(), to_nowhere()}, [] {
    put(1, "unseen\n");
    put(2, "kept\n");
  });
  rig.drain();
  CHECK(read_available(rig.out.ours).empty());
  CHECK(read_available(rig.err.ours).empty());
  CHECK(rig.logs->last_error_lines(1) == std::vector<std::string>{"kept"});
}

TEST_CASE("the worker's ends are closed on exec and wait as usual", "[worker_logs]") {
  Rig rig;
  auto ends = rig.logs->open(0, {to_console(), to_file("err")});
  for (const UniqueFd* end : {&ends.out, &ends.err}) {
    CHECK((::fcntl(end->get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((::fcntl(end->get(), F_GETFL) & O_NONBLOCK) == 0);
  }
}

TEST_CASE("lines that match a filter go to a file of all workers", "[worker_logs]") {
  Rig rig;
  for (const int rank : {0, 1}) {
    StreamPlan plan = to_file(std::to_string(rank) + "/stdout.log");
    plan.filtered_file = "filtered_stdout.log";
    plan.filtered_prefix = "[d" + std::to_string(rank) + "]:";
    plan.filters = {"loss", "acc,"};
    rig.start(static_cast<std::size_t>(rank), {plan, to_nowhere()}, [] { put(1, "loss 1\nother\nacc, 2"); });
    REQUIRE(run_until(rig.io, [&] { return rig.writers.back().ended(); }));
    rig.drain();
  }
  CHECK(rig.file("filtered_stdout.log") == "[d0]:loss 1\n[d0]:acc, 2\n[d1]:loss 1\n[d1]:acc, 2\n");
  CHECK(rig.file("0/stdout.log") == "loss 1\nother\nacc, 2");
}

TEST_CASE("the first output of each worker is told once", "[worker_logs]") {
  Rig rig;
  std::vector<std::size_t> told;
  rig.logs->on_first_output([&](std::size_t index) { told.push_back(index); });
  rig.start(3, {to_console(), to_console()}, [] { put(2, "error\n"), put(1, "out\n"); });
  rig.start(5, {to_console(), to_console()}, [] {});
  rig.drain();
  CHECK(told == std::vector<std::size_t>{3});
}

TEST_CASE("logs that go while output is on its way are not called any more", "[worker_logs]") {
  Rig rig;
  rig.start(0, {to_console(), to_console()}, [] { put_numbered_lines(1000); });
  REQUIRE(run_until(rig.io, [&] { return rig.writers.front().ended(); }));
  rig.logs.reset();
  rig.io.restart();
  rig.io.run_for(milliseconds(150));
  SUCCEED("no sanitizer complained");
}

TEST_CASE("under a terminal a worker has terminals of the same size that change no byte", "[worker_logs]") {
  Rig rig({}, make_terminal(), make_terminal());
  StreamPlan plan = to_console("[d0]:");
  plan.file = "out";
  rig.start(0, {plan, to_console()}, [] {
    winsize size{};
    ::ioctl(1, TIOCGWINSZ, &size);
    const bool terminals = ::isatty(1) == 1 && ::isatty(2) == 1;
    put(1, (terminals ? "yes " : "no ") + std::to_string(size.ws_col) + "\n\x04\0end\n"s);
  });
  rig.drain();
  CHECK(rig.file("out") == "yes 100\n\x04\0end\n"s);
  CHECK(read_available(rig.out.ours) == "[d0]:yes 100\n[d0]:end\n");
}

TEST_CASE("the workers' terminals follow the size of ddprun's", "[worker_logs]") {
  Rig rig({}, make_terminal());
  const auto ends = rig.logs->open(0, {to_console(), to_console()});
  winsize size{};
  size.ws_col = 123;
  REQUIRE(::ioctl(rig.out.theirs.get(), TIOCSWINSZ, &size) == 0);
  rig.logs->update_window_size();
  winsize seen{};
  REQUIRE(::ioctl(ends.out.get(), TIOCGWINSZ, &seen) == 0);
  CHECK(seen.ws_col == 123);
}

TEST_CASE("on a terminal a prompt and a progress bar are seen before their line ends", "[worker_logs]") {
  Rig rig({}, make_terminal());
  const Ends go = make_pipe();
  const auto wait = [&] {
    char byte;
    return ::read(go.ours.get(), &byte, 1) == 1;
  };
  rig.start(0, {to_console("[d0]:"), to_nowhere()}, [&] {
    put(1, "10%\r20%\x1b[2J\r");
    wait();
    put(1, "30%\rdone\n");
  });
  std::string shown;
  const auto see = [&](const std::string& text) {
    return run_until(rig.io, [&] {
      shown += read_available(rig.out.ours);
      return shown.find(text) != std::string::npos;
    });
  };
  CHECK(see("\r\x1b[K\x1b[?7l[d0]:20%\x1b[?7h"));
  put(go.theirs.get(), "g");
  CHECK(see("\x1b[?7h\r\x1b[K[d0]:done\n"));
  rig.drain();
  CHECK(count_of("10%", shown) == 0);
  CHECK(count_of("\x1b[2J", shown) == 0);
}

TEST_CASE("lines for a terminal may stay as they are", "[worker_logs]") {
  LogSettings settings;
  settings.sanitize = false;
  Rig rig(settings, make_terminal());
  rig.start(0, {to_console(), to_nowhere()}, [] { put(1, "\x1b]0;title\atext\n"); });
  rig.drain();
  CHECK(read_available(rig.out.ours) == "\x1b]0;title\atext\n");
}

}  // namespace
}  // namespace ddprun::test
