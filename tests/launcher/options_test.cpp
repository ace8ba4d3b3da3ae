#include "launcher/options.h"

#include <algorithm>

#include "common/errors.h"
#include "tests/support/catch.h"

namespace ddprun {
namespace {

using test::ContainsSubstring;
using Kind = WorkersWanted::Kind;
using Words = std::vector<std::string>;

/// The flags before a program.
Options parse(Words flags) {
  flags.push_back("prog");
  return parse_options(flags);
}

TEST_CASE("without flags one worker runs, with a free port and a random id", "[options]") {
  const Options options = parse({});
  CHECK(options.nproc_per_node.kind == Kind::kCount);
  CHECK(options.nproc_per_node.count == 1);
  CHECK(options.shutdown_timeout == std::chrono::seconds(30));
  CHECK(options.run_id.empty());
  CHECK_FALSE(options.master_port);
  CHECK(options.program == Words{"prog"});
}

TEST_CASE("every spelling of a flag means the same", "[options]") {
  for (const Words& flags :
       {Words{"--nproc-per-node=3"}, Words{"--nproc_per_node=3"}, Words{"--nproc-per-node", "3"},
        Words{"--nproc_per_node", "3"}, Words{"--nproc-per-node=9", "--nproc_per_node=3"}})
    CHECK(parse(flags).nproc_per_node.count == 3);
}

TEST_CASE("the number of workers may be cpu, gpu or auto", "[options]") {
  CHECK(parse({"--nproc-per-node=cpu"}).nproc_per_node.kind == Kind::kCpu);
  CHECK(parse({"--nproc-per-node=gpu"}).nproc_per_node.kind == Kind::kGpu);
  CHECK(parse({"--nproc-per-node=auto"}).nproc_per_node.kind == Kind::kAuto);
}

TEST_CASE("values are read into their types", "[options]") {
  CHECK(parse({"--shutdown-timeout=1.5"}).shutdown_timeout == std::chrono::milliseconds(1500));
  CHECK(parse({"--shutdown-timeout=0"}).shutdown_timeout.count() == 0);
  CHECK(parse({"--master-port=29500"}).master_port == 29500);
  CHECK(parse({"--rdzv-id=a b"}).run_id == "a b");
}

TEST_CASE("torchrun's flags with the value that one node leaves are accepted", "[options]") {
  CHECK_NOTHROW(parse({"--standalone", "--no-python", "--nnodes=1", "--node_rank", "0", "--max-restarts=0"}));
  CHECK_NOTHROW(parse({"--nnodes=1:1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"}));
  for (const char* endpoint : {"localhost", "127.0.0.1:29500", "[::1]:1", "[::1]", "::1"})
    CHECK_NOTHROW(parse({"--rdzv-backend=static", std::string("--rdzv-endpoint=") + endpoint}));
  CHECK_NOTHROW(parse({"--master-addr=localhost"}));
}

TEST_CASE("a bad value is one line naming flag, what was expected and what was got", "[options]") {
  const auto [flag, value] = GENERATE(table<std::string, std::string>({{"--nproc-per-node", "0"},
                                                                       {"--nproc-per-node", "-1"},
                                                                       {"--nproc-per-node", "foo"},
                                                                       {"--nproc-per-node", "2x"},
                                                                       {"--nproc-per-node", "1000000000"},
                                                                       {"--nproc-per-node", "GPU"},
                                                                       {"--nproc-per-node", "1.5"},
                                                                       {"--nproc-per-node", "a\nb"},
                                                                       {"--nnodes", "2"},
                                                                       {"--nnodes", "1:2"},
                                                                       {"--nnodes", "1:2:3"},
                                                                       {"--nnodes", "a"},
                                                                       {"--node-rank", "1"},
                                                                       {"--max-restarts", "1"},
                                                                       {"--master-port", "0"},
                                                                       {"--master-port", "65536"},
                                                                       {"--master-port", "abc"},
                                                                       {"--master-addr", "10.0.0.1"},
                                                                       {"--master-addr", "127.0.0.5"},
                                                                       {"--rdzv-backend", "etcd"},
                                                                       {"--rdzv-endpoint", "host:29500"},
                                                                       {"--rdzv-endpoint", ":1"},
                                                                       {"--rdzv-endpoint", "localhost:x"},
                                                                       {"--rdzv-endpoint", "localhost:65536"},
                                                                       {"--shutdown-timeout", "-1"},
                                                                       {"--shutdown-timeout", "soon"},
                                                                       {"--shutdown-timeout", "nan"},
                                                                       {"--shutdown-timeout", "1e9"}}));
  for (const Words& flags : {Words{flag + "=" + value}, Words{flag, value}}) {
    try {
      parse(flags);
      FAIL("expected a UsageError for " + flag + "=" + value);
    } catch (const UsageError& error) {
      const std::string text = error.what();
      CHECK_THAT(text, ContainsSubstring(flag + ": expected "));
      CHECK_THAT(text, ContainsSubstring("got '"));
      CHECK(text.find('\n') == std::string::npos);
    }
  }
}

TEST_CASE("unknown flags, missing values and missing programs are usage errors", "[options]") {
  CHECK_THROWS_WITH(parse({"--nope"}), ContainsSubstring("unknown flag '--nope'"));
  CHECK_THROWS_WITH(parse({"--nope=3"}), ContainsSubstring("unknown flag '--nope'"));
  CHECK_THROWS_WITH(parse({"-x"}), ContainsSubstring("unknown flag '-x'"));
  CHECK_THROWS_AS(parse({"--nproc-per-node="}), UsageError);
  CHECK_THROWS_AS(parse({"--standalone=maybe"}), UsageError);
  CHECK_THROWS_AS(parse_options({"--nproc-per-node"}), UsageError);
  CHECK_THROWS_WITH(parse_options({}), ContainsSubstring("no program given"));
  CHECK_THROWS_WITH(parse_options({"--standalone"}), ContainsSubstring("no program given"));
  CHECK_THROWS_WITH(parse_options({"--"}), ContainsSubstring("no program given"));
}

TEST_CASE("everything from the program on is the program's", "[options]") {
  const Words program = {"prog", "--nproc-per-node=7", "--",   "",   "--nope",
                         "$$",   "${local_rank}",      "\xff", "a b"};
  Words plain = {"--nproc-per-node", "2"};
  Words dashed = {"--nproc-per-node", "2", "--"};
  for (Words* words : {&plain, &dashed}) {
    words->insert(words->end(), program.begin(), program.end());
    const Options options = parse_options(*words);
    CHECK(options.program == program);
    CHECK(options.nproc_per_node.count == 2);
  }
  CHECK(parse_options({"--", "--odd-name", "x"}).program == Words{"--odd-name", "x"});
  CHECK(parse_options({"-", "x"}).program == Words{"-", "x"});
}

TEST_CASE("help and version need no program and no other flag to be right", "[options]") {
  CHECK(parse_options({"--help"}).help);
  CHECK(parse_options({"-h"}).help);
  CHECK(parse_options({"--version"}).version);
  CHECK(parse_options({"--nproc-per-node=foo", "--help"}).help);
}

TEST_CASE("the help names every flag and fits a screen", "[options]") {
  const std::string text = help_text();
  for (const char* flag : {"--nproc-per-node", "--shutdown-timeout", "--nnodes", "--node-rank",
                           "--max-restarts", "--master-addr", "--master-port", "--rdzv-id", "--rdzv-backend",
                           "--rdzv-endpoint", "--standalone", "--no-python", "--help", "--version"})
    CHECK_THAT(text, ContainsSubstring(flag));
  CHECK(std::count(text.begin(), text.end(), '\n') <= 24);
}

}  // namespace
}  // namespace ddprun
