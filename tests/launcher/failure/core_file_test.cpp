#include "launcher/failure/core_file.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

CoreDump sample_dump() {
  CoreDump dump;
  dump.pid = 123;
  dump.signal = SIGSEGV;
  dump.host = "node[1]";
  dump.cwd = "/work*";
  return dump;
}

TEST_CASE("a pattern is filled with what is known and matches what is not", "[core_file]") {
  CHECK(core_glob("core", false, sample_dump()) == "/work\\*/core");
  CHECK(core_glob("core", true, sample_dump()) == "/work\\*/core.123");
  CHECK(core_glob("/cores/%e.%p.%s.%h%%", true, sample_dump()) == "/cores/*.123.11.node\\[1]%");
  CHECK(core_glob("/c/%E/%P.%i.%I.%t.%f.%d.%c.%C.%F", false, sample_dump()) == "/c/*/*.*.*.*.*.*.*.*.*");
  CHECK(core_glob("/c/%u.%g", false, sample_dump()) ==
        "/c/" + std::to_string(::getuid()) + "." + std::to_string(::getgid()));
  CHECK(core_glob("/c/[a]%Z%", false, sample_dump()) == "/c/\\[a]");
}

TEST_CASE("a core that is handed on has a handler's name and a way to it", "[core_file]") {
  CHECK(core_handler("|/usr/lib/systemd/systemd-coredump %P %u %g", sample_dump()) ==
        "handed to systemd-coredump: coredumpctl info 123");
  CHECK(core_handler("|/usr/share/apport/apport -p%p", sample_dump()) == "handed to apport: see /var/crash");
  CHECK(core_handler("|/bin/false", sample_dump()) == "handed to false");
  CHECK(core_handler("|", sample_dump()) == "handed to ");
  CHECK(core_handler("@@/run/core.socket", sample_dump()) == "handed to /run/core.socket");
  CHECK(core_handler("@", sample_dump()) == "handed to ");
  CHECK_FALSE(core_handler("core.%p", sample_dump()));
  CHECK_FALSE(core_handler("", sample_dump()));
}

/// A process that dumps core in a folder.
CoreDump dump_core_in(const std::filesystem::path& folder) {
  CoreDump dump;
  dump.started_at = std::chrono::system_clock::now();
  dump.cwd = folder;
  dump.signal = SIGABRT;
  dump.pid = ::fork();
  if (dump.pid == 0) {
    const rlimit unlimited{RLIM_INFINITY, RLIM_INFINITY};
    if (::chdir(folder.c_str()) != 0 || ::setrlimit(RLIMIT_CORE, &unlimited) != 0) ::_exit(1);
    ::execl("/bin/sh", "sh", "-c", "kill -ABRT $$", nullptr);
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(dump.pid, &status, 0);
  dump.ended_at = std::chrono::system_clock::now();
  if (!WIFSIGNALED(status) || !WCOREDUMP(status)) test::skip("no core is dumped here");
  return dump;
}

TEST_CASE("the core file of a process is found if it is fresh and a file", "[core_file]") {
  const TempDir folder;
  CoreDump dump = dump_core_in(folder.path());
  const std::string core = find_core(dump);
  INFO(core);
  if (core.rfind("handed to ", 0) == 0) test::skip("cores are " + core);
  REQUIRE(std::filesystem::exists(core));
  if (std::filesystem::path(core).parent_path() != folder.path())
    test::skip("cores are not put where they arise");

  CoreDump later = dump;  // what was there before is not its core
  later.started_at += std::chrono::hours(1);
  later.ended_at += std::chrono::hours(1);
  CHECK(find_core(later).empty());
  std::filesystem::rename(core, folder.path() / "elsewhere");
  CHECK(find_core(dump).empty());
  std::filesystem::create_symlink(folder.path() / "elsewhere", core);
  CHECK(find_core(dump).empty());
}

}  // namespace
}  // namespace ddprun::launcher
