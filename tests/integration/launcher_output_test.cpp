// What the user and the log files see of the workers' output, and other flags that change how workers run.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <sstream>

#include <ddprun/common/worker_env.h>
#include "tests/integration/node_job.h"

namespace ddprun::test {
namespace {

/// The only folder below the log folder: the job's. The only link leads to it.
std::filesystem::path job_folder(const std::filesystem::path& log_dir) {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(log_dir))
    if (!entry.is_symlink()) folders.push_back(entry.path());
  REQUIRE(folders.size() == 1);
  CHECK(std::filesystem::read_symlink(log_dir / "latest") == folders[0].filename());
  return folders[0];
}

int mode_of(const std::filesystem::path& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 07777) : -1;
}

TEST_CASE("a single worker's output is untouched, byte for byte", "[output]") {
  const Finished run(script({}, "printf 'a\\0b\\377 no newline'; printf oops >&2; exit 0"));
  CHECK(run.out == std::string("a\0b\xff no newline", 15));
  CHECK(run.err == "oops");
}

TEST_CASE("several workers' lines come whole, without a prefix unless asked", "[output]") {
  const std::string text = "for i in 1 2 3; do printf 'rank '; sleep 0.02; echo $RANK end; done";
  const Finished plain(script({"--nproc-per-node=4"}, text));
  CHECK(plain.status == ExitStatus::exited(0));
  for (int rank = 0; rank < 4; ++rank)
    CHECK(count_of("rank " + std::to_string(rank) + " end\n", plain.out) == 3);
  const Finished prefixed(
      script({"--nproc-per-node=2", "--prefix", "--role=train"}, "echo hello; echo oops >&2"));
  CHECK(count_of("[train0]:hello\n", prefixed.out) == 1);
  CHECK(count_of("[train1]:oops\n", prefixed.err) == 1);
}

