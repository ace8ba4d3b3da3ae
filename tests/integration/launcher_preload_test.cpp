// --preload: workers are forks of a Python that has imported modules, and nobody can tell.

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include <ddprun/common/worker_env.h>
#include "tests/integration/job.h"

namespace ddprun::test {
namespace {

namespace fs = std::filesystem;

/// Tells how often it is imported.
constexpr const char* kModule = R"(
import os
here = os.path.dirname(os.path.abspath(__file__))
with open(here + "/imports", "a") as file:
    file.write(f"{os.getpid()}\n")
)";

/// All that a program can see of how it was started.
constexpr const char* kDump = R"(
import ctypes, gc, json, os, re, resource, signal, stat, sys, threading, time
main = sys.modules["__main__"]
status = open("/proc/self/status").read()
links = sorted(re.sub(r"\d+", "N", re.sub("_test-.*", "", os.readlink(f"/proc/self/fd/{fd}"))) for fd in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{fd}"))
death, numa, nodes = ctypes.c_int(), ctypes.c_int(-1), ctypes.c_ulong()
ctypes.CDLL(None).prctl(2, ctypes.byref(death))
if os.uname().machine == "x86_64":
    ctypes.CDLL(None).syscall(239, ctypes.byref(numa), ctypes.byref(nodes), 64, None, 0)  # get_mempolicy
changing = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID", "DDPRUN_JOB_ID", "DDPRUN_SHARED_JOB_ID", "DDPRUN_LAUNCHER", "DDPRUN_COMMAND", "DDPRUN_PRELOAD", "DDPRUN_TEST_MARKER"}
fds = {name: int(value) for name, value in os.environ.items() if name.endswith("_FD")}
def stream(s):
    buffer = s.buffer
    return [s.name, s.mode, s.encoding, s.errors, s.newlines, s.line_buffering, s.write_through, type(buffer).__name__, s.isatty(), s.seekable(), buffer.name, s.fileno()]
print(json.dumps({
    "rank": os.environ["RANK"], "argv": sys.argv, "orig_argv": sys.orig_argv[1:], "path": sys.path, "flags": str(sys.flags), "main": sorted(vars(main)), "file": __file__,
    "name": __name__, "spec": re.sub("0x[0-9a-f]+", "", str(__spec__)), "package": __package__, "cached": __cached__, "loader": type(__loader__).__name__, "cwd": os.getcwd(),
    "environment": {name: value for name, value in os.environ.items() if name not in changing and name not in fds and name != "TMPDIR"},
    "descriptors": {name: [stat.S_IFMT(os.fstat(fd).st_mode), os.get_inheritable(fd)] for name, fd in fds.items()}, "links": links,
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "death": death.value, "signals": re.findall(r"Sig(?:Blk|Ign|Cgt):\s*\S+", status),
    "threads": re.findall(r"Threads:\s*\d+", status), "handlers": [str(signal.getsignal(n)) for n in range(1, 32)], "limits": [resource.getrlimit(n) for n in range(10)],
    "cpus": sorted(os.sched_getaffinity(0)), "numa": [numa.value, nodes.value], "umask": os.umask(0o22), "streams": [stream(sys.stdin), stream(sys.stdout), stream(sys.stderr)], "gc": gc.isenabled(),
    "same": [sys.stdout is sys.__stdout__, sys.stdin is sys.__stdin__], "command": open("/proc/self/cmdline").read().split("\0")[1:], "comm": open("/proc/self/comm").read(),
    "sitecustomize": "sitecustomize" in sys.modules, "custom": os.environ.get("CUSTOM"), "frames": sys._getframe().f_back.f_code.co_filename if sys._getframe().f_back else None,
    "thread": threading.main_thread().native_id == os.getpid(), "cpu": time.process_time() < 5}))
)";

/// A folder with module `loaded`, script `dump.py`, which is also the module `package.dump`, and others.
struct Folder {
  TempDir dir;

  Folder() {
    write("loaded.py", kModule);
    write("dump.py", kDump);
    fs::create_directory(dir.path() / "package");
    write("package/__init__.py", "");
    write("package/dump.py", kDump);
  }
  fs::path write(const std::string& name, const std::string& text) const {
    write_file_atomic(dir.path() / name, text);
    return dir.path() / name;
  }
  Command command(std::vector<std::string> flags, const std::vector<std::string>& words) const {
    flags.insert(flags.end(), words.begin(), words.end());
    Command command = ddprun_command(flags);
    command.in_child = [path = dir.path().string()] {
      if (::chdir(path.c_str()) != 0) ::_exit(99);
      constexpr int kInterleave = 3;
      const unsigned long first_node = 1;
      ::syscall(SYS_set_mempolicy, kInterleave, &first_node, 64);  // some containers forbid it
    };
    return command;
  }
  int imports() const { return count_of("\n", read_or_empty((dir.path() / "imports").string())); }
};

std::string sorted_lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::ranges::sort(lines);
  std::string all;
  for (const std::string& line : lines) all += line + "\n";
  return all;
}

