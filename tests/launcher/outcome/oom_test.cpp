#include "launcher/outcome/oom.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include <ddprun/common/error_file.h>
#include <ddprun/common/files.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
namespace fs = std::filesystem;

constexpr const char* kMountsV2 =
    "22 27 0:20 / /proc rw,relatime shared:5 - proc proc rw\n"
    "35 27 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
constexpr const char* kMountsV1 =
    "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:3 master:1 - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

TEST_CASE("the counter of a cgroup is found, version 2", "[oom]") {
  CHECK(oom_counter_file("0::/user.slice/job.scope\n", kMountsV2) ==
        "/sys/fs/cgroup/user.slice/job.scope/memory.events");
  CHECK(oom_counter_file("0::/\n", kMountsV2) == "/sys/fs/cgroup/memory.events");
}

TEST_CASE("the counter of a cgroup is found, version 1 beside version 2", "[oom]") {
  CHECK(oom_counter_file("9:name=systemd:/\n4:cpu,memory:/a/b:c\n0::/\n", kMountsV1) ==
        "/sys/fs/cgroup/memory/a/b:c/memory.oom_control");
}

TEST_CASE("in a container the counter is below the part that is mounted", "[oom]") {
  const std::string mounts = "9 8 0:1 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
  CHECK(oom_counter_file("4:memory:/docker/abc\n", mounts) == "/sys/fs/cgroup/memory/memory.oom_control");
  CHECK(oom_counter_file("4:memory:/docker/abc/x\n", mounts) == "/sys/fs/cgroup/memory/x/memory.oom_control");
  CHECK_FALSE(oom_counter_file("4:memory:/docker/abcd\n", mounts));
  CHECK_FALSE(oom_counter_file("0::/../other\n", kMountsV2));
}

TEST_CASE("without a cgroup that counts memory there is no counter", "[oom]") {
  CHECK_FALSE(oom_counter_file("", ""));
  CHECK_FALSE(oom_counter_file("0::..\n", kMountsV2));
  CHECK_FALSE(oom_counter_file("0::\n", kMountsV2));
  CHECK_FALSE(oom_counter_file("garbage\n::\n:", "garbage\n - \n1 2 3 4 5 6 -\n"));
  CHECK_FALSE(oom_counter_file("4:memory:/a\n", kMountsV2));
  CHECK_FALSE(oom_counter_file("3:cpu:/a\n", kMountsV1));
}

