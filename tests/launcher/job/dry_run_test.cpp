#include "launcher/job/job.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("the shown round of one node has no network", "[dry_run]") {
  Options options;
  options.restart.max_restarts = 2;
  const Round round = shown_round(options, 4, "job");
  CHECK(round.first_rank == 0);
  CHECK(round.world_size == 4);
  CHECK(round.max_restarts == 2);
  CHECK(round.group_world_size == 1);
  CHECK(round.master_addr == "127.0.0.1");
  CHECK(round.master_port == 0);
  CHECK(round.run_id == "job");
}

TEST_CASE("the shown round of a node with a rank is that rank's place", "[dry_run]") {
  Options options;
  options.nodes.min_nodes = options.nodes.max_nodes = 3;
  options.nodes.node_rank = 2;
  options.nodes.endpoint = {"node1", 29500};
  options.master_port = 7;
  const Round round = shown_round(options, 4, "job");
  CHECK(round.group_rank == 2);
  CHECK(round.group_world_size == 3);
  CHECK(round.first_rank == 8);
  CHECK(round.first_local_rank == 0);
  CHECK(round.local_world_size == 4);
  CHECK(round.world_size == 12);
  CHECK(round.master_addr == "node1");
  CHECK(round.master_port == 7);
}

TEST_CASE("the shown round of a node without a rank is the first place", "[dry_run]") {
  Options options;
  options.nodes.max_nodes = 3;
  const Round round = shown_round(options, 4, "job");
  CHECK(round.first_rank == 0);
  CHECK(round.world_size == 12);
}

TEST_CASE("the shown round of one of several tasks of a node has its local rank", "[dry_run]") {
  Options options;
  options.nodes.min_nodes = options.nodes.max_nodes = 5;
  options.nodes.node_rank = 3;
  options.nodes.first_local_rank = 1;
  options.nodes.local_world_size = 2;
  options.nodes.group_rank = 1;
  options.nodes.group_world_size = 3;
  const Round round = shown_round(options, 1, "job");
  CHECK(round.group_rank == 1);
  CHECK(round.group_world_size == 3);
  CHECK(round.first_rank == 3);
  CHECK(round.first_local_rank == 1);
  CHECK(round.local_world_size == 2);
  CHECK(round.world_size == 5);
}

}  // namespace
}  // namespace ddprun::launcher