TEST_CASE("a worker of --preload sees what one that Python starts sees", "[preload]") {
  const Folder folder;
  const auto words = GENERATE(std::vector<std::string>{"dump.py", "a", "--b=c d"},
                              std::vector<std::string>{"./package/../dump.py"},
                              std::vector<std::string>{"-m", "package.dump", "x"});
  const std::string variables = GENERATE("", "sitecustomize", "PYTHONSAFEPATH", "PYTHONPATH", "cores");
  CAPTURE(words, variables);
  const auto run = [&](std::vector<std::string> flags) {
    if (variables == "cores") flags.push_back("--numa-binding=exclusive");
    Command command = folder.command(std::move(flags), words);
    if (variables == "sitecustomize") {
      fs::create_directories(folder.dir.path() / "site");
      folder.write("site/sitecustomize.py", "import os\nos.environ['CUSTOM'] = 'yes'\n");
      command.env["PYTHONPATH"] = (folder.dir.path() / "site").string();
    }
    if (variables == "PYTHONSAFEPATH") {
      command.env["PYTHONSAFEPATH"] = "1";
      command.env["PYTHONPATH"] = folder.dir.path().string();
    }
    if (variables == "PYTHONPATH") command.env["PYTHONPATH"] = "";
    const Finished finished(command);
    CHECK(finished.status == ExitStatus::exited(0));
    return std::pair(sorted_lines(finished.out), finished.err);
  };
  const auto [ordinary, ordinary_err] = run({"--nproc-per-node=2"});
  REQUIRE(count_of("\n", ordinary) == 2);
  const auto [forked, forked_err] = run({"--nproc-per-node=2", "--preload=loaded"});
  CHECK(folder.imports() == 1);
  CHECK(forked_err == ordinary_err);
  std::istringstream of_ordinary(ordinary), of_forked(forked);
  for (std::string one, other; std::getline(of_ordinary, one) && std::getline(of_forked, other);) {
    const auto expected = nlohmann::json::parse(one), seen = nlohmann::json::parse(other);
    for (const auto& [key, value] : expected.items()) {
      CAPTURE(key);
      CHECK(seen[key].dump() == value.dump());
    }
  }
}

TEST_CASE("a worker of --preload ends as one that Python starts ends", "[preload]") {
  const Folder folder;
  const std::string program = GENERATE(
      "import sys\nsys.exit(7)", "import sys\nsys.exit('said at the end')", "raise SystemExit",
      "def f(x):\n    return 1 / x\n\nf(0)", "import os\nos.kill(os.getpid(), 9)", "import os\nos.abort()",
      "raise KeyboardInterrupt", "this is no Python", "import os\nos._exit(3)",
      "import atexit, sys, threading, time\n"
      "atexit.register(print, 'exits')\nthreading.Thread(target=lambda: (time.sleep(0.2), "
      "print('thread'))).start()\n"
      "open('/proc/self/fd/1', 'w').write('from a file that is not "
      "closed\\n')\nsys.stdout.write('unfinished')");
  CAPTURE(program);
  folder.write("program.py", program + "\n");
  const auto run = [&](std::vector<std::string> flags) {
    Finished finished(folder.command(std::move(flags), {"program.py"}));
    const auto report = std::min(finished.err.find("===="), finished.err.find("program.py FAILED"));
    return std::tuple(finished.status, finished.out, finished.err.substr(0, report));
  };
  const auto ordinary = run({}), forked = run({"--preload=loaded"});
  CHECK(folder.imports() == 1);
  CHECK(std::get<0>(forked) == std::get<0>(ordinary));
  CHECK(std::get<1>(forked) == std::get<1>(ordinary));
  CHECK(std::get<2>(forked) == std::get<2>(ordinary));
}

