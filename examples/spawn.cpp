// Four ranks from one program, without a launcher, as torch.multiprocessing.spawn starts them in Python.
#include <ddprun/collectives.h>
#include <ddprun/process_group.h>
#include <ddprun/spawn.h>

#include <cstdlib>
#include <exception>
#include <iostream>

using namespace ddprun;

void add_ranks(const WorkerEnv& env) {
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
