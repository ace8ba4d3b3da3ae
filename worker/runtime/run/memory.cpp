#include <ddprun/run/memory.h>

#include <malloc.h>

namespace ddprun {

void keep_freed_memory() {
  // 32 MiB is the largest threshold that glibc takes; activations above it are mapped one by one as ever.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 2000 << 20);
  ::mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace ddprun
