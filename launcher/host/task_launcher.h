// What starts the tasks of a parallel job on its nodes and tells each its place by variables: the launchers
// of MPI programs, and what replaces them. Slurm's srun, which tells more, is in cli/slurm.cpp.
#pragma once

#include <string>

#include <ddprun/common/worker_env.h>

namespace ddprun::launcher {

/// The names of its variables; nullptr: it has none for that.
struct TaskLauncher {
  const char* name;        ///< for messages
  const char* task;        ///< this task's number among all
  const char* tasks;       ///< how many there are
  const char* node_task;   ///< this task's number on its node
  const char* node_tasks;  ///< how many the node has; without it `nodes` is there
  const char* nodes;
  const char* job;  ///< the same in all tasks, and another one in another job
};

/// One that also sets the variables of another one comes before it.
inline constexpr TaskLauncher kTaskLaunchers[] = {
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE", nullptr, "PMIX_NAMESPACE"},
    {"flux run", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", nullptr, "FLUX_JOB_NNODES",
     "FLUX_JOB_ID"},
    {"mpiexec (PALS)", "PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE", nullptr,
     "PALS_APID"},
    {"mpirun (Open MPI)", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", nullptr, "PMIX_NAMESPACE"},
    {"mpiexec (MPICH, Intel MPI)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", nullptr,
     nullptr},
};

/// The first variable of its own that is set; nullptr: it has not started this process.
const char* set_variable(const TaskLauncher& launcher, const EnvLookup& environment);

/// Not a real variable: task_environment() answers it with the process that has set the launcher's variables,
/// "PID.START", if that can be seen.
inline constexpr const char* kTaskSetter = "(launcher of the tasks)";

/// The environment without variables that only seem to say this process's place:
///
/// - a launcher's, if a batch system's daemon has set them, which had them from the job that submitted this
/// one;
/// - a launcher's, and the batch job's, if an MPI program of its tasks has started this process, for itself;
/// - SLURM_STEP_ID, if the launcher itself runs in that step, as Open MPI's daemons do.
EnvLookup task_environment(const EnvLookup& environment);

}  // namespace ddprun::launcher
