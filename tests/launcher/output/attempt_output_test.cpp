#include "launcher/output/attempt_output.h"

#include <sys/ioctl.h>

#include "tests/launcher/output/attempt_output_rig.h"
#include "tests/launcher/stopped_clock.h"

namespace ddprun::test {
using namespace launcher;
namespace {

using namespace std::string_literals;

TEST_CASE("a prefix comes once a line, and the last line gets its end", "[attempt_output]") {
  OutputRig rig;
  rig.start(0, {to_console("[d0]:"), to_nowhere()}, [] {
    put(1, "one\n\n10%\r");
    put(1, "20%\r\nno end");
  });
  rig.drain();
  CHECK(read_available(rig.out.ours) == "[d0]:one\n[d0]:\n[d0]:10%\r20%\r\n[d0]:no end\n");
}

TEST_CASE("a last line without an end keeps none, unless another worker's follows", "[attempt_output]") {
  OutputRig rig;
  rig.start(0, {to_console(), to_nowhere()}, [] { put(1, "first"); });
  rig.start(1, {to_nowhere(), to_nowhere()}, [] {});
  rig.drain();
  CHECK(read_available(rig.out.ours) == "first");
  rig.logs.emplace(rig.io, *rig.console, nullptr);  // the next attempt
  rig.start(0, {to_console(), to_nowhere()}, [] { put(1, "second\n"); });
  rig.drain();
  CHECK(read_available(rig.out.ours) == "\nsecond\n");
}

TEST_CASE("lines bear the time if asked to", "[attempt_output]") {
  OutputRig rig;
  StreamPlan plan = to_console("[d0]:");
  plan.timestamps = true;
  plan.file = "out";
  rig.start(0, {plan, to_nowhere()}, [] { put(1, "line\n"); });
  rig.drain();
  const std::string shown = read_available(rig.out.ours);
  REQUIRE(shown.size() == 25 + 10);
  CHECK(shown.substr(10, 1) == "T");
  CHECK(shown.substr(23) == "Z [d0]:line\n");
  CHECK(rig.file("out") == "line\n");
}

TEST_CASE("a stream that goes only to a file is read all the same", "[attempt_output]") {
  StreamPlan out = to_file("out"), err = to_file("err");
  SECTION("as it is") {}
  SECTION("rotation") { out.max_file_size = err.max_file_size = 4; }
  OutputRig rig;
  rig.start(0, {out, err}, [] {
    put(1, "one\ntwo\n");
    put(2, "three\n");
  });
  const auto opened = rig.logs->last_output(0);
  rig.drain();
  CHECK(rig.logs->last_output(0) > opened);
  CHECK(rig.file("out") == (out.max_file_size != 0 ? "two\n" : "one\ntwo\n"));
  CHECK(rig.logs->last_error_lines(0) == std::vector<std::string>{"three"});
}

TEST_CASE("a worker may inherit ddprun's own streams, or write to nowhere", "[attempt_output]") {
  OutputRig rig;
  StreamPlan inherit;
  inherit.inherit = true;
  const auto inherited = rig.open(0, {inherit, inherit});
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

TEST_CASE("the worker's ends are closed on exec and wait as usual", "[attempt_output]") {
  OutputRig rig;
  auto ends = rig.open(0, {to_console(), to_file("err")});
  for (const UniqueFd* end : {&ends.out, &ends.err}) {
    CHECK((::fcntl(end->get(), F_GETFD) & FD_CLOEXEC) != 0);
    CHECK((::fcntl(end->get(), F_GETFL) & O_NONBLOCK) == 0);
  }
}

TEST_CASE("lines that match a filter go to a file of all workers", "[attempt_output]") {
  OutputRig rig;
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

TEST_CASE("the first output of each worker is told once", "[attempt_output]") {
  OutputRig rig;
  std::vector<std::size_t> told;
  rig.logs->on_first_output([&](std::size_t index) { told.push_back(index); });
  rig.start(3, {to_console(), to_console()}, [] { put(2, "error\n"), put(1, "out\n"); });
  rig.start(5, {to_console(), to_console()}, [] {});
  rig.drain();
  CHECK(told == std::vector<std::size_t>{3});
}

TEST_CASE("under a terminal a worker has terminals, narrower by the prefix, that change no byte",
          "[attempt_output]") {
  OutputRig rig(make_terminal(), make_terminal());
  StreamPlan plan = to_console("[d0]:");
  plan.file = "out";
  rig.start(0, {plan, to_console()}, [] {
    winsize size{};
    ::ioctl(1, TIOCGWINSZ, &size);
    const bool terminals = ::isatty(1) == 1 && ::isatty(2) == 1;
    put(1, (terminals ? "yes " : "no ") + std::to_string(size.ws_col) + "\n\x04\0end\n"s);
  });
  rig.drain();
  CHECK(rig.file("out") == "yes 95\n\x04\0end\n"s);
  CHECK(read_available(rig.out.ours) == "[d0]:yes 95\n[d0]:end\n");
}

TEST_CASE("the workers' terminals follow the size of ddprun's", "[attempt_output]") {
  OutputRig rig(make_terminal());
  StreamPlan plan = to_console("[d\u00fc]:");
  plan.timestamps = true;
  const auto ends = rig.open(0, {plan, to_console()});
  winsize size{};
  size.ws_col = 123;
  REQUIRE(::ioctl(rig.out.theirs.get(), TIOCSWINSZ, &size) == 0);
  rig.logs->update_window_size();
  winsize seen{};
  REQUIRE(::ioctl(ends.out.get(), TIOCGWINSZ, &seen) == 0);
  CHECK(seen.ws_col == 123 - 5 - 25);
}

TEST_CASE("a progress bar that clears itself leaves no line", "[attempt_output]") {
  const StoppedClock clock;  // else the bar may be shown for a while
  OutputRig rig(make_terminal());
  rig.start(0, {to_console("[d0]:"), to_nowhere()}, [] { put(1, "done\n\r10%\x1b[K\r20%\x1b[K\r\x1b[K"); });
  rig.drain();
  CHECK(read_available(rig.out.ours) == "[d0]:done\n");
}

TEST_CASE("a progress bar that is overwritten with spaces leaves no line", "[attempt_output]") {
  const StoppedClock clock;  // else the bar may be shown for a while
  OutputRig rig(make_terminal());
  rig.start(0, {to_console("[d0]:"), to_nowhere()}, [] { put(1, "done\n10%|##   |\r          \r"); });
  rig.drain();
  CHECK(read_available(rig.out.ours) == "[d0]:done\n");
}

TEST_CASE("on a terminal a prompt and a progress bar are seen before their line ends", "[attempt_output]") {
  OutputRig rig(make_terminal());
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

}  // namespace
}  // namespace ddprun::test
