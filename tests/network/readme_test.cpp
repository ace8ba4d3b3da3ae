// The README's examples for several nodes, as they stand there.
#include <filesystem>
#include <regex>
#include <sstream>

#include "tests/network/nodes.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// The lines of the README that begin so.
Words readme_lines(const std::string& begin) {
  Words lines;
  std::istringstream text(read_file(std::filesystem::path(DDPRUN_SOURCE_DIR) / "README.md"));
  for (std::string line; std::getline(text, line);)
    if (line.rfind(begin, 0) == 0) lines.push_back(line);
  return lines;
}

/// A user's home on every host: a token, and a train.py that says who it is.
class Home {
 public:
  Home() {
    write_file_atomic(folder_.path() / ".ddprun-token", "a secret of ours\n");
    std::filesystem::permissions(folder_.path() / ".ddprun-token", std::filesystem::perms::owner_read);
    write_file_atomic(folder_.path() / "train.py",
                      "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n");
  }

  Command shell(const std::string& line) const {
    const std::string path = std::filesystem::path(DDPRUN_PROGRAM).parent_path().string();
    return {{"sh", "-c", "cd && PATH=" + path + ":$PATH && " + line},
            {{"HOME", folder_.path().string()}, {"OMP_NUM_THREADS", "1"}}};
  }

 private:
  TempDir folder_;
};

void check_line(const Words& line_of_host) {
  const Network network(static_cast<int>(line_of_host.size()));
  network.set_names("10.99.0.1 node1\n10.99.0.2 node2\n");
  const Home home;
  Nodes nodes(network);
  for (std::size_t host = 0; host < line_of_host.size(); ++host)
    nodes.start(static_cast<int>(host), home.shell(line_of_host[host]));
  nodes.check_all_exit(0);
  const std::size_t workers = 2 * line_of_host.size();
  for (std::size_t rank = 0; rank < workers; ++rank)
    CHECK(count_of("rank " + std::to_string(rank) + " of " + std::to_string(workers), nodes.all_out()) == 1);
}

}  // namespace

TEST_CASE("the README's lines for several nodes do what it says", "[nodes]") {
  const Words same = readme_lines("ddprun --nnodes=2 --rdzv-endpoint=node1 ");
  const Words first = readme_lines("ddprun --nnodes=2 --node-rank=0 ");
  const Words elastic = readme_lines("ddprun --nnodes=2:4 ");
  REQUIRE(same.size() == 1);
  REQUIRE(first.size() == 1);
  REQUIRE(elastic.size() == 1);
  check_line({same[0], same[0]});
  REQUIRE_THAT(first[0], Catch::Matchers::EndsWith("--node-rank=1 on node2"));
  check_line({first[0], std::regex_replace(first[0], std::regex("--node-rank=0"), "--node-rank=1")});
  check_line({elastic[0], elastic[0], elastic[0], elastic[0]});
}

TEST_CASE("the example of two nodes on one machine runs", "[nodes]") {
  Child example({{"sh", std::string(DDPRUN_SOURCE_DIR) + "/examples/two_nodes_on_localhost.sh"},
                 {{"DDPRUN", DDPRUN_PROGRAM}, {"OMP_NUM_THREADS", "1"}}});
  CHECK(example.wait() == ExitStatus::exited(0));
  for (const char* rank : {"0", "1", "2", "3"})
    CHECK(count_of(std::string("rank ") + rank + " of 4", example.out()) == 1);
}
