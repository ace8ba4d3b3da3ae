// What the worker answers before it trains: help, and mistakes that leave nothing behind.
#include <algorithm>
#include <fstream>
#include <sstream>

#include "tests/integration/sam_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// What the worker says to these words, in an empty folder that it leaves empty.
std::pair<ExitStatus, std::string> ask(const std::vector<std::string>& words) {
  const TempDir dir;
  Command command;
  command.argv = {"sh", "-c", "cd \"$0\" && exec \"$@\"", dir.path().string(), WORKER_PROGRAM};
  command.argv.insert(command.argv.end(), words.begin(), words.end());
  Child child(command);
  const auto status = child.wait(kTraining);
  CAPTURE(words, child.err());
  CHECK(fs::is_empty(dir.path()));
  return {status, child.out() + child.err()};
}

/// Those that `worker --help` lists, without TASK --predict.
std::vector<std::string> commands_in(const std::string& help) {
  std::istringstream lines(help.substr(std::min(help.find("\ncommands\n") + 1, help.size())));
  std::vector<std::string> commands;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line) && !line.empty();)
    if (const auto name = line.substr(2, line.find(' ', 2) - 2); !name.empty() && name != "TASK")
      commands.push_back(name);
  return commands;
}

}  // namespace

TEST_CASE("the help lists every task and command, and each command has one", "[training]") {
  const auto [status, text] = ask({"--help"});
  CHECK(status == ExitStatus::exited(0));
  for (const char* name :
       {"mnist ", "toy ", "linear ", "cifar10 ", "sam ", "advise RUN", "env ", "export CHECKPOINT OUT",
        "flight FOLDER", "prune RUN", "report RUN...", "runs FOLDER...", "TASK --predict FILE..."})
    CHECK_THAT(text, ContainsSubstring("\n  " + std::string(name)));
  const auto commands = commands_in(text);
  for (const char* name : {"advise", "env", "export", "flight", "prune", "report", "runs"})
    CHECK(std::ranges::count(commands, name) == 1);
  for (const auto& command : commands)
    for (const char* flag : {"--help", "-h"}) {
      CAPTURE(command, flag);
      const auto [ended, help] = ask({command, flag});
      CHECK(ended == ExitStatus::exited(0));
      CHECK_THAT(help, ContainsSubstring("usage: worker " + command));
    }
  const auto [ended, help] = ask({"sam", "--predict", "--help"});
  CHECK(ended == ExitStatus::exited(0));
  CHECK_THAT(help, ContainsSubstring("usage: worker sam --predict IMAGE"));
}

TEST_CASE("a task's help is what people set most, on one screen of 80 columns with a flag a line",
          "[training]") {
  for (const std::string task : {"mnist", "toy", "linear", "cifar10", "sam"}) {
    const auto [status, text] = ask({task, "--help"});
    const auto [ended, whole] = ask({task, "--help-all"});
    CAPTURE(task, text);
    CHECK((status == ExitStatus::exited(0) && ended == ExitStatus::exited(0)));
    CHECK(std::ranges::count(text, '\n') <= (task == "sam" ? 55 : 48));
    CHECK_THAT(text, ContainsSubstring("`worker " + task + " --help-all` shows all flags"));
    CHECK_THAT(text, !ContainsSubstring("--bucket-mb"));
    CHECK_THAT(whole, ContainsSubstring("\n  --bucket-mb N "));
    for (const auto& help : {text, whole, ask({"--help"}).second}) {
      std::istringstream lines(help);
      for (std::string line; std::getline(lines, line);) {
        CAPTURE(line);
        CHECK(line.size() <= 80);
        const std::string names = line.substr(0, line.find("  ", 2));  // "-h, --help" is one flag
        if (line.starts_with("  -")) CHECK(names.find("--") == names.rfind("--"));
      }
    }
  }
}

