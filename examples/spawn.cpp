// Four ranks from one program without a launcher, like torch.multiprocessing.spawn in Python.
#include <ddprun/flight/flight_recorder.h>
#include <ddprun/flight/record_collectives.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/process_group.h>
#include <ddprun/group/signal_thread.h>
#include <ddprun/group/spawn.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>

using namespace ddprun;

void add_ranks(const WorkerEnv& env) {
  // After kill -USR2 to a rank, `worker flight spawn_flight` says who waits for whom.
  ddp::set_flight_folder("spawn_flight");
  const ddp::SignalThread on_request(SIGUSR2, [] { ddp::dump_flight("SIGUSR2"); });
  auto group = ddp::ProcessGroup::connect(env, {});
  const double sum = ddp::all_reduce_sum(group, {1.0 * group.rank()})[0];
  if (group.rank() == 0) std::cout << "the ranks of " << group.size() << " add up to " << sum << std::endl;
  group.close();
}

int main() {
  try {
    spawn(4, add_ranks);  // before anything that starts threads
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::cerr << "spawn: error: " << error.what() << std::endl;  // "rank 2: ..."
    return EXIT_FAILURE;
  }
}
