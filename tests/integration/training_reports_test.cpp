// What a run shows while it goes and leaves to look at: the progress bar, the profile, the report page.
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>
#include <regex>

#include <cstdio>
#include <fstream>

#include "tests/integration/training_job.h"
#include "tests/support/browser.h"
#include "tests/support/terminal.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// What the last bar on the screen tells.
struct Bar {
  long long done = 0, total = 0;
  int minutes = -1, seconds = -1, minutes_left = -1, seconds_left = -1;
  double rate = 0, loss = 0, accuracy = -1;
};

std::string without_colours(std::string text) {
  for (const std::string colour : {"\x1b[32m", "\x1b[0m"})
    for (auto at = text.find(colour); at != std::string::npos; at = text.find(colour, at))
      text.erase(at, colour.size());
  return text;
}

/// The bar without the time that the run has left.
std::string without_run(const std::string& line) {
  return std::regex_replace(line, std::regex(", run [0-9:]+"), "");
}

/// Fails if there is none, whole, of this epoch.
Bar last_bar(const std::string& shown, const std::string& epoch) {
  const auto screen = without_colours(shown);
  const auto begin = screen.rfind(epoch + " ");
  CAPTURE(screen);
  REQUIRE(begin != std::string::npos);
  const auto line = without_run(screen.substr(begin, screen.find_first_of("\r\x1b", begin) - begin));
  Bar bar;
  const auto numbers = line.find("| ", line.find('|') + 1);
  REQUIRE(numbers != std::string::npos);
  CHECK(std::sscanf(line.c_str() + numbers, "| %lld/%lld [%d:%d<%d:%d, %lf samples/s, loss %lf, acc %lf]",
                    &bar.done, &bar.total, &bar.minutes, &bar.seconds, &bar.minutes_left, &bar.seconds_left,
                    &bar.rate, &bar.loss, &bar.accuracy) == 9);
  CHECK(line.ends_with("]"));
  return bar;
}

void check(const Bar& bar, long long batches) {
  CHECK((bar.done >= 1 && bar.done <= bar.total));
  CHECK(bar.total == batches);
  CHECK((bar.minutes >= 0 && bar.seconds >= 0 && bar.minutes_left >= 0 && bar.seconds_left >= 0));
  CHECK(bar.rate > 0);
  CHECK(bar.loss > 0);
  CHECK((bar.accuracy >= 0 && bar.accuracy <= 1));
}

std::string profile_table(const fs::path& out, const std::string& of_rank = "") {
  return read_file(out / ("profile/operators" + of_rank + ".txt"));
}

/// Of the table's line of this name; fails if there is none.
double milliseconds(const std::string& table, const std::string& name) {
  const auto at = table.find("\n  " + name + " ");
  CAPTURE(table);
  REQUIRE(at != std::string::npos);
  return std::stod(table.substr(at + 3 + name.size()));
}

}  // namespace

TEST_CASE("on a terminal a bar tells epoch, speed, loss, accuracy and the time left", "[training]") {
  const TempDir dir;
  const Terminal terminal;
  auto command = training("linear", 0, dir.path() / "run", {"--epochs=3"});
  command.in_child = [&] { terminal.become_stderr(); };
  Child worker(command);
  Screen screen(terminal);
  REQUIRE(worker.wait(kTraining) == ExitStatus::exited(0));
  for (const std::string epoch : {"epoch 1/3", "epoch 3/3"}) {
    CHECK_THAT(screen.text(), ContainsSubstring("\r" + epoch + " "));
    check(last_bar(screen.text(), epoch), 32);
  }
  const auto& text = screen.text();
  CHECK(text.find("\r\x1b[K", text.rfind("epoch 3/3")) != std::string::npos);  // taken away at the end
  CHECK(worker.out().find('\r') == std::string::npos);
}

TEST_CASE("under ddprun the terminal has rank 0's bar", "[training]") {
  const TempDir dir;
  const Terminal terminal;
  auto command = training("linear", 2, dir.path() / "run", {"--epochs=200"});
  command.in_child = [&] { terminal.become_stderr(); };
  Child ddprun(command);
  Screen screen(terminal);
  REQUIRE(ddprun.wait(kTraining) == ExitStatus::exited(0));
  check(last_bar(screen.text(), "/200"), 16);
  check_nothing_left(ddprun);
}

