#include "worker/ddp/join.h"

#include <string>

#include "common/logging.h"
#include "worker/ddp/distributed_data_parallel.h"

namespace ddprun::ddp {

Join::Join(DistributedDataParallel& ddp, const JoinOptions& options) : ddp_(ddp) { ddp_.begin_join(options); }

Join::~Join() {
  if (!ended_) ddp_.end_join();
}

void Join::finish() {
  if (ended_) throw std::invalid_argument("Join::finish: expected to be called once");
  constexpr int kManySteps = 1000;
  int steps = 0;
  while (ddp_.shadow_step()) {
    if (++steps == kManySteps)
      log_warning("this rank has had no input for " + std::to_string(kManySteps) +
                  " steps of the others: the inputs are divided very unevenly");
  }
  ddp_.take_final_state(/*made_most_steps=*/steps == 0);
  ddp_.end_join();
  ended_ = true;
}

}  // namespace ddprun::ddp
