#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddprun/train/optim/gradients.h>

namespace ddprun::worker {

/// What a run's folder tells about how the run was set up and where its time went.
struct RunFacts {
  int ranks = 1;
  int ranks_on_host = 0;     ///< on rank 0's host; 0: unknown
  int cpus = 0;              ///< of that host; 0: unknown
  int threads_per_rank = 1;  ///< that compute
  bool on_gpu = false;
  bool cpu_has_bf16 = false;                     ///< in hardware
  std::optional<double> data_share;              ///< of the training time: waiting for batches
  std::optional<double> communication_share;     ///< waiting for other ranks' gradients
  std::optional<std::int64_t> training_samples;  ///< in an epoch, of all ranks
  std::int64_t batch_size = 1;                   ///< per rank
  std::int64_t accumulate = 1;
  int loader_threads = 0;
  bool drop_last = false, join = false;
  bool can_join = true;  ///< nothing else that the run does excludes --join
  double lr = 0;
  bool lr_is_default = false;  ///< the task's, which is meant for one rank
  bool scales_lr = false;
  train::Precision precision = train::Precision::k32;
  bool fast = false;
  bool find_unused = false;
  bool can_compress = true;  ///< likewise --comm-hook, which it does not have
};

/// One line each, "what was measured: the flag to change"; empty: nothing to advise. In the order of the
/// functions below, each of which returns an empty text if all is well.
std::vector<std::string> advice(const RunFacts& run);

std::string loader_advice(const RunFacts& run);
std::string communication_advice(const RunFacts& run);
std::string batch_advice(const RunFacts& run);
std::string learning_rate_advice(const RunFacts& run);
std::string core_advice(const RunFacts& run);
std::string precision_advice(const RunFacts& run);
std::string unused_parameters_advice(const RunFacts& run);

}  // namespace ddprun::worker