TEST_CASE("a worker of --preload leaves a core file and its stacks as one that Python starts", "[preload]") {
  if (read_or_empty("/proc/sys/kernel/core_pattern").find_first_of("|/") != std::string::npos)
    skip("this machine does not leave core files in the current folder");
  rlimit cores{};
  ::getrlimit(RLIMIT_CORE, &cores);
  if (cores.rlim_max != RLIM_INFINITY) skip("the size of core files is limited here");
  cores.rlim_cur = cores.rlim_max;
  const auto run = [&](std::vector<std::string> flags) {
    const Folder folder;
    const auto program =
        folder.write("program.py", "import time\ndef wait():\n    time.sleep(600)\nwait()\n");
    flags.insert(flags.end(), {"--hang-timeout=1", "--log-dir=logs"});
    Command command = folder.command(std::move(flags), {"program.py"});
    command.env["ASAN_OPTIONS"] = process_env("ASAN_OPTIONS").value_or("") + ":disable_coredump=0";
    command.in_child = [in_folder = command.in_child, &cores] {
      in_folder();
      ::setrlimit(RLIMIT_CORE, &cores);
    };
    const Finished finished(command);
    CHECK(finished.status == ExitStatus::exited(124));
    bool core = false;
    for (const auto& entry : fs::directory_iterator(folder.dir.path()))
      core = core || entry.path().filename().string().starts_with("core");
    const std::string stacks =
        read_or_empty(folder.dir.path() / "logs" / "latest" / "attempt_0" / "stacks_0.txt");
    std::string python;  // what faulthandler prints
    std::istringstream lines(finished.err +
                             read_or_empty(folder.dir.path() / "logs/latest/attempt_0/0/stderr.log"));
    for (std::string line; std::getline(lines, line);)
      if (const auto at = line.find("program.py\", line "); at != std::string::npos)
        python += line.substr(at) + "\n";
    return std::tuple(core, python, stacks.find("python") != std::string::npos, folder.imports());
  };
  const auto ordinary = run({}), forked = run({"--preload=loaded"});
  CHECK(std::get<0>(ordinary));
  CHECK_THAT(std::get<1>(ordinary),
             ContainsSubstring("line 3 in wait\n") && ContainsSubstring("line 4 in <module>\n"));
  CHECK(std::get<2>(ordinary));
  CHECK(std::get<0>(forked) == std::get<0>(ordinary));
  CHECK(std::get<1>(forked) == std::get<1>(ordinary));
  CHECK(std::get<2>(forked) == std::get<2>(ordinary));
  CHECK(std::get<3>(forked) == 1);
}

TEST_CASE("the classes of a preloaded script can be pickled and spawned", "[preload]") {
  const Folder folder;
  folder.write("program.py", R"(
import multiprocessing, pickle
class Thing:
    def __init__(self, value): self.value = value
def work(thing): return thing.value, __name__
if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Thing(3))).value)
    with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.apply(work, (Thing(5),)))
)");
  const Finished run(folder.command({"--preload=loaded"}, {"program.py"}));
  CHECK(run.out == "3\n(5, '__mp_main__')\n");
  CHECK(folder.imports() == 1);
}

TEST_CASE("each worker of --preload has its own arguments with --expand", "[preload]") {
  const Folder folder;
  folder.write("program.py", "import sys\nprint(sys.argv, sys.orig_argv[-2:])\n");
  const Finished run(folder.command({"--nproc-per-node=2", "--preload=loaded", "--expand"},
                                    {"program.py", "a", "cuda:${local_rank}"}));
  CHECK(sorted_lines(run.out) ==
        "['program.py', 'a', 'cuda:0'] ['a', 'cuda:0']\n['program.py', 'a', 'cuda:1'] ['a', 'cuda:1']\n");
  CHECK(folder.imports() == 1);
}