TEST_CASE("without a terminal, or when unwanted, the bar is left out and the lines stay", "[training]") {
  const TempDir dir;
  {
    Child worker(training("linear", 0, dir.path() / "plain", {"--epochs=1"}));
    REQUIRE(worker.wait(kTraining) == ExitStatus::exited(0));
    CHECK_THAT(worker.out(), ContainsSubstring("Rank 0, Epoch 1/1, Loss: "));
    for (const auto& text : {worker.out(), worker.err()}) {
      CHECK(text.find('\r') == std::string::npos);
      CHECK(text.find("samples/s ") == std::string::npos);  // the bar's; the card ends a line with it
    }
  }
  const Terminal terminal;
  auto command = training("linear", 0, dir.path() / "unwanted", {"--epochs=1", "--no-progress"});
  command.in_child = [&] { terminal.become_stderr(); };
  Child worker(command);
  Screen screen(terminal);
  REQUIRE(worker.wait(kTraining) == ExitStatus::exited(0));
  CHECK(screen.text().find("samples/s") == std::string::npos);
}

TEST_CASE("a profile leaves each rank's trace of ten steps, and a table with waiting and communication",
          "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(training("linear", 2, out, {"--epochs=2", "--profile"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  int forward = 0, backward = 0;
  const auto trace = nlohmann::json::parse(read_file(out / "profile/trace.json"));
  for (const auto& event : trace.at("traceEvents")) {
    const bool span = event.value("ph", "") == "X";
    forward += span && event.value("name", "") == "aten::binary_cross_entropy_with_logits" ? 1 : 0;
    backward += span && event.value("name", "") == "AddmmBackward0" ? 1 : 0;
  }
  CHECK(forward == 10);  // and not the evaluation's
  CHECK(backward == 10);
  for (const std::string rank : {"", "_rank1"}) {
    CAPTURE(rank);
    const auto table = profile_table(out, rank);
    CHECK_THAT(table, ContainsSubstring("10 steps, each ") && ContainsSubstring("aten::addmm"));
    CHECK(milliseconds(table, "communication") > 0);
    CHECK(milliseconds(table, "waiting for data") >= 0);
    CHECK_NOTHROW(nlohmann::json::parse(read_file(out / ("profile/trace" + rank + ".json"))));
  }
  CHECK(count_of("profile of 10 steps: ", child.err()) == 1);
  const auto html = read_file(out / "report.html");
  for (const char* title : {"<h2>Profile of rank 0</h2>", "<h2>Profile of rank 1</h2>"})
    CHECK_THAT(html, ContainsSubstring(title));
  const auto listed = nlohmann::json::parse(read_file(out / "run.json"))["files"];
  CHECK((listed.contains("profile/operators_rank1.txt") && listed.contains("profile/trace_rank1.json")));
}

TEST_CASE("no rank replaces somebody else's file with its profile", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run", file = out / "profile/trace_rank1.json";
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "mine";
  Child child(training("linear", 2, out, {"--epochs=1", "--profile"}));
  CHECK(child.wait(kTraining) == ExitStatus::exited(2));
  CHECK_THAT(child.err(),
             ContainsSubstring("holds a file that a run would replace (profile/trace_rank1.json)"));
  CHECK(read_file(file) == "mine");
}

TEST_CASE("a run records its command as it was typed, with ddprun in front and without secrets",
          "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "a run";
  auto command = training("linear", 2, out, {"--epochs=1", "--no-report"});
  command.argv.insert(command.argv.begin() + 1, {"--role=a b", "--rdzv-conf=api_key=secret"});
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto recorded = [&] {
    return nlohmann::json::parse(read_file(out / "environment.json"))["command"].get<std::string>();
  };
  CHECK(recorded() == command.argv[0] +
                          " '--role=a b' --rdzv-conf=api_key=*** --nproc-per-node=2 --shutdown-timeout=5 " +
                          worker_program() + " linear '--out=" + out.string() + "' --epochs=1 --no-report");
  Child alone(training("linear", 0, out, {"--epochs=1", "--overwrite"}));
  REQUIRE(alone.wait(kTraining) == ExitStatus::exited(0));
  CHECK(recorded() == worker_program() + " linear '--out=" + out.string() + "' --epochs=1 --overwrite");
}

