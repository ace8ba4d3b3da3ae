// What people see when a training ends: its results, or one error.
#include <regex>

#include <ddprun/common/text.h>
#include <ddprun/image/image_files.h>
#include "tests/integration/sam_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

auto lines_with(const std::string& begin, const std::string& text) {
  return std::ranges::count_if(lines_of(text), [&](const auto& line) { return line.starts_with(begin); });
}

}  // namespace

TEST_CASE("a training ends with a card of its results and the next commands, from rank 0", "[training]") {
  const TempDir dir;
  Command command;
  command.argv = {DDPRUN_PROGRAM, "--nproc-per-node=2", WORKER_PROGRAM, "linear",         "--epochs=3",
                  "--out=run",    "--save-top-k=1",     "--lr=0.01",    "--val-split=0.2"};
  command.in_child = [&] {
    if (::chdir(dir.path().c_str()) != 0) ::_exit(122);
  };
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto out = child.out();
  CAPTURE(out);
  const auto best = read_summary(dir.path() / "run")["best_checkpoint"].get<std::string>();
  CHECK_THAT(out, ContainsSubstring("\n  best        val_loss ") && ContainsSubstring(" of 3:") &&
                      ContainsSubstring(" " + fs::path(best).lexically_relative("run").string() + "\n"));
  CHECK(lines_with("  speed       ", out) == 1);
  CHECK(lines_with("  memory      ", out) == 1);
  CHECK(lines_with("  run         run/", out) == 1);
  CHECK(lines_with("  checkpoint  checkpoints/", out) == 1);
  CHECK(lines_with("  report      report.html", out) == 1);
  CHECK(lines_with("  training    train_loss ", out) == 1);
  CHECK_THAT(out, ContainsSubstring(" --resume run") && ContainsSubstring("--predict FILE.csv") &&
                      ContainsSubstring("--checkpoint run"));
  const auto lines = lines_of(out);
  const auto first = std::ranges::find_if(
      lines, [](const auto& line) { return line.starts_with("Training completed: 3 epochs"); });
  REQUIRE(first != lines.end());
  for (auto line = first; line != lines.end(); ++line)  // the program's path is a single word
    CHECK((line->size() <= 69 || line->find(WORKER_PROGRAM) != std::string::npos));
  for (const char* figure : {"completed: 3 epochs, [0-9]+ steps in [0-9.]+ s",
                             "\n  speed       [0-9]+ samples/s", "\n  memory      [0-9]+ MiB"})
    CHECK(std::regex_search(out, std::regex(figure)));

  const auto check_printed = [&](const std::string& name, const std::string& said) {
    const auto line =
        std::ranges::find_if(lines, [&](const auto& each) { return each.starts_with("  " + name); });
    REQUIRE(line != lines.end());
    CAPTURE(*line);
    Command printed{{"sh", "-c", line->substr(14)}};
    printed.in_child = command.in_child;
    Child next(printed);
    CHECK(next.wait(kTraining) == ExitStatus::exited(0));
    CHECK_THAT(next.out() + next.err(), ContainsSubstring(said));
  };
  check_printed("evaluate", "Validation set: ");
  check_printed("continue", "Training completed: 6 epochs");
}

TEST_CASE("what a run reports is its best model, where one is kept, and its last one too", "[training]") {
  const SamRun sam;
  const auto run = sam.dir.path() / "run";
  sam.run(2, "run", {"--epochs=6", "--lr=0.01", "--prompts-per-image=1"});  // soon too large
  const auto summary = read_summary(run);
  REQUIRE(summary["best"]["step"] < summary["last"]["step"]);
  CHECK(summary["epochs_count_from"] == 0);
  CHECK(summary["last"]["val_dice"].get<double>() ==
        Approx(std::stod(values_of(run, "val_dice").back())).epsilon(1e-4));
  REQUIRE(summary["best"]["val_dice"].get<double>() > summary["last"]["val_dice"].get<double>() + 1e-3);
  CHECK(summary["val_dice"].get<double>() == Approx(summary["best"]["val_dice"].get<double>()).epsilon(1e-4));
  const auto page = read_file(run / "report.html");
  const std::string dice = "<dt>validation Dice</dt><dd>";
  REQUIRE(page.find(dice) != std::string::npos);
  CHECK(std::stod(page.substr(page.find(dice) + dice.size(), 9)) ==
        Approx(summary["best"]["val_dice"].get<double>()).margin(2e-4));
  double sum = 0, shown = 0;  // of the pictures' captions
  for (const auto& caption : image::read_png(run / "figures/samples.png").captions)
    if (const std::string before = "Predicted Mask, Dice "; caption.text.starts_with(before)) {
      CHECK_THAT(page, ContainsSubstring(caption.text));
      sum += std::stod(caption.text.substr(before.size()));
      ++shown;
    }
  REQUIRE(shown > 0);
  CHECK(sum / shown == Approx(summary["best"]["val_dice"].get<double>()).margin(2e-4));
  auto evaluation = training("sam", 2, sam.dir.path() / "eval", {"--eval=" + run.string()});
  evaluation.env["OMP_NUM_THREADS"] = "1";
  Child child(evaluation);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto again = nlohmann::json::parse(read_file(sam.dir.path() / "eval/evaluation.json"));
  CHECK(again["val_dice"].get<double>() == Approx(summary["val_dice"].get<double>()).epsilon(1e-4));
}