TEST_CASE("a restart forks the workers again, from modules that are imported once", "[preload]") {
  const Folder folder;
  const auto early = folder.write("early.py", "import loaded\n");
  folder.write("program.py", R"(
import os, random, loaded
print(f"ran {os.environ['RANK']} {random.random()}", flush=True)
raise SystemExit(1 if os.environ["TORCHELASTIC_RESTART_COUNT"] != "2" else 0)
)");
  const std::string modules = GENERATE("loaded", "early.py");
  const Finished run(
      folder.command({"--nproc-per-node=3", "--max-restarts=2", "--preload=" + modules}, {"program.py"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("ran ", run.out) >= 5);  // of an attempt that fails, one may be ended before it says so
  CHECK(folder.imports() == 1);
  CAPTURE(run.out);
  std::set<std::string> numbers;
  std::istringstream words(run.out);
  for (std::string word; words >> word;) numbers.insert(word);
  CHECK(numbers.size() == static_cast<std::size_t>(1 + 3 + count_of("ran ", run.out)));
}

TEST_CASE("a lost worker is replaced by a fork", "[preload]") {
  const Folder folder;
  folder.write("program.py", R"(
import os, signal, socket, time, loaded
rank, again = os.environ["RANK"], os.environ["DDPRUN_ROUND"] != "0"
rounds = socket.socket(fileno=int(os.environ["DDPRUN_ROUND_FD"]))
rounds.send(b'{"recovers": true}')
print("rank", rank, "round", os.environ["DDPRUN_ROUND"], flush=True)
open("announced" + rank, "w").close()
while not os.path.exists("announced0"): time.sleep(0.01)
if rank == "1" and not again: os.kill(os.getpid(), signal.SIGKILL)
if rank == "0": print(rounds.recv(1000).decode(), flush=True)
)");
  const Finished run(folder.command(
      {"--nproc-per-node=2", "--max-restarts=1", "--recover=rank", "--preload=loaded"}, {"program.py"}));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.out, ContainsSubstring("rank 1 round 1"));
  CHECK(count_of("rank 0", run.out) == 1);
  CHECK(folder.imports() == 1);
}

TEST_CASE("where --preload cannot help, one line says why and workers import for themselves", "[preload]") {
  const Folder folder;
  const auto [text, reason] = GENERATE(
      std::pair("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), name='mine', "
                "daemon=True).start()",
                "the import of early has started a thread (mine)"),
      std::pair("import sys, torch", "the import of early has initialized CUDA, which forks cannot use"),
      std::pair("1 / 0", "early: ZeroDivisionError: division by zero"),
      std::pair("import sys\nsys.exit('enough')", "the import ends Python: SystemExit('enough')"),
      std::pair("import os\nos._exit(0)", "Python ended before it had imported the modules"),
      std::pair("import not_there", "early: No module named 'not_there'"),
      std::pair("import os\nos.chdir('/')", "the import of early has changed the current folder"),
      std::pair("import sys\nsys.path.insert(0, '/nowhere')",
                "has put a folder before the script's in sys.path"),
      std::pair("import subprocess\np = subprocess.Popen(['sleep', '600'], start_new_session=True)",
                "the import of early has started a process"),
      std::pair("isolated", "PYTHONPATH"));
  CAPTURE(reason);
  folder.write("early.py", text);
  folder.write("torch.py",
               "import os\nclass cuda:\n    def is_initialized(): return False\n"
               "    def _is_in_bad_fork(here=os.getpid()): return os.getpid() != here\n");
  folder.write("program.py", "import loaded\nprint('ran')\n");
  Command command = folder.command({"--nproc-per-node=2", "--preload=early"}, {"program.py"});
  if (text == std::string("isolated")) {
    const auto python = folder.write("python", "#!/bin/sh\nexec python3 -E \"$@\"\n");
    fs::permissions(python, fs::perms::owner_all);
    command.env["PYTHON_EXEC"] = python.string();
  }
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("ran", run.out) == 2);
  CHECK(folder.imports() == 2);
  CHECK(count_of("\n", run.err) == 1);
  CHECK_THAT(run.err, ContainsSubstring("ddprun: warning: --preload: ") && ContainsSubstring(reason) &&
                          ContainsSubstring(": every worker imports the modules itself"));
}

TEST_CASE("a module that does not exist, or a program that is no Python, is a usage error", "[preload]") {
  const Folder folder;
  const auto [flag, program, expected] =
      GENERATE(std::tuple("torhc,loaded", "dump.py", "--preload: no module named torhc"),
               std::tuple("package.nothing", "dump.py", "--preload: no module named package.nothing"),
               std::tuple("nothing.py", "dump.py", "--preload: nothing.py: no such file"),
               std::tuple("loaded", "ls", "--preload: expected a Python program"),
               std::tuple("load-ed", "dump.py", "--preload: expected names of Python modules"));
  CAPTURE(flag, program);
  const Finished run(folder.command({"--preload=" + std::string(flag)}, {program}));
  CHECK(run.status == ExitStatus::exited(2));
  CHECK(run.out.empty());
  CHECK(count_of("\n", run.err) == 1);
  CHECK_THAT(run.err, ContainsSubstring(expected));
}

