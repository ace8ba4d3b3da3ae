#pragma once

namespace ddprun {

/// Lets the C library keep the memory of freed tensors for the next step instead of handing it back to the
/// system, which costs a page fault for every 4 KiB when it is asked for again. Called once, first thing in
/// main.
void keep_freed_memory();

}  // namespace ddprun
