// ddprun under the real mpiexec of MPICH and mpirun of Open MPI, on this host.
// tests/launcher/cli/mpi_test.cpp has the other launchers.
#include <cstdlib>

#include "tests/integration/job.h"

namespace ddprun::test {
namespace {

constexpr const char* kShow =
    "echo rank=$RANK of=$WORLD_SIZE local=$LOCAL_RANK of=$LOCAL_WORLD_SIZE group=$GROUP_RANK "
    "of=$GROUP_WORLD_SIZE.";

/// mpiexec, or mpirun, that is installed with this name.
std::vector<std::string> launcher(const std::string& name) {
  if (std::system(("command -v " + name + " >/dev/null").c_str()) != 0) skip("no " + name);
  if (name == "mpirun.openmpi") return {name, "--oversubscribe", "--bind-to", "none"};
  return {name, "-launcher", "fork"};
}

/// Each task runs this shell text.
Command tasks(const std::string& name, const std::vector<std::string>& more, const std::string& text) {
  Command command{launcher(name), {{"OMP_NUM_THREADS", "1"}, {"DDPRUN", DDPRUN_PROGRAM}, {"SHOW", kShow}}};
  for (const char* variable : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"})
    command.env[variable] = "1";
  command.argv.insert(command.argv.end(), more.begin(), more.end());
  command.argv.insert(command.argv.end(), {"sh", "-c", text});
  return command;
}

TEST_CASE("two tasks of mpiexec on one host are two workers of one job", "[mpi]") {
  const std::string name = GENERATE("mpiexec.mpich", "mpirun.openmpi");
  const Finished run(tasks(name, {"-n", "2"}, "exec $DDPRUN sh -c \"$SHOW\""));
  CHECK(run.status.success());
  INFO(run.err);
  CHECK(count_of("rank=0 of=2 local=0 of=2 group=0 of=1.", run.out) == 1);
  CHECK(count_of("rank=1 of=2 local=1 of=2 group=0 of=1.", run.out) == 1);
}

TEST_CASE("two hosts of mpiexec are two nodes of one job once a flag or a batch job says which is the first",
          "[mpi]") {
  const std::vector<std::string> hosts = {"-hosts", "127.0.0.1,127.0.0.2", "-n", "2"};
  const Finished unknown(tasks("mpiexec.mpich", hosts, "exec $DDPRUN true"));
  CHECK_FALSE(unknown.status.success());
  CHECK_THAT(unknown.err,
             ContainsSubstring("mpiexec (MPICH, Intel MPI) starts 2 tasks on 2 nodes (PMI_SIZE), but no "
                               "variable says where task 0 runs: add --master-addr="));
  const bool batch = GENERATE(false, true);  // LSF's
  Command command = tasks("mpiexec.mpich", hosts,
                          std::string("exec $DDPRUN --nproc-per-node=2 ") +
                              (batch ? "" : "--master-addr=127.0.0.1 ") + "sh -c \"$SHOW\"");
  if (batch) command.env["LSB_MCPU_HOSTS"] = "127.0.0.1 1 127.0.0.2 1";
  const Finished run(command);
  INFO(run.err);
  CHECK(run.status.success());
  for (const std::string rank : {"0", "1", "2", "3"})
    CHECK(count_of("rank=" + rank + " of=4 local=" + (rank == "0" || rank == "2" ? "0" : "1") +
                       " of=2 group=" + (rank < "2" ? "0" : "1") + " of=2.",
                   run.out) == 1);
}

TEST_CASE("two jobs of mpiexec on one host at once do not meet", "[mpi]") {
  const std::string name = GENERATE("mpiexec.mpich", "mpirun.openmpi");
  const Command command = tasks(name, {"-n", "2"}, "exec $DDPRUN sh -c \"sleep 1; $SHOW\"");
  Child first(command), second(command);
  CHECK(first.wait().success());
  CHECK(second.wait().success());
  for (const Child* job : {&first, &second}) CHECK(count_of(" of=2 group=0 of=1.", job->out()) == 2);
}

TEST_CASE("a failure in one task of mpiexec ends all with its code", "[mpi]") {
  const std::string name = GENERATE("mpiexec.mpich", "mpirun.openmpi");
  const Finished run(tasks(name, {"-n", "2"}, "exec $DDPRUN sh -c '[ $RANK = 1 ] && exit 7; sleep 1000'"));
  CHECK(run.status == ExitStatus::exited(7));
  CHECK_THAT(run.err, ContainsSubstring("exit code 7"));
}

TEST_CASE("one task of mpiexec is a job on one node, also where it starts several ddpruns", "[mpi]") {
  const std::string name = GENERATE("mpiexec.mpich", "mpirun.openmpi");
  const Finished run(tasks(name, {"-n", "1"}, "$DDPRUN --nproc-per-node=2 sh -c \"$SHOW\""));
  CHECK(count_of(" of=2 group=0 of=1.", run.out) == 2);
  const Finished apart(tasks(name, {"-n", "2"}, "exec $DDPRUN --standalone sh -c \"$SHOW\""));
  CHECK(count_of("rank=0 of=1 ", apart.out) == 2);
  const Finished in_worker(tasks(name, {"-n", "2"}, "exec $DDPRUN sh -c '$DDPRUN sh -c \"$SHOW\"'"));
  CHECK(count_of("rank=0 of=1 ", in_worker.out) == 2);
}

/// A shell that keeps another name, or has a library loaded, and then runs the text.
TEST_CASE("a ddprun that an MPI program of the tasks starts is a job of its own", "[mpi]") {
  const std::string name = GENERATE("mpiexec.mpich", "mpirun.openmpi");
  const TempDir folder;
  std::filesystem::copy_file(DDPRUN_FAKE_NVML_DIR "/libnvidia-ml.so.1", folder.path() / "libmpi.so.1");
  const std::string program =
      "ASAN_OPTIONS=verify_asan_link_order=0 LD_PRELOAD=" + (folder.path() / "libmpi.so.1").string() +
      " sh -c 'unset LD_PRELOAD; $DDPRUN sh -c \"$SHOW\"; :'; :";
  const Finished run(tasks(name, {"-n", "2"}, program));
  INFO(run.err);
  CHECK(count_of("rank=0 of=1 ", run.out) == 2);
}

TEST_CASE("what a batch job has inherited from a task of mpiexec is not its own", "[mpi]") {
  const TempDir folder;
  std::filesystem::create_symlink("/bin/sh", folder.path() / "slurmstepd");
  Command command{{folder.path() / "slurmstepd", "-c",
                   "env PMI_SIZE=2 PMI_RANK=1 MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0 $DDPRUN --dry-run true; :"},
                  {{"DDPRUN", DDPRUN_PROGRAM}}};
  CHECK_THAT(Finished(command).out, ContainsSubstring(" WORLD_SIZE=1"));
  // Below a step of Slurm's, such as that of Open MPI's own daemons, its tasks are mpirun's.
  Command inside{{folder.path() / "slurmstepd", "-c",
                  "env SLURM_JOB_ID=8 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=4 sh -c 'PMI_SIZE=2 PMI_RANK=1 "
                  "MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1 $DDPRUN --dry-run true; :'; :"},
                 {{"DDPRUN", DDPRUN_PROGRAM}}};
  CHECK_THAT(Finished(inside).out, ContainsSubstring(" WORLD_SIZE=2"));
}

}  // namespace
}  // namespace ddprun::test
