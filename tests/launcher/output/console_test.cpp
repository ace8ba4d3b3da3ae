#include "launcher/output/console.h"

#include <cstdlib>

#include <ddprun/common/worker_env.h>
#include "tests/launcher/output/output_rig.h"
#include "tests/support/catch.h"

namespace ddprun::test {
using namespace launcher;
namespace {

namespace asio = boost::asio;
using std::chrono::steady_clock;

constexpr const char* kClear = "\r\x1b[K";

/// What a transient line looks like to the terminal.
std::string drawn(const std::string& text) { return kClear + ("\x1b[?7l" + text) + "\x1b[?7h"; }

/// A console of which the test reads what came out.
struct ConsoleRig {
  explicit ConsoleRig(Ends out_ends, Ends err_ends = make_pipe())
      : out(std::move(out_ends)), err(std::move(err_ends)), console(io, out.theirs.get(), err.theirs.get()) {}

  std::string shown() {
    run(io, console.drain());
    return read_available(out.ours);
  }

  asio::io_context io;
  Ends out, err;
  Console console;
  int a = 0, b = 0;  // their addresses are writers
};

TEST_CASE("lines of several writers come out whole and in order, with their prefixes", "[console]") {
  ConsoleRig rig(make_pipe());
  rig.console.out()->write(&rig.a, "[a]:", "one\n");
  rig.console.out()->write(&rig.b, "", std::string("two\0\xff\n", 6));
  rig.console.out()->write(&rig.a, "[a]:", "\n");
  rig.console.err()->write(&rig.a, "[a]:", "error\n");
  CHECK(rig.shown() == std::string("[a]:one\ntwo\0\xff\n[a]:\n", 19));
  CHECK(read_available(rig.err.ours) == "[a]:error\n");
}

TEST_CASE("a line in pieces has one prefix, and ends before another writer's", "[console]") {
  ConsoleRig rig(make_pipe());
  auto& out = *rig.console.out();
  out.write(&rig.a, "[a]:", "long ");
  out.write(&rig.a, "[a]:", "line\n");
  out.write(&rig.a, "[a]:", "cut ");
  out.write(&rig.b, "[b]:", "other\n");
  out.write(&rig.a, "[a]:", "off");
  out.end_line(&rig.b);  // not its line
  out.end_line(&rig.a);
  out.write(&rig.b, "[b]:", "end");
  CHECK(rig.shown() == "[a]:long line\n[a]:cut \n[b]:other\n[a]:off\n[b]:end");
}

TEST_CASE("each of several lines that come together has the prefix", "[console]") {
  ConsoleRig rig(make_pipe());
  auto& out = *rig.console.out();
  out.write(&rig.a, "[a]:", "one\n\ntwo\nth");
  out.write(&rig.a, "[a]:", "ree\nfour\n");
  out.write(&rig.b, "[b]:", "five\n");
  out.write(&rig.a, "", "six\nseven\n");
  CHECK(rig.shown() == "[a]:one\n[a]:\n[a]:two\n[a]:three\n[a]:four\n[b]:five\nsix\nseven\n");
}

TEST_CASE("a console whose reader is slow has no room, until it is read", "[console]") {
  auto ends = GENERATE(0, 1) == 0 ? make_pipe() : make_sockets();
  ConsoleRig rig(std::move(ends));
  auto& out = *rig.console.out();
  const std::string line = std::string(63, 'x') + "\n";
  std::size_t written = 0;
  while (out.has_room()) {
    out.write(&rig.a, "", line);
    written += line.size();
    if (written % 65536 == 0) rig.io.restart(), rig.io.poll();
    REQUIRE(written < 8 * ConsoleSink::kFull);
  }
  bool room = false, forgotten_called = false;
  out.when_room(&rig.a, [&] { room = true; });
  out.when_room(&rig.b, [&] { forgotten_called = true; });
  out.forget(&rig.b);
  rig.io.restart();
  rig.io.poll();
  CHECK_FALSE(room);

  // Nobody else who has the descriptor may find it changed.
  CHECK((::fcntl(rig.out.theirs.get(), F_GETFL) & O_NONBLOCK) == 0);
  std::string read;
  CHECK(run_until(rig.io, [&] {
    read += read_available(rig.out.ours);
    return read.size() == written && room;
  }));
  CHECK_FALSE(forgotten_called);
  CHECK(read.find_first_not_of("x\n") == std::string::npos);
}

TEST_CASE("draining ends at its deadline if nobody reads", "[console]") {
  ConsoleRig rig(make_pipe());
  rig.console.out()->write(&rig.a, "", std::string(1 << 20, 'x') + "\n");
  const auto drained = run(rig.io, rig.console.drain(steady_clock::now() + std::chrono::milliseconds(20)));
  REQUIRE(drained.has_value());
  CHECK_FALSE(*drained);
}

TEST_CASE("when the reader is gone the output is dropped with one warning, and the other stream goes on",
          "[console]") {
  ::signal(SIGPIPE, SIG_IGN);
  auto ends = GENERATE(0, 1) == 0 ? make_pipe() : make_sockets();
  const bool before = GENERATE(true, false);
  CapturedLog log;
  if (before) ends.ours.reset();
  ConsoleRig rig(std::move(ends));
  rig.out.ours.reset();
  for (int i = 0; i < 3; ++i) {
    rig.console.out()->write(&rig.a, "", std::string(1 << 20, 'x') + "\n");
    rig.console.err()->write(&rig.a, "", "error\n");
    CHECK(run(rig.io, rig.console.drain()) == true);
    CHECK(rig.console.out()->has_room());
  }
  CHECK(read_available(rig.err.ours) == "error\nerror\nerror\n");
  CHECK_THAT(
      log.text(),
      ContainsSubstring(
          "ddprun: warning: cannot write to stdout (Broken pipe): further worker output to it is dropped; "));
  CHECK(count_of("\n", log.text()) == 1);
}

TEST_CASE("both streams to one file keep the order of their lines", "[console]") {
  const TempDir folder;
  const std::string path = (folder.path() / "file").string();
  asio::io_context io;
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
  const UniqueFd again(::fcntl(file.get(), F_DUPFD_CLOEXEC, 3));
  Console console(io, file.get(), again.get());
  for (int i = 0; i < 3; ++i) {
    console.out()->write(&io, "", "out\n");
    console.err()->write(&io, "", "err\n");
  }
  run(io, console.drain());
  CHECK(read_file(path) == "out\nerr\nout\nerr\nout\nerr\n");
}

TEST_CASE("a full disk under stdout is one warning", "[console]") {
  CapturedLog log;
  asio::io_context io;
  const UniqueFd full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  Console console(io, full.get(), full.get());
  for (int i = 0; i < 3; ++i) {
    console.out()->write(&io, "", "line\n");
    CHECK(run(io, console.drain()) == true);
  }
  CHECK(count_of("cannot write to stdout (No space left on device): worker output is missing", log.text()) ==
        1);
}

TEST_CASE("a closed stdout loses its output and nothing else", "[console]") {
  CapturedLog log;
  asio::io_context io;
  Ends err = make_pipe();
  Console console(io, 987654, err.theirs.get());
  console.out()->write(&io, "", "line\n");
  console.err()->write(&io, "", "error\n");
  CHECK(run(io, console.drain()) == true);
  CHECK(read_available(err.ours) == "error\n");
}

TEST_CASE("a transient line is cleared before the next line and drawn again below it", "[console]") {
  ConsoleRig rig(make_terminal());
  auto& out = *rig.console.out();
  REQUIRE(out.is_terminal());
  out.show_transient(&rig.a, "[a]:10%");
  CHECK(rig.shown() == drawn("[a]:10%"));
  out.show_transient(&rig.a, "[a]:10%");  // the same: nothing to draw
  CHECK(rig.shown().empty());
  out.show_transient(&rig.a, "[a]:20%");
  CHECK(rig.shown() == kClear + drawn("[a]:20%"));
  out.write(&rig.b, "[b]:", "one\n");
  out.write(&rig.b, "[b]:", "two\n");
  CHECK(rig.shown() == kClear + std::string("[b]:one\n[b]:two\n") + drawn("[a]:20%"));
  out.show_transient(&rig.b, "[b]:prompt");  // one at a time
  CHECK(rig.shown() == kClear + drawn("[b]:prompt"));
  out.write(&rig.b, "[b]:", "prompt done\n");
  CHECK(rig.shown() == kClear + std::string("[b]:prompt done\n"));
}

TEST_CASE("a writer that goes takes its transient line with it", "[console]") {
  ConsoleRig rig(make_terminal());
  rig.console.out()->show_transient(&rig.a, "10%");
  rig.shown();
  rig.console.out()->forget(&rig.a);
  CHECK(rig.shown() == kClear);
}

TEST_CASE("stdout and stderr on one terminal share the transient line", "[console]") {
  Ends terminal = make_terminal();
  asio::io_context io;
  const UniqueFd err(::fcntl(terminal.theirs.get(), F_DUPFD_CLOEXEC, 3));
  Console console(io, terminal.theirs.get(), err.get());
  console.err()->show_transient(&console, "10%");
  run(io, console.drain());
  console.out()->write(&io, "", "line\n");
  run(io, console.drain());
  CHECK(read_available(terminal.ours) == drawn("10%") + kClear + "line\n" + drawn("10%"));
}

TEST_CASE("ddprun's own message starts on its own line", "[console]") {
  ConsoleRig rig(make_terminal());
  rig.console.out()->show_transient(&rig.a, "10%");
  rig.shown();
  rig.console.out()->write_own("ddprun: warning: hot\n");
  CHECK(rig.shown() == std::string(kClear) + "ddprun: warning: hot\n" + drawn("10%"));

  ConsoleRig piped(make_pipe());
  piped.console.out()->write(&piped.a, "[a]:", "open");
  piped.console.out()->write_own("ddprun: warning: hot\n");
  piped.console.out()->write(&piped.a, "[a]:", "end\n");
  CHECK(piped.shown() == "[a]:open\nddprun: warning: hot\n[a]:end\n");
}

TEST_CASE("a reader that does not read costs the oldest of ddprun's messages, and says how many",
          "[console]") {
  ConsoleRig rig(make_pipe());
  ConsoleSink& out = *rig.console.out();
  const std::string worker = std::string(63, 'x') + "\n";
  while (out.has_room()) {  // with the pipe full, too
    while (out.has_room()) out.write(&rig.a, "", worker);
    run(rig.io, rig.console.drain(steady_clock::now() + std::chrono::milliseconds(10)));
  }
  const int messages = 2 * static_cast<int>(ConsoleSink::kMostOwn) / 16;
  for (int i = 0; i < messages; ++i) {
    const std::string number = std::to_string(10000000 + i);
    out.write_own("message " + number.substr(1) + "\n");  // 16 bytes
  }
  std::string shown;
  const std::string last = std::to_string(10000000 + messages - 1).substr(1);
  REQUIRE(run_until(rig.io, [&] {
    shown += read_available(rig.out.ours);
    return shown.find("message " + last + "\n") != std::string::npos;
  }));
  CHECK_THAT(shown, ContainsSubstring("xx\nddprun: warning: " + std::to_string(messages / 2) +
                                      " messages are missing here"));
  CHECK(count_of("\nmessage ", shown) == messages / 2);
}

TEST_CASE("draining waits for what workers wrote, not for ddprun's messages", "[console]") {
  ConsoleRig rig(make_pipe());
  rig.console.out()->write(&rig.a, "", "line\n");
  rig.shown();
  for (int i = 0; i < 3; ++i) rig.console.out()->write_own(std::string(1 << 16, 'm') + "\n");
  CHECK(run(rig.io, rig.console.drain(steady_clock::now() + kDeadline)) == true);
  const auto start = steady_clock::now();
  rig.console.finish(std::chrono::milliseconds(100));
  const auto elapsed = steady_clock::now() - start;
  CHECK(elapsed >= std::chrono::milliseconds(100));
  CHECK(elapsed < std::chrono::seconds(2));
}

TEST_CASE("no escape sequences go to a terminal that understands none", "[console]") {
  const std::string before = process_env("TERM").value_or("");
  ::setenv("TERM", "dumb", 1);
  ConsoleRig rig(make_terminal());
  ::setenv("TERM", before.c_str(), 1);
  rig.console.out()->show_transient(&rig.a, "10%");
  rig.console.out()->write(&rig.a, "[a]:", "100%\n");
  CHECK(rig.shown() == "[a]:100%\n");
}

}  // namespace
}  // namespace ddprun::test
