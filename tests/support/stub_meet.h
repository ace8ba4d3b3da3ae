#pragma once

namespace ddprun::test {

/// Does what a real worker's store does: rank 0 listens on DDPRUN_STORE_FD, every other rank connects to
/// MASTER_ADDR and MASTER_PORT and sends its rank, and all wait for ever until everyone has come. Returns
/// false without the variables of such a job, or if a rank comes twice.
bool meet_all_ranks();

}  // namespace ddprun::test
