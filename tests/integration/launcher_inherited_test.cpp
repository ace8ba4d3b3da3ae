// What a ddprun has inherited from a worker of another job: it is told from what it inherits as that worker's
// child.
#include <sys/prctl.h>

#include <csignal>

#include <ddprun/common/text.h>
#include "tests/integration/job.h"

namespace ddprun::test {
namespace {

/// The task's variables in a Slurm step of two nodes.
const std::map<std::string, std::optional<std::string>> kStep = {
    {"SLURM_JOB_ID", "8"},         {"SLURM_STEP_ID", "0"},         {"SLURM_STEP_NUM_TASKS", "2"},
    {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_NODELIST", "a,b"}, {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
    {"SLURMD_NODENAME", "a"},      {"SLURM_NODEID", "0"},          {"SLURM_LOCALID", "0"},
    {"SLURM_PROCID", "0"},
};

/// What a worker of a ddprun that has ended, or of this Slurm job, hands down.
std::map<std::string, std::optional<std::string>> handed_down(const std::optional<std::string>& slurm_job) {
  Command command = script({}, "env -0 | grep -z ^DDPRUN_ | tr '\\0' '\\n'");
  command.env["SLURM_JOB_ID"] = slurm_job;
  std::map<std::string, std::optional<std::string>> variables;
  for (const std::string& line : split(Finished(command).out, '\n'))
    if (const auto end = line.find('='); end != std::string::npos)
      variables[line.substr(0, end)] = line.substr(end + 1);
  REQUIRE(variables.contains("DDPRUN_JOB_ID"));
  return variables;
}

TEST_CASE("a job that a worker has submitted to Slurm is one job over its nodes", "[inherited]") {
  for (const std::optional<std::string>& outer : {std::optional<std::string>("7"), {}}) {
    Command command = ddprun_command({"--dry-run", "true"});
    command.env.insert(kStep.begin(), kStep.end());
    for (const auto& [name, value] : handed_down(outer)) command.env[name] = value;
    CHECK_THAT(Finished(command).out, ContainsSubstring("WORLD_SIZE=2"));
  }
}

TEST_CASE("a ddprun in a worker is a job of its own on one node, also in another PID namespace",
          "[inherited]") {
  for (const std::string before : {"", "setsid -w ", "unshare --user --pid --fork "}) {
    Command command = script({"--standalone"}, before + DDPRUN_PROGRAM + " --dry-run true");
    command.env.insert(kStep.begin(), kStep.end());
    const Finished outer(command);
    if (outer.err.find("unshare failed") != std::string::npos) continue;
    CHECK_THAT(outer.out, ContainsSubstring(" WORLD_SIZE=1"));
    CHECK_THAT(outer.out, !ContainsSubstring(" WORLD_SIZE=2"));
  }
}

TEST_CASE("a ddprun in a worker is a job of its own whatever Slurm job the worker names", "[inherited]") {
  for (const std::string slurm_job : {"-u SLURM_JOB_ID", "SLURM_JOB_ID=9"}) {
    Command command = script({"--standalone"}, "env " + slurm_job + " " + DDPRUN_PROGRAM + " --dry-run true");
    command.env.insert(kStep.begin(), kStep.end());
    CHECK_THAT(Finished(command).out, ContainsSubstring(" WORLD_SIZE=1"));
  }
}

TEST_CASE("an inherited job id does not keep a job from its health port and its file timers", "[inherited]") {
  Command command = script({}, "echo timers: $TORCHELASTIC_TIMER_FILE, job: $DDPRUN_JOB_ID");
  command.env = handed_down({});
  const std::string outer = *command.env["DDPRUN_JOB_ID"];
  command.env["TORCHELASTIC_ENABLE_FILE_TIMER"] = "1";
  command.env["TORCHELASTIC_TIMER_FILE"] = "relative_timers";
  command.env["TORCHELASTIC_HEALTH_CHECK_PORT"] = "0";  // ddprun says what it expects there
  const Finished own(command);
  CHECK_THAT(own.out, ContainsSubstring("/relative_timers, job: "));
  CHECK_THAT(own.out, !ContainsSubstring(outer));
  CHECK_THAT(own.err, ContainsSubstring("TORCHELASTIC_HEALTH_CHECK_PORT"));
  // The pipe and the error file in that job's own folder are not for this job.
  command.env["TORCHELASTIC_TIMER_FILE"] = "/tmp/ddprun-" + outer + "/timers";
  command.env["TORCHELASTIC_ERROR_FILE"] = "/tmp/ddprun-" + outer + "/error.json";
  command.argv.back() += "; exit 3";
  const Finished other(command);
  CHECK(other.status == ExitStatus::exited(3));
  CHECK_THAT(other.out, ContainsSubstring(other.child.temp_folder().string() + "/ddprun-"));
  CHECK_THAT(other.err, !ContainsSubstring("error.json"));
}

TEST_CASE("the guard of a killed ddprun leaves the processes of another Slurm job alone", "[inherited]") {
  // Not descendants of the job, but with its id, as those of a job that a worker has submitted.
  const auto slurm_job_of_stray = GENERATE(std::optional<std::string>(), std::optional<std::string>("8"));
  Child ddprun(script({}, "echo id=$DDPRUN_JOB_ID.; sleep 600"));
  REQUIRE(ddprun.wait_for_output(".\n"));
  const std::string out = ddprun.out();
  const std::string id = out.substr(3, out.find('.') - 3);
  const TempDir folder;
  const auto slurmstepd = folder.path() / "slurmstepd";
  std::filesystem::create_symlink("/bin/sh", slurmstepd);
  const std::string submit =
      "DDPRUN_JOB_ID=" + id + " SLURM_JOB_ID=8 sh -c 'echo started; exec sleep 600'; :";
  Child submitted({{slurmstepd, "-c", submit}});
  Child stray({{"sleep", "600"}, {{"DDPRUN_JOB_ID", id}, {"SLURM_JOB_ID", slurm_job_of_stray}}});
  REQUIRE(submitted.wait_for_output("started"));
  REQUIRE(wait_until([&] { return stray.processes().size() == 1; }));
  ddprun.send_signal(SIGKILL);
  ddprun.wait();
  CHECK(stray.wait() == ExitStatus::killed(SIGKILL));
  CHECK(ddprun.nothing_left());
  CHECK(wait_until([&] { return std::filesystem::is_empty(ddprun.temp_folder()); }));  // the guard's last act
  CHECK(submitted.processes().size() == 2);
  submitted.send_signal(SIGTERM);
  CHECK(submitted.wait() == ExitStatus::killed(SIGTERM));  // Child's destructor ends the sleep
}

TEST_CASE("the guard of a killed ddprun in a Slurm step ends a stray that names another Slurm job",
          "[inherited]") {
  const TempDir folder;
  const auto slurmstepd = folder.path() / "slurmstepd";
  std::filesystem::create_symlink("/bin/sh", slurmstepd);
  Command command = script({"--standalone"},
                           "SLURM_JOB_ID=8 setsid sh -c 'echo started; exec sleep 600' & "
                           "echo launcher=$PPID.; wait");
  command.argv.insert(command.argv.begin(), {slurmstepd, "-c", "\"$@\"; sleep 600; :", "sh"});
  command.env["SLURM_JOB_ID"] = "7";
  command.in_child = [] { ::prctl(PR_SET_CHILD_SUBREAPER, 1); };  // as slurmstepd may be
  Child step(command);
  REQUIRE(step.wait_for_output("started"));
  REQUIRE(step.wait_for_output(".\n"));
  const std::string out = step.out();
  ::kill(std::stoi(out.substr(out.find("launcher=") + 9)), SIGKILL);
  CHECK(wait_until([&] { return step.processes().size() == 2; },
                   std::chrono::seconds(10)));  // itself, the sleep
  CHECK(wait_until([&] { return std::filesystem::is_empty(step.temp_folder()); }));
  step.send_signal(SIGTERM);
  CHECK(step.wait() == ExitStatus::killed(SIGTERM));  // Child's destructor ends the sleep
}

}  // namespace
}  // namespace ddprun::test