TEST_CASE("the number of kills is read in both versions", "[oom]") {
  CHECK(parse_oom_kills("low 0\nhigh 3\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n") == 1u);
  CHECK(parse_oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 12\n") == 12u);
  for (const char* text : {"", "oom 5\n", "oom_kill\n", "oom_kill x\n", "oom_kill -1\n",
                           "oom_kill_disable 4\n", "oom_kill \n", "oom_kill 99999999999999999999\n"})
    CHECK_FALSE(parse_oom_kills(text));
}

TEST_CASE("the kernel's line on a kill is read", "[oom]") {
  const auto kill = parse_oom_kill(
      "3,1234,5678,-;Memory cgroup out of memory: Killed process 28982 (py (3) x) total-vm:221368kB, "
      "anon-rss:32512kB, file-rss:6620kB, shmem-rss:0kB, UID:0 pgtables:136kB oom_score_adj:0\n");
  CHECK(kill == OomKill{28982, true, 32512 * 1024});
  CHECK(parse_oom_kill("[12.5] Out of memory: Killed process 7 (a.out) total-vm:1kB, anon-rss:2kB\n") ==
        OomKill{7, false, 2048});
  CHECK(parse_oom_kill("Out of memory: Killed process 7 (a.out)") == OomKill{7, false, 0});
}

TEST_CASE("other lines of the kernel do not count as kills", "[oom]") {
  for (const char* line :
       {"", "python3 invoked oom-killer: gfp_mask=0xcc0", "Out of memory: Killed process x (a)",
        "Killed process 7 (a)", "Out of memory: Killed process -7 (a)",
        "Out of memory: Killed process 99999999999999 (a)"})
    CHECK_FALSE(parse_oom_kill(line));
}

TEST_CASE("the report says only as much as is known", "[oom]") {
  CHECK(describe(OomFinding{}, true).empty());
  CHECK(describe(OomFinding{1, std::nullopt}, true) ==
        "out of memory: the kernel killed a process of this cgroup while the job ran");
  CHECK_THAT(describe(OomFinding{2, std::nullopt}, false),
             ContainsSubstring("perhaps out of memory: the kernel killed 2 processes"));
  CHECK(describe(OomFinding{1, OomKill{7, true, 3ULL << 29}}, true) ==
        "out of memory: the kernel killed it because its cgroup had none left, when it held 1.50 GiB");
  CHECK(describe(OomFinding{0, OomKill{7, false, 0}}, true) ==
        "out of memory: the kernel killed it because its machine had none left");
}

// -- with the real kernel --

void write_text(const fs::path& file, const std::string& text) { std::ofstream(file) << text << std::flush; }

/// A memory cgroup of 32 MiB below our own, for as long as this lives.
class SmallCgroup {
 public:
  SmallCgroup() {
    const auto own = oom_counter_file(read_file("/proc/self/cgroup"), read_file("/proc/self/mountinfo"));
    if (!own) return;
    const fs::path folder = own->parent_path() / ("ddprun-test-" + std::to_string(::getpid()));
    std::error_code error;
    if (!fs::create_directory(folder, error)) return;
    folder_ = folder;
    const bool v2 = own->filename() == "memory.events";
    if (v2) write_text(own->parent_path() / "cgroup.subtree_control", "+memory");
    write_text(folder / (v2 ? "memory.swap.max" : "memory.swappiness"), "0");
    const fs::path limit = folder / (v2 ? "memory.max" : "memory.limit_in_bytes");
    write_text(limit, "33554432");
    std::string now;
    std::ifstream(limit) >> now;
    works_ = now == "33554432" && fs::exists(folder / own->filename());
  }
  ~SmallCgroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  bool works() const { return works_; }
  /// The calling process moves into it.
  void enter() const { write_text(folder_ / "cgroup.procs", "0"); }

 private:
  fs::path folder_;
  bool works_ = false;
};

/// Forks a process that takes 128 MiB, or ends by itself. returns its pid once it has ended by SIGKILL, else
/// 0
pid_t run_eater(bool eats) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    constexpr std::size_t kBytes = 128 << 20;
    void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (eats && memory != MAP_FAILED) std::memset(memory, 1, kBytes);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL ? pid : 0;
}

TEST_CASE("a kill of the kernel in our cgroup is seen", "[oom]") {
  const SmallCgroup cgroup;
  if (!cgroup.works()) test::skip("no memory cgroup can be made here");
  const pid_t pid = ::fork();
  if (pid == 0) {
    cgroup.enter();
    OomWatch watch;
    if (run_eater(false) != 0 || watch.look(1).kills != 0) ::_exit(1);
    const pid_t killed = run_eater(true);
    if (killed == 0) ::_exit(2);
    const OomFinding finding = watch.look(killed);
    if (finding.kills != 1) ::_exit(3);
    if (finding.named && (finding.named->pid != killed || !finding.named->in_cgroup)) ::_exit(4);
    if (!finding.named && ::access("/dev/kmsg", R_OK) == 0) ::_exit(5);
    watch.restart();
    ::_exit(watch.look(killed).kills == 0 && !watch.look(killed).named ? 0 : 6);
  }
  int status = 0;
  REQUIRE(::waitpid(pid, &status, 0) == pid);
  CHECK(describe(ExitStatus::from_wait_status(status)) == "exit code 0");
}

}  // namespace
}  // namespace ddprun::launcher
