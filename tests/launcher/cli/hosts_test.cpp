#include "launcher/cli/hosts.h"

#include <fstream>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/cli/options.h"
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::launcher;

namespace {

using Words = std::vector<std::string>;

Options options_of(Words words, const StartOrder* order = nullptr) {
  words.insert(words.end(), {"--", "true"});
  return parse_options(
      words, [](const std::string&) { return std::nullopt; }, order);
}

std::string refusal(const Words& words) {
  try {
    options_of(words);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

StartOrder order_for(std::size_t own) {
  StartOrder order;
  order.hosts = {{"127.0.0.1", 2}, {"me@far", {}}, {"farther", 3}};
  order.own = own;
  order.port = 20001;
  order.token = "secret";
  order.channel = 9;
  return order;
}

}  // namespace

TEST_CASE("a list of hosts has users, numbers of workers and ranges") {
  CHECK(parse_hosts("a") == std::vector<Host>{{"a", {}}});
  CHECK(parse_hosts("a:2, me@b.c-d,n[01-02]:8") ==
        std::vector<Host>{{"a", 2}, {"me@b.c-d", {}}, {"n01", 8}, {"n02", 8}});
  CHECK(parse_hosts("fe80::1,10.0.0.1:3") == std::vector<Host>{{"fe80::1", {}}, {"10.0.0.1", 3}});
  CHECK(parse_hosts("me@a")->front().name() == "a");
  for (const char* text : {"", "a,", "a:0", "a:x", "a:4097", "a b", "-oProxyCommand=x", "a@", "@a", "a;b",
                           "$(a)", "a[1", "me@-a", "-l@a", "a/b", "n[1-99999]"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_hosts(text));
  }
}

TEST_CASE("a hostfile is Open MPI's, DeepSpeed's or Hydra's, with comments") {
  const auto hosts = parse_hostfile(
      "# all\na slots=4\n\n b\tslots=2 max_slots=8 # two\nc:3\r\nme@d\nn[1-2]  slots=1\n", "--hostfile", "f");
  CHECK(hosts == std::vector<Host>{{"a", 4}, {"b", 2}, {"c", 3}, {"me@d", {}}, {"n1", 1}, {"n2", 1}});
  CHECK_THROWS_WITH(parse_hostfile("a\nb slot=2\n", "--hostfile", "f"),
                    "--hostfile: line 2 of 'f': expected HOST, HOST slots=N or HOST:N, got 'b slot=2'");
  CHECK_THROWS_WITH(parse_hostfile("#\n", "--hostfile", "f"),
                    "--hostfile: expected a host in each line, got none in 'f'");
}

TEST_CASE("a host has no control characters, which a file may have", "[options]") {
  CHECK(parse_hosts("fe80::1%eth0"));
  CHECK_FALSE(parse_hosts("fe80::1%e;th0"));
  CHECK_FALSE(parse_hosts("fe80::1%\xbf"));
  CHECK_FALSE(parse_hosts(std::string("::\0 -oProxyCommand=x", 20)));
  CHECK_FALSE(parse_hosts(std::string("node\0", 5)));
}

TEST_CASE("other hosts get variables by name and by the beginning of names, and ssh its words", "[options]") {
  CHECK(parse_variable_names("A,B_*") == Words{"A", "B_*"});
  for (const char* text : {"", "A,", "A=1", "*A", "A*B"}) CHECK_FALSE(parse_variable_names(text));
  CHECK(parse_ssh("ssh  -p 2") == Words{"ssh", "-p", "2"});
  CHECK_FALSE(parse_ssh(" "));
}

TEST_CASE("the typed ddprun is that of the first host which is this one, and draws a port and a token") {
  const Options options = options_of({"--hosts=far.invalid,127.0.0.1:3,127.0.0.2"});
  CHECK(options.hosts.own == 1U);
  CHECK(options.hosts.starts());
  CHECK(options.nodes.max_nodes == 3);
  CHECK(options.nodes.min_nodes == 3);
  CHECK(options.nodes.node_rank == 1);
  CHECK(options.nodes.is_host == false);
  CHECK(options.nodes.endpoint.host == "far.invalid");
  CHECK(options.nodes.endpoint.port >= 20000);
  CHECK(options.nodes.endpoint.port < 29000);
  CHECK(options.nodes.token.size() == 32);
  CHECK(options.nodes.token != options_of({"--hosts=127.0.0.1,127.0.0.2"}).nodes.token);
  CHECK(options.nproc_per_node.count == 3);
  CHECK_FALSE(options_of({"--hosts=far.invalid,farther.invalid"}).hosts.own);
  CHECK_FALSE(options_of({"--hosts=127.0.0.1"}).hosts.starts());
}

TEST_CASE("a ddprun that another has started follows its order") {
  const StartOrder order = order_for(2);
  const Options options =
      options_of({"--hosts=not,looked,at", "--token-file=/nowhere", "--result-json=r"}, &order);
  CHECK_FALSE(options.hosts.starts());
  CHECK(options.hosts.is_silent());
  CHECK(options.nodes.node_rank == 2);
  CHECK(options.nodes.node_name == "farther");
  CHECK(options.nodes.names == Words{"127.0.0.1", "far", "farther"});
  CHECK(options.nodes.endpoint == Endpoint{"127.0.0.1", 20001});
  CHECK(options.nodes.token == "secret");
  CHECK(options.nproc_per_node.count == 3);
  CHECK(options.result_json.empty());
  const StartOrder first = order_for(0);
  CHECK(options_of({"--hosts=x", "--result-json=r"}, &first).result_json == "r");
  CHECK(options_of({"--hosts=x", "--nproc-per-node=5"}, &order).nproc_per_node.count == 5);
  CHECK(options_of({"--hosts=x", "--nnodes=1:3"}, &order).nodes.node_rank == std::nullopt);
  CHECK(options_of({"--hosts=x", "--rdzv-endpoint=other"}, &order).nodes.endpoint ==
        Endpoint{"other", 20001});
}

TEST_CASE("hosts that do not fit the other flags are refused in one line") {
  CHECK(refusal({"--hosts=a,b,a"}).find("a is listed twice (a:2 gives it two workers)") != std::string::npos);
  CHECK(refusal({"--hosts=a", "--hostfile=b"}) == "--hostfile: expected only one of this flag and --hosts");
  CHECK(refusal({"--hosts=127.0.0.1,b", "--rdzv-endpoint=127.0.0.1"}).empty());
  CHECK(refusal({"--hosts=localhost,b"}).find("a first host that b can reach") != std::string::npos);
  CHECK(refusal({"--hosts=a:2,b", "--nproc-per-node=3"})
            .starts_with("--hosts: expected hosts without a number"));
  for (const char* flag : {"--node-rank=0", "--master-addr=a", "--standalone"})
    CHECK(refusal({"--hosts=a,b", flag}).find("with --hosts, which numbers the hosts") != std::string::npos);
  CHECK(refusal({"--hosts=a,b,c", "--nnodes=2"}).starts_with("--nnodes: expected 3 or MIN:3"));
  CHECK(refusal({"--hosts=a,b,c", "--nnodes=2", "--spares=1"}).empty());
  CHECK(refusal({"--hosts=a,b", "--spares=1"}).starts_with("--spares: expected 0 or"));
  CHECK(refusal({"--hosts=a,b", "--rdzv-endpoint=a,b"}).starts_with("--rdzv-endpoint: expected one HOST"));
}
