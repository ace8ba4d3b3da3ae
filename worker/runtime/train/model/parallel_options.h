#pragma once

#include <cstdint>
#include <string>

namespace ddprun::train {

/// How the ranks of a training work together: torch.nn.parallel.DistributedDataParallel's options and what
/// may take its place.
struct ParallelOptions {
  std::int64_t bucket_mb = 25;         ///< MiB of gradients an all-reduce, about
  bool find_unused = false;            ///< a step may leave parameters unused, others in every step
  bool static_graph = false;           ///< every step uses the same parameters
  bool bucket_view = true;             ///< gradients lie in the buckets
  std::string comm_hook = "none";      ///< how gradients travel: none, fp16, bf16 or powersgd
  std::int64_t powersgd_start = 1000;  ///< reductions before PowerSGD begins to compress
  bool sync_batch_norm = false;        ///< batch norm over the batches of all ranks
  bool zero1 = false;                  ///< optimizer state sharded
  bool fsdp = false;                   ///< parameters, gradients and optimizer state sharded
  bool join = false;                   ///< no sample twice; ranks may have another number of steps
  bool nan_check = false;              ///< end at the first gradient that is no number
};

}  // namespace ddprun::train
