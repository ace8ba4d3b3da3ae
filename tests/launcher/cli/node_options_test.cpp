#include "launcher/cli/node_options.h"

#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include "launcher/cli/options.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using test::ContainsSubstring;
using Variables = std::map<std::string, std::string>;
using Words = std::vector<std::string>;

/// The flags before a program, with these variables and no others.
Options parse_nodes(Words flags, const Variables& variables = {}) {
  flags.push_back("prog");
  return parse_options(flags, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

/// Two nodes that meet at an endpoint.
Options parse_dynamic(const Words& flags, const Variables& variables = {}) {
  Words all{"--nnodes=2", "--rdzv-endpoint=node1"};
  all.insert(all.end(), flags.begin(), flags.end());
  return parse_nodes(all, variables);
}

TEST_CASE("without flags there is one node", "[node_options]") {
  const Options options = parse_nodes({});
  CHECK_FALSE(options.nodes.several());
  CHECK(options.nodes.min_nodes == 1);
  CHECK_FALSE(options.nodes.node_rank);
  CHECK(options.notes.empty());
}

TEST_CASE("the number of nodes may be fixed or a range", "[node_options]") {
  const auto [text, low, high] = GENERATE(table<std::string, int, int>(
      {{"2", 2, 2}, {"2:2", 2, 2}, {"1:2", 1, 2}, {"100000", 100000, 100000}, {"1:100000", 1, 100000}}));
  for (const Options& options : {parse_nodes({"--nnodes=" + text, "--rdzv-endpoint=a"}),
                                 parse_nodes({}, {{"PET_NNODES", text}, {"PET_RDZV_ENDPOINT", "a"}})}) {
    CHECK(options.nodes.several());
    CHECK(options.nodes.min_nodes == low);
    CHECK(options.nodes.max_nodes == high);
  }
}

TEST_CASE("an invalid number of nodes is refused", "[node_options]") {
  const std::string text = GENERATE(values<std::string>(
      {"0", "-1", "a", "2:1", "0:2", "1:2:3", "1:", ":2", ":", "2x", "1.5", " 2", "100001", "1:100001"}));
  CHECK_THROWS_WITH(
      parse_nodes({"--nnodes=" + text, "--rdzv-endpoint=a"}),
      ContainsSubstring("--nnodes: expected N or MIN:MAX with 1 <= MIN <= MAX <= 100000, got '" + text));
}

TEST_CASE("the wildcard address is refused as a meeting place", "[node_options]") {
  for (const char* endpoint : {"0.0.0.0:29400", "[::]:29400", "::"})
    CHECK_THROWS_WITH(parse_nodes({"--nnodes=2", std::string("--rdzv-endpoint=") + endpoint}),
                      ContainsSubstring("--rdzv-endpoint: expected a host's name or an address of one host"));
}

TEST_CASE("a token on the command line is refused and not shown", "[node_options]") {
  try {
    parse_dynamic({"--token=s3cret"});
    FAIL("the token was taken");
  } catch (const UsageError& error) {
    CHECK_THAT(error.what(), ContainsSubstring("unknown flag '--token'"));
    CHECK_THAT(error.what(), !ContainsSubstring("s3cret"));
  }
}

TEST_CASE("nodes that meet at an endpoint have the ranks that they get", "[node_options]") {
  const Options options = parse_nodes({"--nnodes=2", "--rdzv-endpoint=node1"});
  CHECK(options.nodes.endpoint == Endpoint{"node1", 29400});
  CHECK_FALSE(options.nodes.is_host);
  CHECK_FALSE(options.nodes.node_rank);
  CHECK(options.run_id == "none");
  CHECK_FALSE(options.master_port);
  const Options more =
      parse_nodes({"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=[::1]:7", "--node-rank=1",
                   "--rdzv-id=job", "--master-port=29600", "--local-addr=[::1]"});
  CHECK(more.nodes.endpoint == Endpoint{"::1", 7});
  CHECK(more.nodes.node_rank == 1);
  CHECK_FALSE(more.nodes.is_host);
  CHECK(more.run_id == "job");
  CHECK(more.master_port == 29600);
  CHECK(more.nodes.local_addr == "::1");
  CHECK(more.notes.empty());
}

TEST_CASE("nodes that meet at node rank 0 know who that is", "[node_options]") {
  const Options first = parse_nodes({"--nnodes=2", "--node-rank=0", "--master-addr=node1"});
  CHECK(first.nodes.endpoint == Endpoint{"node1", 29500});
  CHECK(first.nodes.is_host == true);
  CHECK(first.nodes.node_rank == 0);
  CHECK(first.master_port == 29500);  // the workers', as in torchrun
  CHECK(first.nodes.port_is_workers);
  CHECK(first.run_id == "none");
  const Options second = parse_nodes(
      {"--nnodes=2", "--node-rank=1", "--master-addr=[::1]", "--master-port=7", "--rdzv-backend=static"});
  CHECK(second.nodes.endpoint == Endpoint{"::1", 7});
  CHECK(second.nodes.is_host == false);
  CHECK(second.master_port == 7);
  const Options elastic = parse_nodes({"--nnodes=1:2", "--node-rank=0", "--master-addr=node1"});
  CHECK_FALSE(elastic.master_port);  // nodes may join at the port while the workers run
  CHECK_FALSE(elastic.nodes.port_is_workers);
}

TEST_CASE("a static endpoint is the address and port of node rank 0", "[node_options]") {
  const Words words{"--nnodes=2", "--rdzv-backend=static", "--node-rank=0"};
  const auto endpoint = [&](Words more) {
    more.insert(more.begin(), words.begin(), words.end());
    const Options options = parse_nodes(more);
    CHECK(options.nodes.is_host == true);
    CHECK(options.master_port == options.nodes.endpoint.port);
    return to_string(options.nodes.endpoint);
  };
  CHECK(endpoint({"--rdzv-endpoint=a"}) == "a:29500");
  CHECK(endpoint({"--rdzv-endpoint=a", "--master-port=7"}) == "a:7");
  CHECK(endpoint({"--rdzv-endpoint=a:7", "--master-port=7", "--master-addr=a"}) == "a:7");
  CHECK_THROWS_WITH(
      endpoint({"--rdzv-endpoint=a:7", "--master-port=8"}),
      ContainsSubstring("--master-port: expected the port of --rdzv-endpoint, 7, or none, got '8'"));
}

TEST_CASE("several nodes need to be told where they meet", "[node_options]") {
  const auto [flags, message] = GENERATE(table<Words, std::string>({
      {Words{},
       "--nnodes: several nodes need --rdzv-endpoint=HOST[:PORT], or --master-addr=HOST with --node-rank; "
       "got neither"},
      {{"--node-rank=1"},
       "--nnodes: several nodes need --rdzv-endpoint=HOST[:PORT], or --master-addr=HOST with --node-rank; "
       "got only --node-rank"},
      {{"--rdzv-backend=c10d", "--rdzv-endpoint=/shared/file", "--rdzv-conf=store_type=file"},
       "--rdzv-conf: store_type=file is not supported; use --rdzv-endpoint=HOST:PORT, where the nodes meet"},
      {{"--rdzv-backend=static"}, "--nnodes: several nodes need --rdzv-endpoint"},
      {{"--rdzv-backend=c10d"}, "--rdzv-backend: expected --rdzv-endpoint=HOST:PORT with c10d, got none"},
      {{"--rdzv-backend=c10d", "--master-addr=a"}, "--rdzv-backend: expected --rdzv-endpoint=HOST:PORT with"},
      {{"--master-addr=a", "--spares=1"},
       "--spares: expected 0, or --rdzv-backend=c10d with --rdzv-endpoint, where no node needs a rank, got "
       "'1'"},
      {{"--rdzv-endpoint=a:1,a:1"}, "or several different ones, separated by commas, got 'a:1,a:1'"},
      {{"--master-addr=a"}, "--master-addr: expected --node-rank as well, from 0 to 1, got none"},
      {{"--rdzv-backend=static", "--rdzv-endpoint=a"},
       "--rdzv-backend: expected --node-rank as well, from 0"},
      {{"--master-addr=a:1", "--node-rank=0"}, "--master-addr: expected a host's name or address, got 'a:1'"},
      {{"--rdzv-endpoint=a:0"},
       "--rdzv-endpoint: expected HOST, HOST:PORT or [IPV6]:PORT with a port from 1"},
      {{"--rdzv-endpoint=a", "--master-addr=b"},
       "--rdzv-endpoint: expected the host of --master-addr, 'b', or only one of the two flags, got 'a'"},
      {{"--rdzv-endpoint=a", "--rdzv-backend=zeus"},
       "--rdzv-backend: expected c10d, static or etcd, got 'zeus'"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=a", "--hosts=b,c"},
       "--rdzv-backend: expected no etcd with --hosts, where all nodes end when the first one ends, got "
       "'etcd'"},
      {{"--rdzv-backend=etcd"},
       "--rdzv-backend: expected etcd's address as well (--rdzv-endpoint=HOST[:PORT]), got"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=a", "--master-addr=a"},
       "--master-addr: expected no address with --rdzv-backend=etcd"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=ftp://a"},
       "--rdzv-endpoint: expected etcd's [http[s]://]HOST[:PORT], or several different ones of one cluster"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=http://a,https://b"}, "--rdzv-endpoint: expected etcd's"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=https://a", "--rdzv-conf=protocol=http"},
       "--rdzv-conf: expected protocol=https as in --rdzv-endpoint, or none, got"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=a", "--rdzv-conf=protocol=grpc"},
       "--rdzv-conf: protocol: expected http or https, got 'grpc'"},
      {{"--rdzv-backend=etcd", "--rdzv-endpoint=a", "--rdzv-conf=cacert=/nowhere/ca"},
       "--rdzv-conf: cacert: /nowhere/ca: "},
      {{"--rdzv-endpoint=a", "--node-rank=2"},
       "--node-rank: expected a number from 0 to 1 (--nnodes=2), got"},
      {{"--rdzv-endpoint=a", "--node-rank=-1"}, "--node-rank: expected a number from 0 to 1"},
      {{"--rdzv-endpoint=a", "--local-addr=a:1"},
       "--local-addr: expected a host's name or address, got 'a:1'"},
      {{"--rdzv-endpoint=a", "--master-port=0"}, "--master-port: expected a port from 1 to 65535, got '0'"},
  }));
  Words all{"--nnodes=2"};
  all.insert(all.end(), flags.begin(), flags.end());
  CHECK_THROWS_WITH(parse_nodes(all), ContainsSubstring(message));
}

TEST_CASE("one node says so when it is given what several need", "[node_options]") {
  const auto [flag, expected] = GENERATE(table<std::string, std::string>(
      {{"--node-rank=1", "--node-rank: expected 0 for one node (set --nnodes for more), got '1'"},
       {"--master-addr=other.example",
        "this host's name for one node (set --nnodes for more), got 'other.ex"},
       {"--rdzv-endpoint=other.example:1", "this host's name for one node (set --nnodes for more), got"}}));
  CHECK_THROWS_WITH(parse_nodes({flag}), ContainsSubstring(expected));
}

NodesOptions parse_etcd(Words flags, Variables variables = {}) {
  flags.insert(flags.end(), {"--nnodes=2", "--rdzv-backend=etcd"});
  return parse_nodes(flags, variables).nodes;
}

TEST_CASE("etcd's endpoints are read with and without a scheme", "[node_options]") {
  const auto plain = parse_etcd({"--rdzv-endpoint=a,b:1,[::1]:2", "--node-timeout=4"});
  REQUIRE(plain.etcd);
  CHECK(plain.etcd->endpoints == std::vector<Endpoint>{{"a", 2379}, {"b", 1}, {"::1", 2}});
  CHECK_FALSE(plain.etcd->tls);
  CHECK(plain.etcd->prefix == "/ddprun");
  CHECK(plain.etcd->timeout == 1s);
  CHECK(plain.successors.empty());
  CHECK(describe(*plain.etcd) == "etcd at http://a:2379,b:1,[::1]:2");
  CHECK(parse_etcd({"--rdzv-endpoint=https://a:1/"}).etcd->tls);
  CHECK(parse_etcd({"--rdzv-endpoint=a", "--rdzv-conf=protocol=https"}).etcd->tls);
  CHECK(parse_etcd({"--rdzv-endpoint=http://a", "--rdzv-conf=etcd_prefix=/x/"}).etcd->prefix == "/x");
  CHECK(parse_nodes({"--nnodes=2", "--rdzv-backend=etcd-v2", "--rdzv-endpoint=a"}).nodes.etcd);
  CHECK_FALSE(parse_dynamic({}).nodes.etcd);
}

TEST_CASE("etcd's user and files come from etcdctl's variables, unless --rdzv-conf names files",
          "[node_options]") {
  const TempDir dir;
  const auto ca = (dir.path() / "ca").string(), other = (dir.path() / "other").string();
  for (const std::string& path : {ca, other}) write_file_atomic(path, "");
  const Variables variables{{"ETCDCTL_USER", "me:a:b"}, {"ETCDCTL_CACERT", ca}, {"ETCDCTL_CERT", other}};
  const auto etcd = *parse_etcd({"--rdzv-endpoint=a"}, variables).etcd;
  CHECK(etcd.user == "me");
  CHECK(etcd.password == "a:b");
  REQUIRE(etcd.tls);  // without a scheme the files ask for it
  CHECK(etcd.tls->authorities == ca);
  CHECK(etcd.tls->certificate == other);
  CHECK_FALSE(parse_etcd({"--rdzv-endpoint=http://a"}, variables).etcd->tls);
  for (const char* key : {"cacert=", "ca_cert="}) {
    const auto given =
        parse_etcd({"--rdzv-endpoint=a", std::string("--rdzv-conf=") + key + other}, variables);
    CHECK(given.etcd->tls->authorities == other);
  }
  CHECK(parse_etcd({"--rdzv-endpoint=a"}, {{"ETCDCTL_USER", "me"}, {"ETCDCTL_PASSWORD", "word"}})
            .etcd->password == "word");
  CHECK_THROWS_WITH(parse_etcd({"--rdzv-endpoint=a"}, {{"ETCDCTL_KEY", "/nowhere/key"}}),
                    ContainsSubstring("ETCDCTL_KEY: /nowhere/key: "));
}

TEST_CASE("one node needs no etcd, and says so", "[node_options]") {
  const Options options = parse_nodes({"--rdzv-backend=etcd", "--rdzv-endpoint=other.example:2379"});
  CHECK(options.nodes.endpoint.host.empty());  // which would be MASTER_ADDR
  REQUIRE(options.notes.size() == 1);
  CHECK(options.notes[0] == "--rdzv-backend: etcd is not used on a single node");
}

TEST_CASE("with --standalone there is one node whatever else is said", "[node_options]") {
  const Options options =
      parse_nodes({"--standalone", "--nnodes=2", "--rdzv-endpoint=other.example:1", "--rdzv-backend=etcd"});
  CHECK_FALSE(options.nodes.several());
  REQUIRE(options.notes.size() == 1);
  CHECK(options.notes[0] == "--nnodes has no effect: --standalone means one node");
  CHECK(parse_nodes({"--standalone", "--nnodes=1:1"}).notes.empty());
  CHECK_THROWS_AS(parse_nodes({"--standalone", "--nnodes=x"}), UsageError);
}

TEST_CASE("times are read, within limits", "[node_options]") {
  const NodesOptions standard = parse_dynamic({}).nodes;
  CHECK(standard.join_timeout == 600s);
  CHECK(standard.last_call == 30s);
  CHECK(standard.node_timeout == 10s);
  const NodesOptions nodes = parse_dynamic({"--join-timeout=5", "--last-call=0", "--node-timeout=1.5"}).nodes;
  CHECK(nodes.join_timeout == 5s);
  CHECK(nodes.last_call == 0s);
  CHECK(nodes.node_timeout == 1500ms);
  CHECK(parse_dynamic({}, {{"DDPRUN_NODE_TIMEOUT", "3"}}).nodes.node_timeout == 3s);
  for (const char* flag : {"--join-timeout=0", "--node-timeout=0.5", "--join-timeout=x", "--last-call=-1"}) {
    CHECK_THROWS_WITH(parse_dynamic({flag}), ContainsSubstring(": expected seconds from "));
    CHECK_THROWS_AS(parse_nodes({flag}), UsageError);  // of one node, too
  }
}

TEST_CASE("torchrun's settings of a rendezvous have their meaning", "[node_options]") {
  const auto conf = [](const std::string& text, const Words& more = {}) {
    Words flags{"--rdzv-conf=" + text};
    flags.insert(flags.end(), more.begin(), more.end());
    return parse_dynamic(flags).nodes;
  };
  CHECK(conf("join_timeout=5").join_timeout == 5s);
  CHECK(conf("timeout=6").join_timeout == 6s);
  CHECK(conf("join_timeout=5,timeout=6").join_timeout == 5s);
  CHECK(conf("join_timeout=5", {"--join-timeout=7"}).join_timeout == 7s);
  CHECK(conf("last_call_timeout=2").last_call == 2s);
  CHECK(conf("keep_alive_interval=2").node_timeout == 6s);
  CHECK(conf("keep_alive_max_attempt=2").node_timeout == 10s);
  CHECK(conf("keep_alive_interval=1,keep_alive_max_attempt=4").node_timeout == 4s);
  CHECK(conf("is_host=1").is_host == true);
  CHECK(conf("is_host=False").is_host == false);
  CHECK(conf("").join_timeout == 600s);
  CHECK(conf(" 'timeout=6, last_call_timeout = 2 ' ").join_timeout == 6s);
  CHECK(conf("\"timeout=6, last_call_timeout = 2\"").last_call == 2s);
}

TEST_CASE("settings of a rendezvous that change nothing here are noted", "[node_options]") {
  const Options options = parse_dynamic(
      {"--rdzv-conf=read_timeout=60,store_type=tcp,join_timeout=5,cas_backoff_max_seconds=2,speed=9"});
  REQUIRE(options.notes.size() == 4);
  CHECK_THAT(options.notes[2], ContainsSubstring("cas_backoff_max_seconds has no effect: the nodes have no"));
  CHECK_THAT(options.notes[3],
             ContainsSubstring("--rdzv-conf: speed has no effect: expected timeout, join_tim"));
  CHECK(options.notes[0] == "--rdzv-conf: read_timeout has no effect: the nodes have no store between them");
  CHECK_THAT(options.notes[1], ContainsSubstring("store_type"));
}

TEST_CASE("a wrong setting of a rendezvous is named", "[node_options]") {
  const auto [text, message] = GENERATE(table<std::string, std::string>({
      {"join", "expected KEY=VALUE,KEY=VALUE,..., got 'join'"},
      {"=5", "expected KEY=VALUE,"},
      {"timeout=", "expected KEY=VALUE,"},
      {"timeout=5,", "expected KEY=VALUE,"},
      {"timeout=5,,", "expected KEY=VALUE,"},
      {"timeout=soon", "timeout: expected seconds from 1 to 1000000, such as 30 or 1.5, got 'soon'"},
      {"join_timeout=0", "join_timeout: expected seconds from 1 to 1000000"},
      {"last_call_timeout=-1", "last_call_timeout: expected seconds from 0 to 1000000"},
      {"is_host=maybe", "is_host: expected true or false"},
      {"keep_alive_interval=0.1",
       "expected 1 to 1000000 seconds for keep_alive_interval times keep_alive_max"},
      {"keep_alive_interval=1000000,keep_alive_max_attempt=1000000",
       "expected 1 to 1000000 seconds for keep"},
      {"keep_alive_max_attempt=x", "keep_alive_max_attempt: expected an integer from 0 to 1000000"},
  }));
  CHECK_THROWS_WITH(parse_dynamic({"--rdzv-conf=" + text}), ContainsSubstring("--rdzv-conf: " + message));
}

TEST_CASE("of nodes that meet at node rank 0 no other can be the host", "[node_options]") {
  const Words words{"--nnodes=2", "--master-addr=a", "--node-rank=1"};
  Words right = words, wrong = words;
  right.push_back("--rdzv-conf=is_host=0");
  wrong.push_back("--rdzv-conf=is_host=1");
  CHECK(parse_nodes(right).nodes.is_host == false);
  CHECK_THROWS_WITH(parse_nodes(wrong),
                    ContainsSubstring("expected is_host=false on node rank 1, got 'is_host=1'"));
}

/// A file of this mode in a folder that is gone with it.
class TokenFile {
 public:
  explicit TokenFile(const std::string& text, std::filesystem::perms mode = std::filesystem::perms(0600)) {
    write_file_atomic(path(), text);
    std::filesystem::permissions(path(), mode);
  }
  std::filesystem::path path() const { return folder_.path() / "token"; }
  std::string flag() const { return "--token-file=" + path().string(); }

 private:
  TempDir folder_;
};

TEST_CASE("one node notes what only several need", "[node_options]") {
  const TokenFile token("secret");
  const Options options = parse_nodes({"--local-addr=a", "--rdzv-conf=x=1", "--join-timeout=5",
                                       "--last-call=5", "--node-timeout=5", token.flag()});
  REQUIRE(options.notes.size() == 6);
  CHECK(options.notes[0] == "--local-addr has no effect on a single node");
  CHECK(options.nodes.token.empty());
  CHECK_THROWS_AS(parse_nodes({"--token-file=/no/such/file"}), IoError);
  CHECK_THROWS_AS(parse_nodes({"--token-file=/no/such/file", "--metrics-port=0"}), IoError);
  CHECK_THROWS_WITH(parse_nodes({"--rdzv-conf=x"}), ContainsSubstring("--rdzv-conf: expected KEY=VALUE"));
  CHECK(parse_nodes({"--rdzv-conf=store_type=file", "--rdzv-endpoint=/tmp/x"}).notes.size() == 1);
}

TEST_CASE("one node keeps the name that the user gave it", "[node_options]") {
  CHECK(parse_nodes({"--master-addr=127.0.0.2"}).nodes.endpoint.host == "127.0.0.2");
  CHECK(parse_nodes({"--rdzv-endpoint=127.0.0.2:0"}).nodes.endpoint.host.empty());
  CHECK(parse_nodes({"--rdzv-endpoint=127.0.0.2:7"}).nodes.endpoint.host == "127.0.0.2");
  CHECK(parse_nodes({"--master-addr=localhost"}).nodes.endpoint.host.empty());
  // A name to ddprun, which the system looks up as 127.0.0.1.
  CHECK(parse_nodes({"--master-addr=0x7f000001"}).nodes.endpoint.host == "0x7f000001");
  CHECK(parse_nodes({"--standalone", "--rdzv-endpoint=127.0.0.2:7"}).nodes.endpoint.host.empty());
}

TEST_CASE("the token comes from a file or a variable, without white space around it", "[node_options]") {
  CHECK(parse_dynamic({}).nodes.token.empty());
  CHECK(parse_dynamic({}, {{"DDPRUN_TOKEN", " abc\n"}}).nodes.token == "abc");
  CHECK(parse_dynamic({}, {{"DDPRUN_TOKEN", ""}}).nodes.token.empty());
  const TokenFile file("\n a b\t\r\n", std::filesystem::perms(0400));
  CHECK(parse_dynamic({file.flag()}).nodes.token == "a b");
  CHECK(parse_dynamic({file.flag()}, {{"DDPRUN_TOKEN", "abc"}}).nodes.token == "a b");
  CHECK(parse_dynamic({}, {{"DDPRUN_TOKEN_FILE", file.path()}}).nodes.token == "a b");
  CHECK_FALSE(parse_dynamic({file.flag()}).nodes.token_is_derived);
  CHECK(parse_dynamic({TokenFile(std::string(4096, 'x')).flag()}).nodes.token == std::string(4096, 'x'));
}

TEST_CASE("a token that cannot be one is refused", "[node_options]") {
  const auto message = [](const TokenFile& file) {
    try {
      parse_dynamic({file.flag()});
    } catch (const UsageError& error) {
      return std::string(error.what());
    } catch (const IoError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  CHECK_THAT(message(TokenFile(" \n")), ContainsSubstring("--token-file: expected a token, got nothing but"));
  CHECK_THAT(message(TokenFile("")), ContainsSubstring("got nothing but white space in '"));
  CHECK_THAT(message(TokenFile(std::string(4097, 'x'))), ContainsSubstring("larger than 4096 bytes"));
  for (const int mode : {0640, 0604, 0610, 0602})
    CHECK_THAT(message(TokenFile("secret", std::filesystem::perms(mode))),
               ContainsSubstring("--token-file: '") && ContainsSubstring("' has mode 06") &&
                   ContainsSubstring("run chmod 600") && !ContainsSubstring("secret"));
  CHECK_THROWS_WITH(parse_dynamic({}, {{"DDPRUN_TOKEN", " \n"}}),
                    ContainsSubstring("DDPRUN_TOKEN: expected a token, got nothing but white space"));
  CHECK_THROWS_AS(parse_dynamic({"--token-file=/no/such/file"}), IoError);
  CHECK_THROWS_AS(parse_dynamic({"--token-file=/tmp"}), IoError);
}

}  // namespace
}  // namespace ddprun::launcher