/// The process with the modules, of a job with one worker.
pid_t preload_process(const Child& child) {
  const std::string out = child.out();
  const pid_t worker = std::stoi(out.substr(out.rfind("pid ") + 4));
  for (const pid_t pid : child.processes()) {
    const std::string process = "/proc/" + std::to_string(pid);
    if (pid != worker &&
        read_or_empty(process + "/environ").find("DDPRUN_PRELOAD_FD=") != std::string::npos &&
        read_or_empty(process + "/stat").find(" " + std::to_string(child.pid()) + " ") != std::string::npos)
      return pid;
  }
  return -1;
}

/// Fails when the file "fail" is there.
constexpr const char* kWaits = R"(
import os, time, loaded
print("runs", os.environ["TORCHELASTIC_RESTART_COUNT"], "pid", os.getpid(), flush=True)
while not os.path.exists("fail"): time.sleep(0.01)
os.remove("fail")
os._exit(5)
)";

TEST_CASE("a process with the modules that is killed is started again, and the job goes on", "[preload]") {
  const Folder folder;
  folder.write("program.py", kWaits);
  Child child(folder.command({"--max-restarts=9", "--preload=loaded"}, {"program.py"}));
  REQUIRE(child.wait_for_output("runs 0"));
  const pid_t first = preload_process(child);
  REQUIRE(first > 0);
  ::kill(first, SIGKILL);
  CHECK(wait_until([&] { return folder.imports() == 2; }));
  CHECK_THAT(child.err(), ContainsSubstring("--preload: the process " + std::to_string(first) +
                                            " with the modules has ended: another one is starting"));
  folder.write("fail", "");
  REQUIRE(child.wait_for_output("runs 1"));
  child.send_signal(SIGTERM);
  CHECK(child.wait() == ExitStatus::killed(SIGTERM));
  CHECK(folder.imports() >= 2);  // 3 if the worker was restarted before that process was ready
  check_nothing_left(child);
}

TEST_CASE("a process with the modules costs nothing while it waits", "[preload]") {
  const Folder folder;
  folder.write("program.py", kWaits);
  Child child(folder.command({"--preload=loaded"}, {"program.py"}));
  REQUIRE(child.wait_for_output("runs 0"));
  const std::string status = "/proc/" + std::to_string(preload_process(child)) + "/status";
  const auto switches = [&] {
    const std::string text = read_or_empty(status);
    return text.substr(text.find("voluntary_ctxt_switches"));
  };
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // it may still be going to sleep
  const std::string before = switches();
  std::this_thread::sleep_for(std::chrono::seconds(1));
  CHECK(switches() == before);
  child.send_signal(SIGTERM);
  CHECK(child.wait() == ExitStatus::killed(SIGTERM));
}

TEST_CASE("nothing is left of --preload when ddprun ends or is killed", "[preload]") {
  const Folder folder;
  folder.write("program.py", kWaits);
  folder.write(
      "early.py",
      "import subprocess\nsubprocess.Popen(['sh', '-c', 'sleep 600 & wait'], start_new_session=True)\n");
  const int signal = GENERATE(SIGKILL, SIGTERM);
  Child child(folder.command({"--nproc-per-node=2", "--preload=loaded,early"}, {"program.py"}));
  REQUIRE(child.wait_for_output("runs 0", 2));
  child.send_signal(signal);
  CHECK(child.wait() == ExitStatus::killed(signal));
  CHECK(child.nothing_left());
}

TEST_CASE("an import that takes longer than --hang-timeout keeps no job from its start", "[preload]") {
  const Folder folder;
  folder.write("slow.py", "import os, time\nif 'RANK' not in os.environ: time.sleep(600)\n");
  folder.write("program.py", "import slow\nprint('ran')\n");
  Command command = folder.command({"--preload=slow", "--hang-timeout=1"}, {"program.py"});
  command.env["TMPDIR"] = folder.dir.path() / ".." / folder.dir.path().filename();  // as it may be written
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(run.out == "ran\n");
  CHECK_THAT(run.err, ContainsSubstring("--preload: the imports take longer than --hang-timeout"));
}

TEST_CASE("a signal ends the job while --preload imports", "[preload]") {
  const Folder folder;
  folder.write("slow.py", "import loaded, time\ntime.sleep(600)\n");
  Child child(folder.command({"--preload=slow"}, {"dump.py"}));
  REQUIRE(wait_until([&] { return folder.imports() == 1; }));
  child.send_signal(SIGTERM);
  CHECK(child.wait() == ExitStatus::killed(SIGTERM));
  CHECK(child.out().empty());
  check_nothing_left(child);
}

}  // namespace
}  // namespace ddprun::test
