#include "launcher/cli/options.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/text.h>
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using Kind = WorkersWanted::Kind;
using Words = std::vector<std::string>;

/// No variable is set.
std::optional<std::string> nothing_set(const std::string&) { return std::nullopt; }

Options parse_all(const Words& words) { return parse_options(words, nothing_set); }

/// The flags before a program.
Options parse(Words flags) {
  flags.push_back("prog");
  return parse_all(flags);
}

/// Without flags, but with these variables.
Options parse_variables(const std::map<std::string, std::string>& variables, const Words& words = {"prog"}) {
  return parse_options(words, [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

TEST_CASE("without restarts or spares --recover=rank has no effect", "[options]") {
  const std::string no_effect = "--recover=rank has no effect without --max-restarts";
  CHECK(parse({"--recover=rank"}).notes == Words{no_effect});
  const auto notes = parse({"--recover=rank", "--spares=1"}).notes;
  CHECK(std::count(notes.begin(), notes.end(), no_effect) == 1);
  CHECK(parse({"--recover=rank", "--nnodes=2", "--spares=1", "--rdzv-endpoint=node0"}).notes.empty());
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

TEST_CASE("the number of workers may be cpu, gpu, xpu or auto", "[options]") {
  CHECK(parse({"--nproc-per-node=cpu"}).nproc_per_node.kind == Kind::kCpu);
  CHECK(parse({"--nproc-per-node=gpu"}).nproc_per_node.kind == Kind::kGpu);
  CHECK(parse({"--nproc-per-node=xpu"}).nproc_per_node.kind == Kind::kXpu);
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
  char own[256] = "";
  REQUIRE(::gethostname(own, sizeof own - 1) == 0);
  CHECK_NOTHROW(parse({"--master-addr", own, "--rdzv-endpoint", std::string(own) + ":29500"}));
  CHECK_NOTHROW(parse({"--standalone", "--rdzv-endpoint=another-host:1", "--rdzv-backend=etcd"}));
}

TEST_CASE("values that scripts leave empty are none", "[options]") {
  CHECK(parse({"--rdzv-id=", "--local-ranks-filter=", "--role", ""}).role == "default");
  CHECK(parse({"--rdzv-id=a", "--rdzv-id="}).run_id.empty());
  CHECK(parse_variables({{"PET_RDZV_ID", "a"}}, {"--rdzv-id=", "prog"}).run_id.empty());
  CHECK(parse_variables({{"PET_RDZV_ID", "a"}, {"DDPRUN_RDZV_ID", ""}}).run_id == "a");
  CHECK_THROWS_AS(parse({"--log-dir="}), UsageError);
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
                                                                       {"--nnodes", "0"},
                                                                       {"--nnodes", "2:1"},
                                                                       {"--nnodes", "1:2:3"},
                                                                       {"--nnodes", "a"},
                                                                       {"--node-rank", "1"},
                                                                       {"--max-restarts", "-1"},
                                                                       {"--master-port", "0"},
                                                                       {"--master-port", "65536"},
                                                                       {"--master-port", "abc"},
                                                                       {"--master-addr", "other.example"},
                                                                       {"--master-addr", "10.255.255.254"},
                                                                       {"--rdzv-backend", "zeus"},
                                                                       {"--rdzv-endpoint", "host:29500"},
                                                                       {"--rdzv-endpoint", ":1"},
                                                                       {"--rdzv-endpoint", "localhost:x"},
                                                                       {"--rdzv-endpoint", "localhost:65536"},
                                                                       {"--shutdown-timeout", "-1"},
                                                                       {"--shutdown-timeout", "soon"},
                                                                       {"--shutdown-timeout", "nan"},
                                                                       {"--shutdown-timeout", "1e9"},
                                                                       {"--timeout", "1h"},
                                                                       {"--timeout", "0"},
                                                                       {"--hang-timeout", "0"},
                                                                       {"--restart-window", "0"},
                                                                       {"--hang-timeout", "-0.5"},
                                                                       {"--restart-backoff", "x"},
                                                                       {"--restart-window", "x"},
                                                                       {"--log-max-size", "0"},
                                                                       {"--log-max-size", "5X"},
                                                                       {"--log-max-size", "9999999999999G"},
                                                                       {"--numa-binding", "near"},
                                                                       {"--signals-to-handle", "SIGFOO"},
                                                                       {"--signals-to-handle", "SIGKILL"},
                                                                       {"--forward-signals", "SIGUSR1,"}}));
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
  CHECK_THROWS_WITH(parse({"-np", "2"}), "unknown flag '-np': did you mean --nproc-per-node?");
  for (const char* flag : {"--nprocs-per-node=2", "-n", "-np", "--nprocs=2"})
    CHECK_THROWS_WITH(parse({flag, "2"}), ContainsSubstring("did you mean --nproc-per-node?"));
  CHECK_THROWS_AS(parse({"--nproc-per-node="}), UsageError);
  CHECK_THROWS_AS(parse({"--standalone=maybe"}), UsageError);
  CHECK_THROWS_AS(parse_all({"--nproc-per-node"}), UsageError);
  CHECK_THROWS_WITH(parse_all({}), ContainsSubstring("no program given"));
  CHECK_THROWS_WITH(parse_all({"--standalone"}), ContainsSubstring("no program given"));
  CHECK_THROWS_WITH(parse_all({"--"}), ContainsSubstring("no program given"));
}

TEST_CASE("variables that only look like ddprun's are named", "[options]") {
  CHECK(unknown_variables({"DDPRUN_NPROC_PER_NODE=2", "DDPRUN_NO_PREFIX=1", "DDPRUN_TOKEN=x",
                           "DDPRUN_DATA=/d", "DDPRUN_TEST_PYTHON=p", "PATH=/bin", "PET_NOPE=1"})
            .empty());
  CHECK(unknown_variables({"DDPRUN_NPROC=2", "DDPRUN_X=3", "PATH=/bin"}) ==
        Words{"DDPRUN_NPROC: did you mean DDPRUN_NPROC_PER_NODE?", "DDPRUN_X"});
  CHECK(
      unknown_variables({"DDPRUN_NPROC=2", "DDPRUN_JOB_ID=outer"}).empty());  // the outer ddprun has named it
}

TEST_CASE("everything from the program on is the program's", "[options]") {
  const Words program = {"prog", "--nproc-per-node=7", "--",   "",   "--nope",
                         "$$",   "${local_rank}",      "\xff", "a b"};
  Words plain = {"--nproc-per-node", "2"};
  Words dashed = {"--nproc-per-node", "2", "--"};
  for (Words* words : {&plain, &dashed}) {
    words->insert(words->end(), program.begin(), program.end());
    const Options options = parse_all(*words);
    CHECK(options.program == program);
    CHECK(options.nproc_per_node.count == 2);
  }
  CHECK(parse_all({"--", "--odd-name", "x"}).program == Words{"--odd-name", "x"});
  CHECK(parse_all({"-", "x"}).program == Words{"-", "x"});
}

TEST_CASE("help and version need no program and no other flag to be right", "[options]") {
  CHECK(parse_all({"--help"}).help);
  CHECK(parse_all({"-h"}).help);
  CHECK(parse_all({"--version"}).version);
  CHECK(parse_all({"--nproc-per-node=foo", "--help"}).help);
}

TEST_CASE("only the command line asks for the help, the version or a dry run", "[options]") {
  // Container files often have a variable for the version of a program.
  for (const char* value : {"1", "0.1.0", "bash"}) {
    const auto environment = [&](const std::string& name) -> std::optional<std::string> {
      if (name == "DDPRUN_VERSION" || name == "DDPRUN_HELP" || name == "PET_VERSION" ||
          name == "DDPRUN_DRY_RUN" || name == "DDPRUN_PRINT_COMPLETION")
        return value;
      return {};
    };
    const Options options = parse_options({"a.py"}, environment);
    CHECK_FALSE(options.help);
    CHECK_FALSE(options.version);
    CHECK_FALSE(options.dry_run);
    CHECK(options.completion.empty());
    CHECK(parse_options({"--version"}, environment).version);
  }
  CHECK(unknown_variables({"DDPRUN_VERSION=0.1.0", "DDPRUN_HELP=1"}).empty());
}

TEST_CASE("a launcher's flag after a script is hinted at", "[options]") {
  const auto notes = [](const Words& words) { return parse_all(words).notes; };
  CHECK(
      notes({"a.py", "--lr=1", "--nproc_per_node=2", "--nnodes=1"}) ==
      Words{
          "--nproc_per_node=2 comes after a.py, so it goes to that program; ddprun's flags come before it"});
  CHECK(notes({"-m", "a.b", "--max-restarts", "2"}).size() == 1);
  CHECK(notes({"--max-restarts=1", "a.py", "--max-restarts=2"}).empty());  // both have it
  CHECK(notes({"a.py", "--log-dir=x", "--timeout=1", "--nproc"}).empty());
  CHECK(notes({"-m", "torch.distributed.run", "--nproc-per-node=2", "a.py"}).empty());
  CHECK(notes({"torchrun", "--nproc-per-node=2", "a.py"}).empty());
}

TEST_CASE("a script whose arguments begin with one of ddprun's flags is remembered", "[options]") {
  const auto flag = [](const Words& words) { return parse_all(words).misplaced_flag; };
  CHECK(flag({"a.py", "--log_dir=x", "--lr=1"}) == "--log-dir");
  CHECK(flag({"-m", "a.b", "--no-prefix"}) == "--no-prefix");
  CHECK(flag({"a.py", "--lr=1", "--log-dir=x"}).empty());
  CHECK(flag({"a.py", "--program"}).empty());
  CHECK(flag({"a.py"}).empty());
  CHECK(flag({"a.py", "--nnodes=1"}).empty());  // a line at the start says so
  CHECK(flag({"./launch", "--log-dir=x"}).empty());
}

TEST_CASE("the help names every flag in lines of 80 columns", "[options]") {
  const std::string text = help_text();
  Options options;
  for (const auto& setting : make_command(options).settings)
    if (setting.is_flag) CHECK_THAT(text, ContainsSubstring(setting.flag()));
  for (const auto& line : split(text, '\n')) CHECK(line.size() <= 80);
}

TEST_CASE("no line of the help describes two flags", "[options]") {
  for (const auto& line : split(help_text(), '\n')) {
    if (!line.starts_with("  -")) continue;
    const std::string names = line.substr(0, line.find("  ", 2));  // "-h, --help" is one flag
    CAPTURE(line);
    CHECK(names.find("--") == names.rfind("--"));
  }
}

TEST_CASE("an unambiguous beginning of a flag's name will do", "[options]") {
  CHECK(parse({"--redirect=3"}).output.redirects == parse_stream_selection("3"));
  CHECK(parse({"--nproc=2"}).nproc_per_node.count == 2);
  CHECK_THROWS_WITH(parse({"--rdzv-e"}), ContainsSubstring("--rdzv-endpoint: expected"));
  CHECK_THROWS_WITH(
      parse({"--rdzv=x"}),
      ContainsSubstring("did you mean --rdzv-backend, --rdzv-endpoint, --rdzv-id or --rdzv-conf?"));
}

TEST_CASE("what workers have imported is a list of modules and files", "[options]") {
  using Words = std::vector<std::string>;
  const auto modules = [](const std::string& list) {
    return parse_all({"--preload=" + list, "a.py"}).preload;
  };
  CHECK(modules("torch,a.b_2,warm/up-1.py") == Words{"torch", "a.b_2", "warm/up-1.py"});
  CHECK(modules("").empty());
  for (const char* wrong : {"torch,", "a..b", "a-b", "torch vision", "/x"})
    CHECK_THROWS_WITH(modules(wrong), ContainsSubstring("--preload: expected names of Python modules"));
  CHECK(parse_variables({{"DDPRUN_PRELOAD", "torch"}}, {"a.py"}).preload == Words{"torch"});
  CHECK(parse_all({"--preload=torch", "-m", "a"}).preload == Words{"torch"});
  CHECK_THROWS_WITH(
      parse_variables({{"DDPRUN_PRELOAD", "torch"}}, {"ls"}),
      ContainsSubstring("DDPRUN_PRELOAD: expected a Python program") && ContainsSubstring("'ls'"));
  const Options unused = parse_all({"--preload=torch", "--no-python", "a.py"});
  CHECK(unused.preload.empty());
  CHECK(unused.notes.size() == 1);
}

TEST_CASE("short flags take their value with or without a space", "[options]") {
  CHECK(parse({"-r", "3"}).output.redirects == parse_stream_selection("3"));
  CHECK(parse({"-r3"}).output.redirects == parse_stream_selection("3"));
  CHECK(parse({"-t=0:1,1:2"}).output.tee == parse_stream_selection("0:1,1:2"));
  CHECK(parse({"-m"}).program_kind == ProgramKind::kPythonModule);
}

TEST_CASE("variables give flags, DDPRUN_ before PET_, and the command line wins", "[options]") {
  CHECK(parse_variables({{"PET_NPROC_PER_NODE", "3"}}).nproc_per_node.count == 3);
  CHECK(parse_variables({{"PET_NPROC_PER_NODE", "3"}, {"DDPRUN_NPROC_PER_NODE", "4"}}).nproc_per_node.count ==
        4);
  CHECK(parse_variables({{"DDPRUN_NPROC_PER_NODE", "4"}}, {"--nproc-per-node=5", "prog"})
            .nproc_per_node.count == 5);
  CHECK(parse_variables({{"DDPRUN_TIMEOUT", "2"}}).timeout == std::chrono::seconds(2));
  CHECK_FALSE(parse_variables({{"PET_TIMEOUT", "2"}}).timeout);  // not torchrun's
  CHECK(parse_variables({{"PET_MODULE", "1"}}).program_kind == ProgramKind::kPythonModule);
  CHECK(parse_variables({{"PET_MODULE", "0"}}).program_kind == ProgramKind::kExecutable);
  CHECK(parse_variables({{"PET_ROLE", ""}}).role == "default");
}

TEST_CASE("torchrun's variables of other names count where nothing else is given", "[options]") {
  const char* timeout = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  const char* prefix = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE";
  CHECK(parse_variables({{timeout, "5"}}).shutdown_timeout == std::chrono::seconds(5));
  CHECK(parse_variables({{timeout, ""}}).shutdown_timeout == std::chrono::seconds(30));
  CHECK(parse_variables({{timeout, "5"}, {"PET_SHUTDOWN_TIMEOUT", "6"}}).shutdown_timeout ==
        std::chrono::seconds(6));
  CHECK(parse_variables({{timeout, "5"}, {"PET_SHUTDOWN_TIMEOUT", "6"}}, {"--shutdown_timeout=7", "prog"})
            .shutdown_timeout == std::chrono::seconds(7));
  CHECK_THROWS_WITH(parse_variables({{timeout, "soon"}}),
                    ContainsSubstring("TORCH_ELASTIC_SHUTDOWN_TIMEOUT: expected"));
  CHECK(parse_variables({{prefix, "a"}}).output.prefix_template == "a");
  CHECK(parse_variables({{prefix, ""}}).output.prefix_template.empty());
  CHECK(parse_variables({{prefix, "a"}, {"PET_LOG_LINE_PREFIX_TEMPLATE", "b"}}).output.prefix_template ==
        "b");
  CHECK(parse_variables({{prefix, "a"}}, {"--log-line-prefix-template", "${rank}: ", "prog"})
            .output.prefix_template == "${rank}: ");
  const TempDir folder;
  const std::string path = folder.path() / "job.toml";
  write_file_atomic(path, "shutdown-timeout = 8\n");
  CHECK(parse_variables({{timeout, "5"}}, {"--config", path, "prog"}).shutdown_timeout ==
        std::chrono::seconds(8));
}

TEST_CASE("a variable of torchrun that has no effect is noted", "[options]") {
  const auto notes = parse_variables({{"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "60"}}).notes;
  REQUIRE(notes.size() == 1);
  CHECK_THAT(notes[0], ContainsSubstring("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT has no effect"));
}

TEST_CASE("the completion script of a shell is shown without a program", "[options]") {
  const std::filesystem::path folder = std::filesystem::path(DDPRUN_SOURCE_DIR) / "completions";
  CHECK(parse_all({"--print-completion", "bash"}).completion == read_file(folder / "ddprun.bash"));
  CHECK(parse_all({"--print_completion=zsh"}).completion == read_file(folder / "_ddprun"));
  CHECK_THROWS_WITH(parse_all({"--print-completion=tcsh"}),
                    "--print-completion: expected bash or zsh, got 'tcsh'");
}

TEST_CASE("a bad variable is named", "[options]") {
  CHECK_THROWS_WITH(
      parse_variables({{"PET_NPROC_PER_NODE", "x"}}),
      ContainsSubstring("PET_NPROC_PER_NODE: expected a number") && ContainsSubstring("got 'x'"));
  CHECK_THROWS_WITH(parse_variables({{"DDPRUN_TEE", "7"}}), ContainsSubstring("DDPRUN_TEE: expected"));
  CHECK_THROWS_WITH(parse_variables({{"DDPRUN_RESTART_ON_CODES", "x"}}),
                    ContainsSubstring("DDPRUN_RESTART_ON_CODES: expected"));
  CHECK_THROWS_WITH(parse_variables({{"PET_STANDALONE", "maybe"}}),
                    ContainsSubstring("PET_STANDALONE: expected true or false"));
}

TEST_CASE("a configuration file gives flags and the program, below variables and command line", "[options]") {
  const TempDir folder;
  const std::string path = folder.path() / "job.toml";
  write_file_atomic(path,
                    "# a job\nnproc-per-node = 3\nshutdown_timeout = 1.5\ntimestamp = true\n"
                    "program = [\"python3\", \"train.py\"]\n");
  const Options options = parse_all({"--config", path});
  CHECK(options.nproc_per_node.count == 3);
  CHECK(options.shutdown_timeout == std::chrono::milliseconds(1500));
  CHECK(options.output.timestamps);
  CHECK(options.program == Words{"python3", "train.py"});
  CHECK(parse_all({"--config", path, "--nproc-per-node=2", "other"}).nproc_per_node.count == 2);
  CHECK(parse_all({"--config", path, "other"}).program == Words{"other"});
  CHECK(parse_variables({{"PET_NPROC_PER_NODE", "7"}, {"DDPRUN_CONFIG", path}}).nproc_per_node.count == 7);
}

TEST_CASE("what the user typed drives no terminal in a message", "[options]") {
  CHECK_THROWS_WITH(parse({"--nproc-per-node=1\xc2\x9b"
                           "2J"}),
                    ContainsSubstring("got '1?2J'"));
  CHECK_THROWS_WITH(parse({"--x\x9b"
                           "2J"}),
                    ContainsSubstring("unknown flag '--x?2J'"));
}

TEST_CASE("a number in a configuration file keeps all its digits", "[options]") {
  const TempDir folder;
  const std::string path = folder.path() / "job.toml";
  write_file_atomic(path, "program = [\"a.py\", 0.123456789012, 1e-9, 0.1, 5.0, 12345678]");
  CHECK(parse_all({"--config", path}).program ==
        Words{"a.py", "0.123456789012", "1e-09", "0.1", "5", "12345678"});
}

TEST_CASE("a bad configuration file is one line naming file and culprit", "[options]") {
  const TempDir folder;
  const std::string path = folder.path() / "job.toml";
  const auto [text, expected] = GENERATE(table<std::string, std::string>({
      {"nproc-per-node = \"x\"", "job.toml:1: nproc-per-node: expected a number"},
      {"no-such = 1", "job.toml:1: unknown key 'no-such'"},
      {"nproc-per-nod = 1", "job.toml:1: unknown key 'nproc-per-nod': did you mean nproc-per-node?"},
      {"\nlog_dirr = 1", "job.toml:2: unknown key 'log_dirr': did you mean log_dir?"},
      {"config = \"a\"", "job.toml:1: unknown key 'config'"},
      {"version = true", "job.toml:1: unknown key 'version'"},
      {"help = true", "job.toml:1: unknown key 'help'"},
      {"dry-run = true", "job.toml:1: unknown key 'dry-run'"},
      {"print-completion = \"bash\"", "job.toml:1: unknown key 'print-completion'"},
      {"role = [\"a\", \"b\"]", "job.toml:1: role: expected a string, a number, true or false, got a list"},
      {"\n[section]\nrole = 1", "job.toml:2: unknown section [section]"},
      {"role = ", "job.toml:1: "},
      {"role =\n", "job.toml:1: expected a value after '='"},
      {"role = \"abc\n", "job.toml:1: expected the string to end with \" on this line"},
      {"role = 'abc", "job.toml:1: expected the string to end with ' on this line"},
      {"role = \"a\"\nrole = \"b\"", "job.toml:2: 'role' is given twice"},
      {"[[[a]]]", "job.toml:1: "},
      {"\n[#a]", "job.toml:2: "},
      {"\"a\\nb\" = 1", "job.toml:1: unknown key 'a?b'"},
      {"\"a\\u009bb\" = 1", "job.toml:1: unknown key 'a?b'"},
  }));
  write_file_atomic(path, text);
  try {
    parse({"--config", path});
    FAIL("expected a UsageError for " + text);
  } catch (const UsageError& error) {
    CHECK_THAT(error.what(), ContainsSubstring(expected));
    CHECK(std::string(error.what()).find('\n') == std::string::npos);
  }
  CHECK_THROWS_AS(parse({"--config=" + (folder.path() / "missing").string()}), IoError);
  CHECK_THROWS_WITH(parse({"--config=/missing"}),
                    "--config: /missing: cannot open: No such file or directory");
  CHECK_THROWS_WITH(parse({"--nnodes=2", "--rdzv-endpoint=a", "--token-file=/missing"}),
                    "--token-file: /missing: cannot open: No such file or directory");
}

TEST_CASE("a script and a module are Python's, unless the user says otherwise", "[options]") {
  CHECK(parse_all({"train.py", "--lr", "1"}).program_kind == ProgramKind::kPythonScript);
  CHECK(parse_all({"--no-python", "train.py"}).program_kind == ProgramKind::kExecutable);
  CHECK(parse_all({"-m", "my.module"}).program_kind == ProgramKind::kPythonModule);
  CHECK(parse_all({"./train"}).program_kind == ProgramKind::kExecutable);
  CHECK_THROWS_AS(parse_all({"-m", "--no-python", "x"}), UsageError);
}

TEST_CASE("a signal ends the job or is passed on, as the user says", "[options]") {
  const Options unchanged = parse({});
  CHECK(unchanged.ending_signals == std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  CHECK(unchanged.forwarded_signals == std::vector<int>{SIGUSR1, SIGUSR2});
  const Options usr1_ends = parse({"--signals-to-handle=SIGTERM,USR1"});
  CHECK(usr1_ends.ending_signals == std::vector<int>{SIGTERM, SIGUSR1});
  CHECK(usr1_ends.forwarded_signals == std::vector<int>{SIGUSR2});
  const Options hup_passed = parse({"--forward-signals=SIGHUP"});
  CHECK(hup_passed.ending_signals == std::vector<int>{SIGTERM, SIGINT, SIGQUIT});
  CHECK(hup_passed.forwarded_signals == std::vector<int>{SIGHUP});
  CHECK(parse({"--forward-signals=none"}).forwarded_signals.empty());
  CHECK_THROWS_WITH(
      parse({"--signals-to-handle=SIGTERM", "--forward-signals=USR1,SIGTERM"}),
      "--forward-signals: SIGTERM is also in --signals-to-handle; expected it in only one of them");
}

TEST_CASE("metrics are served on loopback, or elsewhere to those who know the token", "[options]") {
  CHECK(parse({"--metrics-port=9400"}).metrics == Endpoint{"127.0.0.1", 9400});
  CHECK(parse({"--metrics-port=[::1]:9400"}).metrics == Endpoint{"::1", 9400});
  CHECK(parse({"--metrics-port=localhost:9400"}).metrics_token.empty());
  CHECK(parse({"--metrics-port=127.0.0.1:0"}).metrics == Endpoint{"127.0.0.1", 0});
  for (const char* bad : {"x", "70000", "node1:9400", "0.0.0.0", "::0", "127.0.0.1:9400:0"})
    CHECK_THROWS_WITH(parse({std::string("--metrics-port=") + bad}),
                      ContainsSubstring("--metrics-port: expected a port, or ADDRESS:PORT"));
  CHECK_THROWS_WITH(parse({"--metrics-port=0.0.0.0:9400"}),
                    ContainsSubstring("--metrics-port: expected a loopback address, or a token"));
  const auto options = parse_variables({{"DDPRUN_METRICS_PORT", "0.0.0.0:9400"}, {"DDPRUN_TOKEN", "secret"}});
  CHECK(options.metrics_token == "secret");
}

TEST_CASE("torchrun's flags that change nothing here are accepted with a note", "[options]") {
  const Options options = parse({"--monitor-interval=0.1", "--start-method=spawn", "--run-path",
                                 "--event-log-handler=console", "--rdzv-conf=timeout=3", "--local-addr=a"});
  CHECK(options.notes.size() == 6);
  CHECK_THAT(options.notes[0], ContainsSubstring("--monitor-interval has no effect"));
}

TEST_CASE("further values are read into their types", "[options]") {
  CHECK(parse({"--log-max-size=2M"}).output.log_max_size == 2u << 20);
  CHECK(parse({"--log-max-size=77"}).output.log_max_size == 77);
  CHECK(parse({"--no-prefix"}).output.prefix == false);
  CHECK(parse({"--prefix"}).output.prefix == true);
  CHECK(parse({"--prefix", "--no-prefix"}).output.prefix == false);
  CHECK(parse({"--no-prefix", "--prefix"}).output.prefix == true);
  CHECK_FALSE(parse({}).output.prefix);
  CHECK(parse({"--max-restarts=3"}).restart.max_restarts == 3);
  CHECK(parse({"--restart-backoff=0.5"}).restart.backoff == std::chrono::milliseconds(500));
  CHECK(parse({"--restart-window=60"}).restart.window == std::chrono::seconds(60));
  CHECK(parse({"--numa-binding=node"}).numa_binding == NumaBinding::kNode);
  CHECK(parse({"--numa-binding=socket"}).numa_binding == NumaBinding::kSocket);
  CHECK(parse({"--numa-binding=exclusive"}).numa_binding == NumaBinding::kExclusive);
  CHECK(parse({"--numa-binding=core-complex"}).numa_binding == NumaBinding::kCoreComplex);
  CHECK_THROWS_AS(parse({"--numa-binding="}), UsageError);
  CHECK_THROWS_WITH(
      parse({"--numa-binding=core"}),
      ContainsSubstring("--numa-binding: expected node, socket, exclusive or core-complex, got 'core'"));
}

}  // namespace
}  // namespace ddprun::launcher
