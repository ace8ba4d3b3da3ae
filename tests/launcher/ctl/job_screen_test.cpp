#include "launcher/ctl/job_screen.h"

#include <string>

#include "launcher/ctl/commands.h"
#include "tests/support/catch.h"

#include <ddprun/common/errors.h>
#include <ddprun/common/text.h>

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using View = nlohmann::ordered_json;

View rank_view(int rank, double own) {
  return {{"rank", rank},
          {"pid", 1000 + rank},
          {"state", "running"},
          {"seconds", 100.0},
          {"cpu_seconds", 50.0},
          {"resident_bytes", 1 << 30},
          {"status", {{"step", 1200}, {"steps", 9600}, {"phase", "train"}, {"loss", 0.125}}},
          {"pace",
           {{"step_seconds", 0.05},
            {"compute_seconds", own},
            {"data_seconds", 0.005},
            {"communication_seconds", 0.01}}},
          {"logs", View::array()}};
}

View job_view(int ranks) {
  View view = {{"job", "3f2a91bc"},
               {"run_id", "my-run"},
               {"host", "node1"},
               {"program", {"train.py", "--lr", "0.1"}},
               {"state", "running"},
               {"seconds", 3725.0},
               {"restarts", 1},
               {"max_restarts", 3},
               {"workers", ranks},
               {"pid", 99},
               {"ranks", View::array()},
               {"stragglers", View::array()},
               {"step", 1200},
               {"steps", 9600},
               {"remaining_seconds", 420.0},
               {"loss", 0.125}};
  for (int i = 0; i < ranks; ++i) view["ranks"].push_back(rank_view(i, i == 1 ? 0.03 : 0.02));
  return view;
}

std::string text_of(const JobScreen& screen) {
  std::string text;
  for (const std::string& line : screen.head) text += line + "\n";
  text += screen.columns + "\n";
  for (const ScreenRow& row : screen.rows) text += row.text + "\n";
  return text;
}

TEST_CASE("a job whose run id nobody chose is called by its program", "[job_screen]") {
  View view = job_view(2);
  view["run_id"] = "none";
  view["program"][0] = "/home/u/train.py";
  CHECK(
      job_screen({view, nullptr}, SortBy::kRank, 80).head[0].starts_with("job 3f2a91bc (train.py)  node1 "));
}

TEST_CASE("a job on 80 columns", "[job_screen]") {
  CHECK(text_of(job_screen({job_view(2), nullptr}, SortBy::kRank, 80)) ==
        "job 3f2a91bc (my-run)  node1  running for 1:02:05  restarts 1 of 3\n"
        "train.py --lr 0.1\n"
        "step 1200/9600 [####................................] 12 %  ETA 7:00  loss 0.125\n"
        " RANK  STATE       STEP STEP TIME OWN TIME  DATA  COMM    CPU   MEM\n"
        "    0  train       1200  50.00 ms 25.00 ms  10 %  20 %   50 %  1.0G\n"
        "    1  train       1200  50.00 ms 35.00 ms  10 %  20 %   50 %  1.0G slowest\n");
}

TEST_CASE("on 80 columns a slow rank's cause and a phase are whole, also with GPUs", "[job_screen]") {
  View view = job_view(2);
  view["ranks"][1]["status"]["phase"] = "evaluate";
  view["stragglers"] =
      View::array({{{"rank", 1}, {"factor", 12.5}, {"since_step", 7}, {"cause", "compute"}}});
  for (const std::map<int, GpuUse>& gpus : std::vector<std::map<int, GpuUse>>{{}, {{1001, {50, 1e10}}}}) {
    const JobScreen screen = job_screen({view, nullptr, gpus}, SortBy::kRank, 80);
    CHECK_THAT(screen.rows[1].text, ContainsSubstring(" evaluate ") && ContainsSubstring(" 12x compute"));
  }
}

TEST_CASE("the bar takes the room that is left, and none is cut for it", "[job_screen]") {
  View view = job_view(1);
  view["epoch"] = 3;
  view["epochs"] = 10;
  view["ranks"][0]["pace"]["samples_per_second"] = 12345.0;
  const auto line = [&](std::size_t width) {
    return job_screen({view, nullptr}, SortBy::kRank, width).head[2];
  };
  CHECK(line(80) == "epoch 4/10  step 1200/9600 [.......] 12 %  ETA 7:00  loss 0.125  12345 samples/s");
  CHECK(line(76) == "epoch 4/10  step 1200/9600 12 %  ETA 7:00  loss 0.125  12345 samples/s");
  view["epoch"] = 10;  // all are done
  CHECK_THAT(line(76), ContainsSubstring("epoch 10/10  "));
}

TEST_CASE("a narrow terminal has fewer columns, and whole ones", "[job_screen]") {
  const auto columns = [](std::size_t width) {
    return job_screen({job_view(2), nullptr}, SortBy::kRank, width).columns;
  };
  CHECK(columns(60) == " RANK  STATE       STEP STEP TIME OWN TIME");
  CHECK(columns(40) == " RANK  STATE    STEP TIME");
  CHECK(columns(200) ==
        " RANK      PID  STATE       STEP STEP TIME OWN TIME  DATA  COMM    CPU   MEM  SAMPLES/S      LOSS");
}