TEST_CASE("the prefix follows torchrun's template", "[output]") {
  Command command = script({"--nproc-per-node=2", "--prefix"}, "echo x");
  command.env["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "<${role_name} ${rank}> ";
  CHECK(count_of("<default 1> x\n", Finished(command).out) == 1);
}

TEST_CASE("timestamps stand before the prefix", "[output]") {
  const Finished run(script({"--timestamp", "--prefix"}, "echo x"));
  REQUIRE(run.out.size() > 24);
  CHECK(run.out[10] == 'T');
  CHECK_THAT(run.out, ContainsSubstring("Z [default0]:x\n"));
}

TEST_CASE("redirects and tee make torchrun's files, readable for the user alone", "[output]") {
  const TempDir folder;
  const auto logs = folder.path() / "logs";
  const Finished run(
      script({"--nproc-per-node=2", "--log-dir", logs, "--rdzv-id=my/run", "--redirects=0:3", "--tee=1:1"},
             "echo out; echo err >&2"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(run.out == "[default1]:out\n");
  CHECK(run.err == "err\n");
  const auto job = job_folder(logs);
  CHECK_THAT(job.filename().string(), ContainsSubstring("my_run_"));
  CHECK(read_file(job / "attempt_0/0/stdout.log") == "out\n");
  CHECK(read_file(job / "attempt_0/0/stderr.log") == "err\n");
  CHECK(read_file(job / "attempt_0/1/stdout.log") == "out\n");
  CHECK_FALSE(std::filesystem::exists(job / "attempt_0/1/stderr.log"));
  CHECK(mode_of(job / "attempt_0/0/stdout.log") == 0600);
  for (const auto& path : {job, job / "attempt_0", job / "attempt_0/0"}) CHECK(mode_of(path) == 0700);
}

TEST_CASE("the logs of earlier attempts are kept", "[output]") {
  const TempDir folder;
  const Finished run(script({"--log-dir", folder.path(), "-r3", "--max-restarts=1"},
                            "echo $TORCHELASTIC_RESTART_COUNT; [ $TORCHELASTIC_RESTART_COUNT = 1 ]"));
  CHECK(run.status == ExitStatus::exited(0));
  const auto job = job_folder(folder.path());
  CHECK(read_file(job / "attempt_0/0/stdout.log") == "0\n");
  CHECK(read_file(job / "attempt_1/0/stdout.log") == "1\n");
  const std::string name = job.filename();  // they sort by time
  CHECK(name.size() == std::string_view("20261127-081736_05f69a69").size());
  CHECK(name.starts_with("20"));
  CHECK(name[8] == '-');
  const Finished next(script({"--log-dir", folder.path(), "-r3"}, "echo next"));
  CHECK(read_file(folder.path() / "latest/attempt_0/0/stdout.log") == "next\n");
  const Finished alone(
      script({"--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1", "--master-port=" + free_port(),
              "--join-timeout=1", "--log-dir", folder.path(), "-r3"},
             "echo alone"));
  CHECK(alone.status == ExitStatus::exited(125));
  CHECK(read_file(folder.path() / "latest/attempt_0/0/stdout.log") == "next\n");
}

TEST_CASE("only the ranks asked for are shown, and lines are filtered into a file", "[output]") {
  const TempDir folder;
  const Finished run(script({"--nproc-per-node=3", "--local-ranks-filter=0,2", "--log-dir", folder.path(),
                             "--duplicate-stdout-filters=loss", "--tee=3"},
                            "echo loss $RANK; echo other $RANK"));
  CHECK(count_of("loss 0", run.out) == 1);
  CHECK(count_of(" 1\n", run.out) == 0);
  CHECK(count_of("loss 2", run.out) == 1);
  const std::string filtered = read_file(job_folder(folder.path()) / "attempt_0/filtered_stdout.log");
  CHECK(count_of("loss", filtered) == 3);
  CHECK(count_of("other", filtered) == 0);
}

TEST_CASE("ranks to be shown that do not exist are named", "[output]") {
  const Finished run(script({"--nproc-per-node=2", "--local-ranks-filter=1,2,7"}, "echo $RANK"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(run.out == "1\n");
  CHECK(count_of("--local-ranks-filter: no worker here has local rank 2 or 7; local ranks go from 0 to 1\n",
                 run.err) == 1);
  const TempDir folder;
  const auto log_dir = "--log-dir=" + folder.path().string();
  const Finished tees(script({"--nproc-per-node=2", "--tee=9:1,1:3", "-r", "4:1", log_dir}, "true"));
  CHECK(tees.status == ExitStatus::exited(0));
  CHECK(count_of("--tee: no worker here has local rank 9; local ranks go from 0 to 1\n", tees.err) == 1);
  CHECK(count_of("--redirects: no worker here has local rank 4;", tees.err) == 1);
}

TEST_CASE("a log file is begun anew at its size", "[output]") {
  const TempDir folder;
  const Finished run(script({"--log-dir", folder.path(), "-r1", "--log-max-size=1K"},
                            "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do printf '%0200d\\n' $i; done"));
  const auto log = job_folder(folder.path()) / "attempt_0/0/stdout.log";
  CHECK(read_file(log).size() <= 1024);
  CHECK(std::filesystem::exists(log.string() + ".1"));
  CHECK_THAT(read_file(log), ContainsSubstring("012\n"));
}

TEST_CASE("logs go to a share without owners and modes too, with one warning", "[output][share]") {
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
  skip("a sanitizer's library has to be loaded first");
#endif
  const TempDir folder;
  Command command = script({"--log-dir", folder.path(), "-r3", "--max-restarts=1", "--rdzv-id=run"},
                           "echo $TORCHELASTIC_RESTART_COUNT; echo {} >$TORCHELASTIC_ERROR_FILE; exit 3");
  command.env["LD_PRELOAD"] = SHARE_WITHOUT_MODES;
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(3));
  const auto job = job_folder(folder.path());
  CHECK(read_file(job / "attempt_0/0/stdout.log") == "0\n");
  CHECK(read_file(job / "attempt_1/0/stdout.log") == "1\n");
  CHECK(count_of("does not keep owners and modes", run.err) == 1);
  // Others cannot forge what is reported, and nothing else stays there.
  CHECK_FALSE(std::filesystem::exists(job / "attempt_0/0/error.json"));
  CHECK(std::distance(std::filesystem::directory_iterator(job), {}) == 2);
}

/// The program starts in this folder.
void start_in(Command& command, const TempDir& folder) {
  command.in_child = [path = folder.path().string()] {
    [[maybe_unused]] const int ignored = ::chdir(path.c_str());
  };
}

TEST_CASE("a time limit alone makes no folder for logs", "[output]") {
  const TempDir folder;
  Command command = script({"--timeout=60"}, "ls -A");
  start_in(command, folder);
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(run.out == "");
}

/// The files with stacks in a folder, wherever they are.
std::ptrdiff_t stacks_below(const std::filesystem::path& folder) {
  return std::ranges::count_if(std::filesystem::recursive_directory_iterator(folder), [](const auto& entry) {
    return entry.path().filename().string().starts_with("stacks_");
  });
}

TEST_CASE("stacks go to ddprun_logs, but not where the user wants no files", "[output][timeouts]") {
  const std::string limit = GENERATE("--timeout=1", "--hang-timeout=1");
  CAPTURE(limit);
  const TempDir folder;
  Command command = job({"--nproc-per-node=2", limit}, {"ready", "pause"});
  start_in(command, folder);
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(124));
  CHECK(stacks_below(job_folder(folder.path() / "ddprun_logs") / "attempt_0") == 2);

  const TempDir empty;
  Command without = job({"--nproc-per-node=2", limit, "--log-dir=/dev/null"}, {"ready", "pause"});
  start_in(without, empty);
  Child ddprun(without);
  CHECK(ddprun.wait() == ExitStatus::exited(124));
  CHECK(std::filesystem::is_empty(empty.path()));
  CHECK(stacks_below(ddprun.temp_folder()) == 2);
  CHECK(count_of("no stacks there", ddprun.err()) == 0);
  CHECK(ddprun.nothing_left());
}

TEST_CASE("a log folder that cannot be used stops the job before it starts", "[output]") {
  const TempDir folder;
  const std::string file = folder.path() / "file";
  write_file_atomic(file, "");
  const Finished run(job({"--log-dir", file, "-r3"}, {"ready"}));
  CHECK(run.status == ExitStatus::exited(2));
  CHECK_THAT(run.err, ContainsSubstring(file));
  CHECK(run.out.empty());
}

TEST_CASE("a reader of the output that goes away does not end the job", "[output]") {
  const TempDir folder;
  const std::string done = folder.path() / "done";
  // sh itself reads one line of ddprun's output and goes.
  const std::string ddprun = std::string(DDPRUN_PROGRAM) +
                             " --nproc-per-node=2 sh -c 'for i in $(seq 2000); do echo $i; done; "
                             "[ $RANK = 1 ] || touch " +
                             done + "'";
  const Finished run({{"sh", "-c", ddprun + " | head -n 1"}});
  CHECK(wait_until([&] { return std::filesystem::exists(done); }));
}

TEST_CASE("a million lines of eight workers arrive whole", "[output]") {
  const Finished run(script({"--nproc-per-node=8", "--prefix"}, "seq 1 25000; seq 1 25000 >&2"));
  CHECK(run.status == ExitStatus::exited(0));
  for (const std::string& text : {run.out, run.err}) {
    std::istringstream lines(text);
    std::vector<int> next(8, 1);
    for (std::string line; std::getline(lines, line);) {
      REQUIRE(line.substr(0, 8) == "[default");
      const auto rank = static_cast<std::size_t>(line[8] - '0');
      REQUIRE(line.substr(11) == std::to_string(next[rank]++));
    }
    CHECK(next == std::vector<int>(8, 25001));
  }
}

TEST_CASE("a worker's last words arrive although a grandchild keeps the pipe", "[output]") {
  const Finished run(script({"--nproc-per-node=2"}, "sleep 600 & printf last; exit 0"));
  CHECK(run.status == ExitStatus::exited(0));
  CHECK(count_of("last", run.out) == 2);
}

TEST_CASE("a process outside the job that has a worker's pipe does not keep ddprun", "[output]") {
  Child ddprun(job({"--prefix"}, {"ready", "await", "say", "last", "exit", "0"}));
  REQUIRE(ddprun.wait_for_output("ready "));
  const std::string words = ddprun.out().substr(ddprun.out().find("ready 0 ") + 8);
  const std::string pipe = "/proc/" + std::to_string(std::stoi(words)) + "/fd/1";
  const UniqueFd ours(::open(pipe.c_str(), O_WRONLY | O_CLOEXEC));
  REQUIRE(ours);
  ddprun.send_signal(SIGUSR1);
  CHECK(ddprun.wait(std::chrono::seconds(10)) == ExitStatus::exited(0));
  CHECK(count_of("last\n", ddprun.out()) == 1);
}

TEST_CASE("the failure report ends with the worker's own last words", "[output]") {
  const TempDir folder;
  const std::string failing = "[ $RANK = 0 ] || { seq 1 30 >&2; echo why >&2; exit 4; }; sleep 100";
  const Finished run(script({"--nproc-per-node=2", "--redirects=2", "--log-dir", folder.path()}, failing));
  CHECK(run.status == ExitStatus::exited(4));
  CHECK_THAT(run.err, ContainsSubstring("| why"));
  CHECK_THAT(run.err, !ContainsSubstring("| 11\n"));  // the last 20 only
  const Finished shown(script({"--nproc-per-node=2", "--prefix"}, failing));
  CHECK_THAT(shown.err, ContainsSubstring("\n  stderr    : why\n"));
  CHECK(count_of("30\n", shown.err) == 1);
  const Finished mixed(script({"--nproc-per-node=2"}, failing));  // with other ranks' lines between
  CHECK(count_of("30\n", mixed.err) == 2);
}

TEST_CASE("a dry run shows every worker, starts nothing and writes nothing", "[output]") {
  const TempDir folder;
  const std::string ran = folder.path() / "ran";
  const Finished run(script({"--nproc-per-node=2", "--dry-run", "--log-dir", folder.path() / "logs", "-r3"},
                            "touch " + ran));
  CHECK(run.status == ExitStatus::exited(0));
  for (const char* text : {"rank 0", "rank 1", "env: WORLD_SIZE=2", "stdout.log", "touch"})
    CHECK_THAT(run.out, ContainsSubstring(text));
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("each rank is shown where it starts, with --show-ranks", "[output]") {
  Command command = script({"--nproc-per-node=2", "--master-port=45871", "--show-ranks"}, "echo $RANK=$$");
  command.env["CUDA_VISIBLE_DEVICES"] = "5,6";
  const Finished run(command);
  CHECK(run.status == ExitStatus::exited(0));
  const std::size_t at = run.out.find("1=");
  REQUIRE(at != std::string::npos);
  CHECK_THAT(run.err,
             ContainsSubstring("rank 1 of 2: local rank 1 on " + host_name() + ", pid " +
                               run.out.substr(at + 2, run.out.find('\n', at) - at - 2) +
                               ", MASTER_ADDR=127.0.0.1 MASTER_PORT=45871 CUDA_VISIBLE_DEVICES=5,6\n"));
}

TEST_CASE("printed commands hide secrets", "[output]") {
  Command command = script({"--dry-run"}, "true");
  command.env["DDPRUN_TOKEN"] = "hunter2";
  command.argv.insert(command.argv.end(), {"x", "--api-key=hunter2", "--password", "hunter2"});
  const Finished run(command);
  CHECK_THAT(run.out, !ContainsSubstring("hunter2"));
  CHECK_THAT(run.out, ContainsSubstring("--api-key=***"));
}

TEST_CASE("workers are bound to CPUs, and --dry-run shows them", "[output]") {
  const Finished run(
      script({"--nproc-per-node=1", "--numa-binding=exclusive"}, "grep Cpus_allowed_list /proc/self/status"));
  if (run.status == ExitStatus::exited(2)) skip("no hwloc: " + run.err);
  CHECK_THAT(run.out, ContainsSubstring("Cpus_allowed_list"));
  const Finished shown(script({"--nproc-per-node=1", "--numa-binding=exclusive", "--dry-run"}, "true"));
  CHECK_THAT(shown.out, ContainsSubstring("\nrank  local rank  "));
  CHECK_THAT(shown.out, ContainsSubstring("CPUs\n"));
}

TEST_CASE("a script is run by Python, a module too, and --no-python leaves it alone", "[output]") {
  const TempDir folder;
  const std::string program = folder.path() / "train.py";
  write_file_atomic(program, "import os, sys\nprint('py', os.environ['RANK'], sys.argv[1:])\n");
  const Finished run({{DDPRUN_PROGRAM, "--nproc-per-node=2", program, "--lr", "1"}});
  CHECK(run.status == ExitStatus::exited(0));
  CHECK_THAT(run.out, ContainsSubstring("py 1 ['--lr', '1']"));
  const Finished module({{DDPRUN_PROGRAM, "-m", "json.tool", "--help"}});
  CHECK(module.status == ExitStatus::exited(0));
  const Finished plain({{DDPRUN_PROGRAM, "--no-python", program}});
  CHECK(plain.status == ExitStatus::exited(126));
  const Finished missing({{DDPRUN_PROGRAM, (folder.path() / "none.py").string()}});
  CHECK(missing.status == ExitStatus::exited(127));
  CHECK(count_of("none.py", missing.err) == 1);
}

TEST_CASE("PYTHON_EXEC chooses the Python", "[output]") {
  const TempDir folder;
  write_file_atomic(folder.path() / "train.py", "");
  Command command{{DDPRUN_PROGRAM, (folder.path() / "train.py").string()}};
  command.env["PYTHON_EXEC"] = "echo";
  CHECK(Finished(command).out == "-u " + (folder.path() / "train.py").string() + "\n");
}

TEST_CASE("one quiet line says how many threads each worker gets", "[output]") {
  Command command = script({"--nproc-per-node=2"}, "true");
  command.env["OMP_NUM_THREADS"] = std::nullopt;
  CHECK_THAT(Finished(command).err, ContainsSubstring("OMP_NUM_THREADS="));
  command.env["LOGLEVEL"] = "warning";
  CHECK(Finished(command).err.empty());
}

TEST_CASE("torchrun's variables give flags, and bad ones are named", "[output]") {
  Command command = job({}, {"ready"});
  command.env["PET_NPROC_PER_NODE"] = "3";
  CHECK(count_of("ready ", Finished(command).out) == 3);
  command.env["PET_NPROC_PER_NODE"] = "many";
  const Finished bad(command);
  CHECK(bad.status == ExitStatus::exited(2));
  CHECK_THAT(bad.err, ContainsSubstring("PET_NPROC_PER_NODE"));
}

TEST_CASE("a descriptor limit that is too low is a failure before anything runs", "[output]") {
  need_no_sanitizer();
  const Finished run(
      {{"sh", "-c", std::string("ulimit -n 40; exec ") + DDPRUN_PROGRAM + " --nproc-per-node=64 echo ran"}});
  CHECK(run.status == ExitStatus::exited(125));
  CHECK(run.out.empty());
}

TEST_CASE("${local_rank} is replaced where --expand asks for it", "[output]") {
  const Finished plain({{DDPRUN_PROGRAM, "echo", "${local_rank}", "$$"}});
  CHECK(plain.out == "${local_rank} $$\n");
  const Finished expanded(
      {{DDPRUN_PROGRAM, "--expand", "echo", "r${local_rank}", "$$", "$local_rank", "$local_ranks"}});
  CHECK(expanded.out == "r0 $ 0 $local_ranks\n");
}

TEST_CASE("log files may go to a folder of somebody else and of a team", "[output]") {
  const TempDir folder;
  ::chmod(folder.path().c_str(), 02777);
  if (::geteuid() == 0) REQUIRE(::chown(folder.path().c_str(), 12345, 12345) == 0);
  const Finished run(script({"--log-dir", folder.path(), "-r3"}, "echo out"));
  CHECK(run.status == ExitStatus::exited(0));
  const auto job = job_folder(folder.path());
  CHECK((mode_of(job) & 0777) == 0700);
  CHECK(read_file(job / "attempt_0/0/stdout.log") == "out\n");
}

}  // namespace
}  // namespace ddprun::test
