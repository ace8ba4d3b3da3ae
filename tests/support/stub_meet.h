#pragma once

namespace ddprun::test {

/// What the store of a real worker does: rank 0 listens on DDPRUN_STORE_FD, every other rank connects to
/// MASTER_ADDR and MASTER_PORT and says its rank; all go on once all are there. Waits for ever for who does
/// not come. False if it finds itself in no such job, or a rank comes twice.
bool meet_all_ranks();

}  // namespace ddprun::test
