// Much output, slow and vanished readers, streams that do not end.

#include "launcher/output/attempt_output.h"

#include <atomic>
#include <fstream>
#include <thread>

#include "tests/launcher/output/attempt_output_rig.h"
#include "tests/launcher/stopped_clock.h"

namespace ddprun::test {
using namespace launcher;
namespace {

using namespace std::string_literals;
using namespace std::chrono_literals;

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

TEST_CASE("eight workers fill both streams: no line is lost, mixed or held in memory", "[attempt_output]") {
  constexpr int kRanks = 8, kLines = 100000;
  OutputRig rig;
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
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
  // Which would keep freed memory for a while.
  CHECK(peak_memory_kb() - before < 8 * 1024);  // of 30 MB that went through
#endif
}

TEST_CASE("every byte arrives, on the console and in the file", "[attempt_output]") {
  const std::string bytes =
      "a\0b\xff\xfe\r\n"s + "10%\r20%\r" + std::string((3 << 20) + 7, 'x') + "\n\n\x1b[2Jend";
  OutputRig rig;
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

TEST_CASE("a grandchild that keeps a stream open is waited for until the deadline only", "[attempt_output]") {
  OutputRig rig;
  const Ends hold = make_pipe();
  rig.start(0, {to_console("[d0]:"), to_nowhere()}, [&] {
    if (::fork() == 0) {
      ::close(hold.theirs.get());  // so that the test's end is the end of what it reads
      char byte;
      while (::read(hold.ours.get(), &byte, 1) == 1) {
      }
      ::_exit(0);
    }
    put(1, "whole\npart");
  });
  REQUIRE(run_until(rig.io, [&] { return rig.writers.front().ended(); }));
  const StoppedClock clock;
  std::optional<bool> all_ended;
  boost::asio::co_spawn(rig.io, rig.logs->wait_for_ends(LoopClock::now() + 200ms),
                        [&](const std::exception_ptr&, bool ended) { all_ended = ended; });
  clock.pass(rig.io, 199ms);
  CHECK_FALSE(all_ended);
  clock.pass(rig.io, 1ms);
  CHECK(all_ended == false);
  rig.logs->finish();
  std::string shown;
  CHECK(run_until(rig.io, [&] {
    shown += read_available(rig.out.ours);
    return shown == "[d0]:whole\n[d0]:part\n";
  }));
}

/// Whether a worker whose output does not move does not count as silent an hour later.
bool is_alive_without_a_sign(OutputRig& rig, const StoppedClock& clock) {
  while (rig.io.restart(), rig.io.run_one_for(50ms) > 0) {
  }
  clock.pass(rig.io, 1h);
  return run_until(rig.io, [&] { return rig.logs->last_output(0) == LoopClock::now(); }) &&
         !rig.writers.front().ended();
}

TEST_CASE("a slow reader makes the worker wait, and it does not count as silent", "[attempt_output]") {
  constexpr int kLines = 200000;
  OutputRig rig;
  rig.start(0, {to_console("[0]:"), to_nowhere()}, [] { put_numbered_lines(kLines); });
  // Both pipes and the buffer are full: nothing moves any more.
  REQUIRE(run_until(rig.io, [&] { return !rig.console->out()->has_room(); }));
  const StoppedClock clock;
  CHECK(is_alive_without_a_sign(rig, clock));

  LineCheck check(1, 'o');
  CHECK(run_until(rig.io, [&] {
    check.take(read_available(rig.out.ours));
    return check.all_have(kLines);
  }));
  CHECK(check.wrong() == 0);
}

/// Puts the end of a pipe in the place of the log file: a disk that stalls until the pipe is read.
void stall(const std::filesystem::path& file, const Ends& pipe) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (std::filesystem::read_symlink(entry, gone) != file) continue;
    REQUIRE(::dup3(pipe.theirs.get(), std::stoi(entry.path().filename().string()), O_CLOEXEC) >= 0);
    return;
  }
  FAIL("no descriptor of " + file.string());
}

TEST_CASE("a stalled disk makes the worker wait, and the event loop goes on", "[attempt_output]") {
  constexpr std::size_t kBytes = 5 << 20;
  OutputRig rig;
  rig.start(0, {to_file("out"), to_nowhere()}, [] { put(1, std::string(kBytes, 'x')); });
  Ends disk = make_pipe();
  stall(rig.temp.path() / "out", disk);

  // The disk recovers some time, so that a loop that waits for it is not stuck for ever.
  std::atomic<bool> recovers = false;
  std::atomic<std::size_t> stored = 0;
  std::thread recovery([&] {
    wait_until([&] { return recovers.load(); });
    char buffer[1 << 16];
    for (ssize_t n; stored < kBytes && (n = ::read(disk.ours.get(), buffer, sizeof buffer)) > 0;)
      stored += static_cast<std::size_t>(n);
  });
  {
    const StoppedClock clock;
    CHECK(is_alive_without_a_sign(rig, clock));
  }
  CHECK(stored == 0);
  recovers = true;
  rig.drain();
  CHECK(run_until(rig.io, [&] { return stored == kBytes; }));
  recovery.join();
}

TEST_CASE("when ddprun's reader is gone the worker and its file go on", "[attempt_output]") {
  ::signal(SIGPIPE, SIG_IGN);
  CapturedLog log;
  OutputRig rig;
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

TEST_CASE("logs that go while output is on its way are not called any more", "[attempt_output]") {
  const StoppedClock clock;
  OutputRig rig;
  rig.start(0, {to_console(), to_console()}, [] { put_numbered_lines(1000); });
  REQUIRE(run_until(rig.io, [&] { return rig.writers.front().ended(); }));
  rig.logs.reset();
  clock.pass(rig.io, 150ms);
  SUCCEED("no sanitizer complained");
}

}  // namespace
}  // namespace ddprun::test