TEST_CASE("a rank that has been silent for some steps says so", "[job_screen]") {
  View view = job_view(3);
  view["ranks"][0]["said_seconds_ago"] = 42.0;
  view["ranks"][1]["said_seconds_ago"] = 9.0;
  view["ranks"][2]["said_seconds_ago"] = 42.0;
  view["ranks"][2]["pace"]["step_seconds"] = 20.0;
  const JobScreen screen = job_screen({view, nullptr}, SortBy::kRank, 80);
  CHECK(screen.rows[0].text.ends_with(" silent 0:42"));
  CHECK_THAT(screen.rows[1].text, !ContainsSubstring("silent"));
  CHECK_THAT(screen.rows[2].text, !ContainsSubstring("silent"));
}

TEST_CASE("a stopped process is shown as such, whatever it said last", "[job_screen]") {
  View view = job_view(1);
  view["ranks"][0]["state"] = "stopped";
  CHECK_THAT(job_screen({view, nullptr}, SortBy::kRank, 80).rows[0].text, ContainsSubstring("  stopped "));
}

TEST_CASE("a loss that is no number is shown as such", "[job_screen]") {
  View view = job_view(1);
  view["loss"] = view["ranks"][0]["status"]["loss"] = nullptr;
  const std::string text = text_of(job_screen({view, nullptr}, SortBy::kRank, 160));
  CHECK_THAT(text, ContainsSubstring("  loss nan") && ContainsSubstring("       nan\n"));
}

TEST_CASE("a job that waits does not seem to have waited since it began", "[job_screen]") {
  View view = job_view(1);
  view["state"] = "waiting";
  view["ranks"] = View::array();
  const auto head = job_screen({view, nullptr}, SortBy::kRank, 80).head;
  CHECK_THAT(head[0], ContainsSubstring("  waiting, started 1:02:05 ago  restarts"));
  CHECK(head[2] == "no worker is running");
}

TEST_CASE("columns stay in line beside letters of several bytes", "[job_screen]") {
  View view = job_view(2);
  view["ranks"][0]["status"]["phase"] = "\u00fcben";
  const JobScreen screen = job_screen({view, nullptr}, SortBy::kRank, 80);
  CHECK_THAT(screen.rows[0].text, ContainsSubstring("    0  \u00fcben        1200 "));
}

TEST_CASE("no line is wider than the terminal, whatever there is", "[job_screen]") {
  View view = job_view(64);
  view["program"] = View::array({std::string(500, 'x'), "\x1b[31m"});
  view["ranks"][3]["status"]["phase"] = std::string(300, 'y');
  view["ranks"][3]["status"]["step"] = 123456789012;
  view["nodes"] = 4;
  view["stragglers"] =
      View::array({{{"rank", 2}, {"factor", 12.5}, {"since_step", 7}, {"cause", "compute"}}});
  for (const std::size_t width : {20, 80, 109, 110, 200}) {
    const JobScreen screen = job_screen({view, nullptr, {{1000, {50, 1e10}}}}, SortBy::kRank, width);
    CHECK(screen.rows.size() == 64);
    for (const std::string& line : screen.head) CHECK(line.size() <= width);
    for (const ScreenRow& row : screen.rows) CHECK(row.text.size() <= width);
    CHECK(text_of(screen).find('\x1b') == std::string::npos);
  }
}

TEST_CASE("what is not known is a dash, and an ended rank says how", "[job_screen]") {
  View view = job_view(2);
  view["ranks"][0] = {
      {"rank", 0}, {"pid", 5}, {"state", "exited"}, {"exit_code", 7}, {"status", View::object()}};
  view["ranks"][1] = {
      {"rank", 1}, {"pid", 6}, {"state", "killed"}, {"signal_name", "SIGKILL"}, {"status", View::object()}};
  for (const char* name : {"step", "steps", "loss", "remaining_seconds"}) view.erase(name);
  const JobScreen screen = job_screen({view, nullptr}, SortBy::kRank, 80);
  CHECK_THAT(screen.rows[0].text, ContainsSubstring("exit 7") && ContainsSubstring("-"));
  CHECK_THAT(screen.rows[1].text, ContainsSubstring("SIGKILL"));
  CHECK(screen.rows[0].kind == ScreenRow::Kind::kEnded);
  CHECK_THAT(screen.head[2], ContainsSubstring("has not reported its progress"));
}

View job_of_nodes() {
  View view = job_view(1);
  view["node_name"] = "host1";
  view["coordinator"] = "host1";
  view["other_ranks"] = View::array({rank_view(1, 0.04)});
  view["other_ranks"][0]["node"] = "a-name-that-is-long-2";
  view["other_ranks"][0]["cpu_percent"] = 75.0;
  view["stragglers"] = View::array({{{"rank", 1}, {"factor", 2.0}, {"since_step", 7}, {"cause", "compute"}}});
  return view;
}

