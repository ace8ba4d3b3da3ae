#pragma once

namespace ddprun::test {

/// Does what a real worker's store does: rank 0 listens on DDPRUN_STORE_FD, every other rank connects to
/// MASTER_ADDR and MASTER_PORT and sends its rank, and all wait indefinitely until everyone has arrived.
/// Returns false without such a job's variables, or if a rank comes twice.
bool meet_all_ranks();

}  // namespace ddprun::test