TEST_CASE("a task that keeps its best model tests that one at the end, and says so", "[training]") {
  const auto [task, metric, of_task] = GENERATE(table<std::string, std::string, std::vector<std::string>>(
      {{"linear", "val_loss", {"--lr=0.01", "--val-split=0.2"}},
       {"mnist",
        "test_loss",
        {"--data=fashion-mnist", "--limit-train=320", "--limit-test=100", "--batch-size=32"}}}));
  if (task == "mnist") need_fashion_mnist();
  const TempDir dir;
  const auto run = dir.path() / "run";
  auto flags = of_task;  // the worst is to pass for the best: the first epoch
  flags.insert(flags.end(), {"--epochs=3", "--save-top-k=1", "--monitor=train_loss_epoch", "--mode=max"});
  Child child(training(task, 2, run, flags));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto losses = values_of(run, metric);
  REQUIRE(losses.size() == 3);
  const double best = std::stod(losses.front());
  REQUIRE(std::stod(losses.back()) < 0.99 * best);
  const auto summary = read_summary(run);
  CHECK(summary[metric].get<double>() == Approx(best).epsilon(1e-3));
  CHECK(summary["best"][metric].get<double>() == Approx(best).epsilon(1e-3));
  CHECK(summary["last"][metric].get<double>() == Approx(std::stod(losses.back())).epsilon(1e-3));
  const auto out = child.out();
  CAPTURE(out);
  CHECK(lines_with(task == "mnist" ? "  test        test_loss " : "  validation  val_loss ", out) == 1);
  CHECK_THAT(out, ContainsSubstring(", of the best\n") && ContainsSubstring(" --eval " + run.string()));
  CHECK_THAT(out, ContainsSubstring(", of the last epoch\n") && ContainsSubstring(" in epoch 1 of 3:"));
  if (task == "mnist") {  // its pictures, too, are the best model's
    const auto right = values_of(run, "test_acc");
    REQUIRE(right.front() != right.back());
    CHECK_THAT(read_file(run / "figures/confusion.svg"),
               ContainsSubstring(formatted("%.2f %% of 100 right", 100 * std::stod(right.front()))));
  }
  CHECK_THAT(read_file(run / "report.html"), ContainsSubstring("training loss, last epoch"));
}

TEST_CASE("a training whose last loss is NaN fails, with few restarts, unless --allow-nan", "[training]") {
  const TempDir dir;
  const std::vector<std::string> diverging = {"2", "1", "--lr=1e10"};
  auto command = training("toy", 2, dir.path() / "run", diverging);
  command.argv.insert(command.argv.begin() + 1, "--max-restarts=1");
  Child failed(command);
  CHECK(failed.wait(kTraining) == ExitStatus::exited(1));
  CHECK(lines_with("worker: error: the training has diverged", failed.err()) <= 2);  // one for each attempt
  CHECK_THAT(failed.err(), ContainsSubstring("has ended") && ContainsSubstring("--max-restarts=1 "));
  const auto summary = read_summary(dir.path() / "run");  // complete: nothing ended rank 0 before
  CHECK(summary["diverged"] == true);
  CHECK(summary["train_loss"].is_null());
  CHECK(fs::exists(dir.path() / "run/report.html"));

  auto flags = diverging;
  flags.emplace_back("--allow-nan");
  Child allowed(training("toy", 2, dir.path() / "allowed", flags));
  CHECK(allowed.wait(kTraining) == ExitStatus::exited(0));
}

TEST_CASE("an error that all ranks have is printed by one of them", "[training]") {
  const TempDir dir;
  for (const std::string flag : {"--data=nothing", "--eval=nothing.pt"}) {
    CAPTURE(flag);
    auto command = training("linear", 4, dir.path() / "run", {flag});
    Child child(command);
    CHECK(child.wait(kTraining) == ExitStatus::exited(1));
    CHECK(lines_with("worker: error: ", child.err()) <= 1);
    CHECK_THAT(child.err(), ContainsSubstring("nothing"));
  }
  Child alone(training("linear", 0, dir.path() / "run", {"--data=nothing"}));
  CHECK(alone.wait(kTraining) == ExitStatus::exited(1));
  CHECK(lines_with("worker: error: ", alone.err()) == 1);
}

TEST_CASE("flags that people try get a hint", "[training]") {
  const auto refused = [](const std::vector<std::string>& words) {
    auto child = start_worker(words);
    CHECK(child.wait(kTraining) == ExitStatus::exited(2));
    CHECK(lines_of(child.err()).size() == 1);
    return child.err();
  };
  CHECK_THAT(refused({"--epochs", "3", "mnist"}),
             ContainsSubstring("expected the task before its flags: worker mnist --epochs ..."));
  CHECK_THAT(refused({"mnist", "--gpu"}), ContainsSubstring("did you mean --device?"));
  CHECK_THAT(refused({"mnist", "--data", "fashion_mnist"}), ContainsSubstring("did you mean fashion-mnist?"));
}

TEST_CASE("mnist says when it trains on Fashion-MNIST instead", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  auto command = mnist(0, dir.path() / "run", {"--limit-train=64", "--limit-test=10", "--epochs=1"});
  command.env["HOME"] = command.env["XDG_CACHE_HOME"] = dir.path().string();
  command.env["DDPRUN_DATA"] = dir.path().string();
  Child child(command);
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK(count_of("Fashion-MNIST: no MNIST found", child.out()) == 1);
  Child asked(mnist(0, dir.path() / "asked", small({"--max-steps=1"})));
  REQUIRE(asked.wait(kTraining) == ExitStatus::exited(0));
  CHECK(count_of("no MNIST found", asked.out()) == 0);
}