TEST_CASE("the ranks of all nodes are in one table, with the column NODE", "[job_screen]") {
  const JobScreen screen = job_screen({job_of_nodes(), nullptr}, SortBy::kRank, 100);
  CHECK(screen.columns == " RANK  NODE        STATE       STEP STEP TIME OWN TIME  DATA  COMM    CPU   MEM");
  REQUIRE(screen.rows.size() == 2);
  CHECK_THAT(screen.rows[0].text, ContainsSubstring("    0  host1       train "));
  CHECK_THAT(screen.rows[1].text, ContainsSubstring("    1  ..s-long-2  train ") &&
                                      ContainsSubstring("75 %") && ContainsSubstring("2.0x compute"));
  CHECK(job_list({job_of_nodes(), job_view(3)})[0].starts_with("JOB       NODE  STATE "));
  CHECK_THAT(job_list({job_of_nodes()})[1], ContainsSubstring("3f2a91bc  host1 running  99       2 ") &&
                                                ContainsSubstring("  (run id my-run)"));
  View unnamed = job_of_nodes();
  for (const std::string run : {"none", "3f2a91bc-0000"}) {
    unnamed["run_id"] = run;
    CHECK(job_list({unnamed})[1].find("run id") == std::string::npos);
  }
}

TEST_CASE("one line says where another node's rank is to be looked at", "[job_screen]") {
  View view = job_of_nodes();
  CHECK(elsewhere(view, 0).empty());
  CHECK(elsewhere(view, 1) == "rank 1 runs on node a-name-that-is-long-2: run ddpctl there");
  CHECK(elsewhere(view, 9) == "rank 9 does not run on this machine");
  view.erase("other_ranks");
  CHECK(elsewhere(view, 1) ==
        "rank 1 does not run on this machine; to find its node, run ddpctl top on host1, which has the "
        "coordinator");
  CHECK_THAT(job_screen({view, nullptr}, SortBy::kRank, 100).head.back(),
             ContainsSubstring("only its ranks are shown; ddpctl on host1"));
}

TEST_CASE("ranks are sorted by what is asked for", "[job_screen]") {
  View view = job_view(3);
  view["ranks"][2]["resident_bytes"] = 2.0 * (1 << 30);
  view["ranks"][0]["status"]["step"] = 1100;
  const auto first = [&](SortBy by) { return job_screen({view, nullptr}, by, 80).rows.front().rank; };
  CHECK(first(SortBy::kRank) == 0);
  CHECK(first(SortBy::kOwnTime) == 1);
  CHECK(first(SortBy::kMemory) == 2);
  CHECK(first(SortBy::kStep) == 0);
}

TEST_CASE("the CPU share is of the time since the screen before", "[job_screen]") {
  View before = job_view(1), view = before;
  view["seconds"] = before["seconds"].get<double>() + 2;
  view["ranks"][0]["cpu_seconds"] = 53.0;
  CHECK_THAT(job_screen({view, before}, SortBy::kRank, 80).rows[0].text, ContainsSubstring("150 %"));
}

TEST_CASE("times and sizes are short", "[job_screen]") {
  CHECK(clock_text(5) == "0:05");
  CHECK(clock_text(3725) == "1:02:05");
  CHECK(clock_text(1e6) == "11 d 13 h");
  CHECK(step_text(0.0034) == "3.40 ms");
  CHECK(step_text(0.34) == "340.0 ms");
  CHECK(step_text(3.4) == "3.40 s");
  CHECK(bytes_text(512) == "512B");
  CHECK(bytes_text(1.5 * (1 << 30)) == "1.5G");
  CHECK(bytes_text(1023.9 * (1 << 20)) == "1.0G");
}

TEST_CASE("ddpctl's words", "[ctl_options]") {
  const CtlOptions options = parse_ctl_options({"logs", "-f", "3f2a", "--rank=3"});
  CHECK(options.command == "logs");
  CHECK(options.job == "3f2a");
  CHECK(options.follow);
  CHECK(options.rank == 3);
  CHECK(parse_ctl_options({"--help"}).help);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{},
                                             {"fly"},
                                             {"top", "a", "b"},
                                             {"top", "--interval", "0"},
                                             {"logs", "--rank"},
                                             {"logs", "--rank=-1"},
                                             {"ps", "-x"}}) {
    CHECK_THROWS_AS(parse_ctl_options(words), UsageError);
  }
}

TEST_CASE("ddpctl's help has lines of 80 columns, and describes one flag a line", "[ctl_options]") {
  for (const auto& line : split(ctl_help(), '\n')) {
    CAPTURE(line);
    CHECK(line.size() <= 80);
    const std::string names = line.substr(0, line.find("  ", 2));  // "-h, --help" is one flag
    if (line.starts_with("  -")) CHECK(names.find("--") == names.rfind("--"));
  }
}

}  // namespace
}  // namespace ddprun::launcher
