#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ddprun/ddp/distributed_data_parallel.h>

namespace ddprun::ddp {

/// How large buckets may be, in bytes.
struct BucketLimits {
  std::int64_t first, cap;           ///< of those made after the first backward
  std::vector<std::size_t> initial;  ///< of those before: one after the other, the last for all further
};

/// As Python's DistributedDataParallel chooses them. Where the buckets are made anew after the first
/// backward, in its gradients' order of arrival, there is only one before. throws  std::invalid_argument if a
/// size is not positive
BucketLimits bucket_limits(const DistributedDataParallel::Options& options);

}  // namespace ddprun::ddp