TEST_CASE("worker advise tells what to change about a run", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(training("linear", 2, out, {"--epochs=1", "--batch-size=240", "--precision=bf16-mixed"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto advise = [](const fs::path& run) { return Command{{worker_program(), "advise", run.string()}}; };
  Child advised(advise(out));
  CHECK(advised.wait() == ExitStatus::exited(0));
  CAPTURE(advised.err());
  for (const char* line : {"each epoch's last batch has 20 of 240 samples, but counts as much as a whole "
                           "one: --batch-size 125 leaves none over\n",
                           "the learning rate 0.001 is meant for a single rank, but 2 ranks take batches "
                           "of 480 samples: --scale-lr linear"})
    CHECK_THAT(advised.out(), ContainsSubstring(line));
  auto list = nlohmann::json::parse(read_file(out / "run.json"));
  list["files"]["metrics.csv"] = 2;  // as after a resume from an earlier state that was killed
  write_file_atomic(out / "run.json", list.dump());
  Child killed(advise(out));
  CHECK(killed.wait() == ExitStatus::exited(0));
  CHECK_THAT(killed.out(), ContainsSubstring("the run has not ended"));
  for (const auto& folder : {dir.path() / "none", dir.path()}) {
    Child refused(advise(folder));
    CHECK(refused.wait() == ExitStatus::exited(2));
    CHECK(count_of("\n", refused.err()) == 1);
    CHECK_THAT(refused.err(),
               ContainsSubstring("RUN: expected the folder of a run") && ContainsSubstring(folder.string()));
    CHECK(refused.out().empty());
  }
}

TEST_CASE("a profile that the run's end cuts short has the steps there were, or says why there is none",
          "[training]") {
  const auto [flags, steps] = GENERATE(table<std::vector<std::string>, int>(
      {{{"--max-steps=12"}, 7},
       {{"--val-split=0.2", "--val-every-steps=8", "--max-steps=20"}, 3},
       {{"--limit-train=160"}, 4},  // five steps an epoch: the first are over when the second epoch begins
       {{"--max-steps=5"}, 0},
       {{"--limit-train=32"}, 0}}));
  const TempDir dir;
  auto words = flags;
  words.emplace_back("--profile");
  Child child(training("linear", 0, dir.path() / "run", words));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  if (steps > 0) {
    CHECK_THAT(profile_table(dir.path() / "run"), ContainsSubstring(std::to_string(steps) + " steps, each "));
    CHECK_NOTHROW(nlohmann::json::parse(read_file(dir.path() / "run/profile/trace.json")));
    CHECK(count_of("nothing was recorded", child.err()) == 0);
  } else {
    CHECK_FALSE(fs::exists(dir.path() / "run/profile"));
    CHECK(count_of("--profile: nothing was recorded", child.err()) == 1);
  }
}

TEST_CASE("a disk too full for a profile ends no run", "[training]") {
  if (::getuid() != 0) skip("needs root to make a small disk");
  const TempDir dir;
  const auto out = dir.path() / "run";
  fs::create_directories(out / "profile");
  auto command = training("linear", 0, out, {"--epochs=1", "--profile"});
  command.in_child = [disk = (out / "profile").string()] {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=8k") != 0)
      ::_exit(122);
  };
  Child child(command);
  const auto status = child.wait(kTraining);
  if (status == ExitStatus::exited(122)) skip("this machine lets nobody mount a disk");
  CHECK(status == ExitStatus::exited(0));
  CHECK_THAT(child.err(), ContainsSubstring("no profile: ") && ContainsSubstring("trace.json"));
  CHECK(read_summary(out)["epochs"] == 1);
}

TEST_CASE("TensorBoard compares runs: grouped metrics, pictures at steps", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  for (const std::string lr : {"0.001", "0.002"}) {
    Child child(mnist(2, dir.path() / ("lr-" + lr), small({"--epochs=2", "--val-split=0.1", "--lr=" + lr})));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  }
  check_python(dir.path(), "tensorboard", R"(
import json, re, subprocess, sys, time, urllib.parse, urllib.request
board = subprocess.Popen([sys.executable, '-m', 'tensorboard.main', '--logdir=.', '--port=0', '--host=127.0.0.1'],
                         stderr=subprocess.PIPE, text=True)
try:
    for line in board.stderr:
        found = re.search(r'at (http://[0-9.]+:[0-9]+)', line)
        if found: break
    def get(path, data=None, **query):
        url = f'{found[1]}/data/plugin/{path}?{urllib.parse.urlencode(query, doseq=True)}'
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(url, body, {'Content-Type': 'application/json'})
        return json.load(urllib.request.urlopen(request, timeout=60))
    runs = ['lr-0.001', 'lr-0.002']
    deadline = time.monotonic() + 60
    while True:  # it reads the files meanwhile
        tags = get('scalars/tags')
        if sorted(tags) == runs and all('test/acc' in tags[run] for run in runs) or time.monotonic() > deadline: break
        time.sleep(0.2)
    assert sorted(tags) == runs, tags
    assert {re.sub('/[^/]*$', '', tag) for tag in tags[runs[0]]} == {
        'train', 'val', 'test', 'system/rank0', 'system/rank1'}, tags
    pictures = get('images/tags')[runs[1]]
    for tag in ('val/samples', 'test/confusion'):
        shown = get('images/images', run=runs[1], tag=tag, sample=0)
        assert tag in pictures and len(shown) >= 1, (pictures, shown)
    shown = {i['step'] for t in pictures if t != 'train/samples' for i in get('images/images', run=runs[1], tag=t, sample=0)}
    assert len(shown) == 2, shown
finally:
    board.kill()
    board.wait()
)");
}

TEST_CASE("a browser shows a run's report: curves, pictures, configuration and environment", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(mnist(2, out, small({"--log-interval=2", "--lr=0.00125"})));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto found = shown_in_browser(read_file(out / "report.html"), {400, 1200});
  REQUIRE(found.size() == 2);
  for (const auto& frame : found) {
    INFO(frame.dump());
    CHECK_THAT(frame["title"].get<std::string>(),
               ContainsSubstring("mnist: 20") && ContainsSubstring(", 2 ranks, 1 epoch, 10 steps"));
    CHECK(frame["loaded"] == true);
    CHECK(frame["requests"] == 0);
    CHECK(frame["needed"] == frame["width"]);  // no scrolling sideways
    const auto alts = frame["alts"].dump();
    for (const char* figure : {"samples", "confusion"}) {
      INFO(figure);
      CHECK_THAT(alts, ContainsSubstring(figure));
    }
    for (const char* chart : {"Loss", "Accuracy", "Learning rate", "Samples a second",
                              "Milliseconds of a step", "CPU, percent of a core", "Memory, MiB"}) {
      INFO(chart);
      CHECK_THAT(frame["charts"].dump(), ContainsSubstring(chart));
    }
    CHECK(frame["drawn"] == true);
    CHECK_THAT(frame["series"].dump(), ContainsSubstring("cpu_percent_rank1"));
    const std::string text = frame["text"];
    for (const char* part :
         {"--limit-train=640", "lr = 0.00125", "world_size", "OMP_NUM_THREADS", "Where the time went"}) {
      INFO(part);
      CHECK_THAT(text, ContainsSubstring(part));
    }
  }
}

TEST_CASE("the page of one run can be made again, with its pictures and settings", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  const auto out = dir.path() / "run", page = dir.path() / "again.html";
  Child child(mnist(0, out, small({"--lr=0.00125"})));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  Child again({.argv = {worker_program(), "report", "--out=" + page.string(), out.string()}});
  REQUIRE(again.wait(kTraining) == ExitStatus::exited(0));
  const auto html = read_file(page);
  CHECK((html == read_file(out / "report.html")));
  CHECK_THAT(html, ContainsSubstring("<noscript>\n<h2>Curves</h2>") && ContainsSubstring("\">pred "));
  for (const char* name : {"loss", "accuracy", "lr", "confusion"})
    CHECK(fs::exists(out / "figures" / (std::string(name) + ".svg")));
}

TEST_CASE("a run in a git repository records its commit", "[training]") {
  const TempDir dir;
  Child git({.argv = {"sh", "-c",
                      "git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m c && "
                      "git rev-parse HEAD"},
             .in_child = [&] {
               if (::chdir(dir.path().c_str()) != 0) ::_exit(1);
             }});
  if (git.wait(kTraining) != ExitStatus::exited(0)) skip("git is not installed");
  auto command = training("linear", 0, dir.path() / "run", {"--epochs=1"});
  command.in_child = [&] {
    if (::chdir(dir.path().c_str()) != 0) ::_exit(1);
  };
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto commit = git.out().substr(0, git.out().find('\n'));
  CHECK(commit.size() >= 40);
  CHECK(nlohmann::json::parse(read_file(dir.path() / "run/environment.json"))["commit"] == commit);
  CHECK_THAT(read_file(dir.path() / "run/report.html"), ContainsSubstring("commit " + commit.substr(0, 12)));
}