TEST_CASE("a task's whole help begins with what people set most, and has each flag once", "[training]") {
  for (const std::string task : {"mnist", "sam"}) {
    const auto [status, text] = ask({task, "--help-all"});
    CHECK(status == ExitStatus::exited(0));
    const auto most = text.find("\nmost used\n"), others = text.find("\nothers\n");
    REQUIRE(most < others);
    for (const char* flag : {"--data ", "--out ", "--epochs ", "--batch-size ", "--lr ", "--optimizer ",
                             "--val-split ", "--resume ", "--init-weights ", "--device "}) {
      CAPTURE(task, flag);
      const auto at = text.find("\n  " + std::string(flag));
      CHECK((at > most && at < others));
      CHECK(text.find("\n  " + std::string(flag), at + 1) == std::string::npos);
    }
    CHECK(text.find("\nddp\n") > others);
  }
}

TEST_CASE("what another program's flags are taken as is said in a line each, by rank 0", "[training]") {
  for (const std::string rank : {"0", "1"}) {
    Command command;
    command.argv = {WORKER_PROGRAM,   "mnist",          "--max-epochs=3",    "--max-time=00:10:00",
                    "--strategy=ddp", "--precision=16", "--accelerator=cpu", "--val-check-interval=1.0",
                    "--print-config"};
    command.env = {{"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
    Child child(command);
    CHECK(child.wait(kTraining) == ExitStatus::exited(0));
    CHECK_THAT(child.out(), ContainsSubstring("\nepochs = 3\n") && ContainsSubstring("\nmax_time = 600.0\n"));
    const auto said = child.err();
    for (const char* line :
         {"--max-epochs=3: taken as --epochs=3\n", "--max-time=00:10:00: taken as --max-time=10m\n",
          "--strategy=ddp: several ranks train with DistributedDataParallel anyway\n",
          "--precision=16: taken as --precision=16-mixed\n", "--accelerator=cpu: taken as --device=cpu\n",
          "--val-check-interval=1.0: validation follows every epoch anyway\n"})
      CHECK((said.find(line) != std::string::npos) == (rank == "0"));
  }
}

TEST_CASE("a mistake that is found before the training leaves no run folder", "[training]") {
  const auto [words, message] = GENERATE(table<std::vector<std::string>, std::string>({
      {{"linear", "--monitor=nope"}, "--monitor: this run has no metric 'nope'"},
      {{"linear", "--val-every-steps=3"}, "--val-every-steps: this run has no validation set"},
      {{"linear", "--resume=none.pt"},
       "--resume: expected a checkpoint, a run's folder or auto, got 'none.pt', which does not exist"},
      {{"linear", "--backend=nccl", "--device=cpu"},
       "--backend=nccl: this rank computes on the CPU; use --backend=gloo"},
      {{"mnist", "--data=mnits"},
       "--data: expected a folder or one of the names mnist, fashion-mnist, got 'mnits'"},
      {{"mnist", "--data=./mnits"},
       "--data: expected a folder or one of the names mnist, fashion-mnist, got './mnits'"},
      {{"linear", "--val-split=0.2", "--val-every-steps=3", "--monitor=test_loss"},
       "--monitor: this run has no metric 'test_loss' when --val-every-steps validates, expected one of "
       "val_loss"},
      {{"linear", "--val-split=0.2", "--val-every-steps=3", "--checkpoint-name={train_acc}"},
       "--checkpoint-name: this run has no metric 'train_acc' when --val-every-steps validates"},
      {{"linear", "--out=run", "--val-split=0.2", "--val-every-steps=99", "--lr-schedule=plateau"},
       "--val-every-steps: expected at most 25, the steps of an epoch, for --lr-schedule=plateau, got 99"},
      {{"linear", "--out=run", "--epochs=2", "--val-split=0.2", "--val-every-steps=99", "--patience=1"},
       "--val-every-steps: expected at most 50, the steps of the run, for --patience, got 99"},
      {{"linear", "--checkpoint-name=.x"}, "--checkpoint-name: expected a name that does not begin with '.'"},
      {{"linear", "--checkpoint-name=last"}, "--checkpoint-name: expected a name other than 'last'"},
      {{"linear", "--ema=1"}, "--ema: expected a decay from 0 to less than 1"},
      {{"linear", "--checkpoint-name={foo}"},
       "--checkpoint-name: this run has no metric 'foo' after an epoch"},
      {{"linear", "--out=run", "--batch-size=2000", "--drop-last"}, "--drop-last: no rank has a whole batch"},
      {{"linear", "--out=run", "--resume=/dev/null"}, "/dev/null: "},
      {{"sam", "--predict", "x.png"},
       "--point is missing; usage: worker sam --predict IMAGE --point X,Y[,0] --checkpoint RUN|DIR|FILE "
       "--mask-out"},
  }));
  const auto [status, text] = ask(words);
  CAPTURE(words);
  CHECK_FALSE(status == ExitStatus::exited(0));
  if (message.starts_with("--data")) CHECK(status == ExitStatus::exited(2));
  CHECK_THAT(text, ContainsSubstring("worker: error: " + message));
  CHECK(count_of("\n", text) == 1);
}

TEST_CASE("a full disk under stdout is an error", "[training]") {
  const auto words = GENERATE("--help", "--version", "mnist --print-config");
  Child child({{"sh", "-c", WORKER_PROGRAM " " + std::string(words) + " > /dev/full"}});
  CHECK(child.wait(kTraining) == ExitStatus::exited(1));
  CHECK(child.err() == "worker: error: stdout: cannot write: No space left on device\n");
}

TEST_CASE("without a checkpoint --resume=auto says so in a line", "[training]") {
  const TempDir dir;
  const std::string line = "--resume=auto: no checkpoint in ";
  for (const int times : {1, 0}) {  // the second run finds one
    Child child(training("linear", 0, dir.path() / "run", {"--epochs=1", "--resume=auto"}));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    CHECK(count_of(line, child.err()) == times);
  }
}

TEST_CASE("config.toml is what is in force on this device", "[training]") {
  const TempDir dir;
  const SamRun sam;
  sam.run(2, "run", {"--max-steps=1", "--static-graph=false", "--precision=16-mixed", "--device=cpu"});
  const auto toml = read_file(sam.dir.path() / "run/config.toml");
  CHECK_THAT(toml, ContainsSubstring("static_graph = false") && ContainsSubstring("find_unused = true") &&
                       ContainsSubstring("precision = \"bf16-mixed\""));
}

TEST_CASE("errors and headings have colours on a terminal that takes them, and nowhere else", "[training]") {
  if (!fs::exists("/usr/bin/script")) skip("no /usr/bin/script here");
  const auto shown = [](const std::string& command, const std::string& before) {
    Command on_terminal;
    on_terminal.argv = {"/usr/bin/script", "-qec", before + " " + command, "/dev/null"};
    on_terminal.env["TERM"] = "xterm";
    Child child(on_terminal);
    child.wait(kTraining);
    return child.out();
  };
  const std::string worker = WORKER_PROGRAM, ddprun = DDPRUN_PROGRAM;
  for (const auto& [command, coloured] :
       {std::pair(worker + " none", "\x1b[1;31merror:\x1b[0m unknown task"),
        std::pair(worker + " --help", "\x1b[1mtasks\x1b[0m\r\n"),
        std::pair(ddprun + " --none", "\x1b[1;31merror:\x1b[0m"), std::pair(ddprun + " --help", "\x1b[1m")}) {
    CAPTURE(command);
    CHECK_THAT(shown(command, ""), ContainsSubstring(coloured));
    for (const char* without : {"NO_COLOR=1", "TERM=dumb"})
      CHECK_THAT(shown(command, without), !ContainsSubstring("\x1b["));
    CHECK_THAT(shown("( " + command + " ) 2>&1 | cat", ""), !ContainsSubstring("\x1b["));
  }
}
