// The documented trainings, by the real programs: their lines, files and losses.
#include <fstream>
#include <regex>
#include <tuple>

#include "tests/integration/cifar10_files.h"
#include "tests/integration/training_job.h"

using namespace ddprun;
using namespace ddprun::test;

namespace {

/// The folder of CIFAR-10's files in this one; empty if there is none.
fs::path cifar10_in(const fs::path& folder) {
  for (const auto& place : {folder, folder / "cifar-10-batches-bin"})
    if (fs::exists(place / "data_batch_1.bin")) return place;
  return {};
}

/// The real pictures; without them the test is skipped. What is packed is unpacked into the folder.
fs::path real_cifar10(const fs::path& scratch) {
  const char* given = std::getenv("DDPRUN_DATA");
  for (const auto& root : {fs::path(given == nullptr ? "" : given), cache_folder() / "data"})
    if (const auto found = cifar10_in(root / "cifar10"); !found.empty()) return found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(beside_the_repository("data/cifar10"), none)) {
    if (!entry.path().filename().string().ends_with(".tar.xz")) continue;
    Child tar({{"tar", "-xJf", entry.path().string(), "-C", scratch.string()}});
    if (tar.wait(kTraining) != ExitStatus::exited(0)) skip("tar cannot unpack it: " + tar.err());
    if (const auto found = cifar10_in(scratch); !found.empty()) return found;
  }
  skip("CIFAR-10 is neither in $DDPRUN_DATA nor in the cache folder (scripts/get_data.sh cifar10)");
}

nlohmann::json golden_losses(const std::string& task) {
  return nlohmann::json::parse(read_file(fs::path(DDPRUN_GOLDEN_DIR) / "tasks" / (task + ".json")));
}

/// The first thirty losses, each of all ranks. With the golden run's choice of instructions they differed by
/// 1.4e-7 at most, of cifar10; the rest is room for another machine's rounding.
void check_losses(const fs::path& out, const nlohmann::json& golden) {
  const auto losses = values_of(out, "train_loss");
  const auto expected = golden["losses"].get<std::vector<double>>();
  REQUIRE(expected.size() == 30);
  REQUIRE(losses.size() >= expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    CHECK(std::stod(losses[i]) == Approx(expected[i]).epsilon(1e-5));
  }
}

}  // namespace

TEST_CASE("toy: the losses of thirty steps on two ranks are those of Python's DDP", "[training]") {
  const TempDir dir;
  const auto golden = golden_losses("toy");
  Child child(training("toy", 2, dir.path() / "run", {"1", "1", "--log-interval=1", "--max-steps=30"},
                       golden["environment"]));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  check_losses(dir.path() / "run", golden);
}

TEST_CASE("linear: the losses of thirty steps on two ranks are those of Python's DDP", "[training]") {
  const TempDir dir;
  const auto golden = golden_losses("linear");
  Child child(
      training("linear", 2, dir.path() / "run", {"--epochs=2", "--log-interval=1"}, golden["environment"]));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  check_losses(dir.path() / "run", golden);
}

TEST_CASE("cifar10: the losses of thirty steps on two ranks are those of Python's DDP", "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 240, 10);
  const auto golden = golden_losses("cifar10");
  Child child(training("cifar10", 2, dir.path() / "run",
                       {"--data=" + (dir.path() / "data").string(), "--epochs=1", "--batch-size=4",
                        "--lr=0.01", "--no-augment", "--precision=32", "--val-on-test", "--log-interval=1"},
                       golden["environment"]));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  check_losses(dir.path() / "run", golden);
}

TEST_CASE("cifar10: channels last changes no loss", "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 80, 10);
  std::vector<std::vector<std::string>> losses;
  for (const char* flag : {"--channels-last=false", "--channels-last"}) {
    const auto out = dir.path() / flag;
    Child child(
        training("cifar10", 0, out,
                 {"--data=" + (dir.path() / "data").string(), "--max-steps=5", "--batch-size=16", "--lr=0.01",
                  "--precision=32", "--val-on-test", "--stem=cifar", "--log-interval=1", flag}));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    losses.push_back(values_of(out, "train_loss"));
    losses.back().push_back(values_of(out, "val_loss").at(0));
  }
  REQUIRE(losses[0].size() == 5 + 1);
  REQUIRE(losses[1].size() == losses[0].size());
  for (std::size_t i = 0; i < losses[0].size(); ++i) {
    CAPTURE(i);
    CHECK(std::stod(losses[1][i]) == Approx(std::stod(losses[0][i])).epsilon(1e-3));
  }
}

TEST_CASE("mnist says once if it is the test set that judges", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  auto warnings = [&, runs = 0](std::vector<std::string> flags) mutable {
    flags.insert(flags.end(), {"--limit-train=32", "--limit-test=10", "--batch-size=8"});
    Child child(mnist(2, dir.path() / std::to_string(++runs), small(flags)));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    const auto lines = count_of("uses test_loss", child.err());
    CHECK(count_of("use --val-split, or name another metric with --monitor", child.err()) == lines);
    return lines;
  };
  CHECK(warnings({"--patience=2", "--save-top-k=1"}) == 1);
  CHECK(warnings({"--lr-schedule=plateau"}) == 1);
  CHECK(warnings({"--patience=2", "--val-split=0.5"}) == 0);
  CHECK(warnings({"--patience=2", "--monitor=test_loss"}) == 0);
  CHECK(warnings({}) == 0);
}

TEST_CASE("the documents' lines are printed as they print them", "[training]") {
  need_fashion_mnist();
  const TempDir dir;
  // The documents' f-strings, as regular expressions. mnist's is that of PyTorch's example, whose format the
  // document shortens.
  const std::vector<std::tuple<const char*, std::vector<std::string>, std::vector<const char*>>> documents = {
      {"toy",
       {"2", "1"},
       {R"(\[(GPU|CPU)\d+\] Epoch \d+ \| Batchsize: \d+ \| Steps: \d+)",
        R"(Epoch \d+ \| Training checkpoint saved at \S+)"}},
      {"linear", {"--epochs=2"}, {R"(Rank \d+, Epoch \d+/\d+, Loss: \d+\.\d{4})"}},
      {"mnist", small({}), {R"(Train Epoch: \d+ \[\d+/\d+ \(\d+%\)\]\tLoss: \d+\.\d{6})"}}};
  for (const auto& [task, flags, lines] : documents) {
    Child child(training(task, 0, dir.path() / task, flags));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    for (const char* line : lines) {
      INFO(task << ": " << line << " in\n" << child.out());
      const std::regex expression("(^|\n)" + std::string(line) + "\n");
      CHECK(std::regex_search(child.out(), expression));
    }
    // One rank: the n-th line has the samples before its step, as batch_idx * len(data).
    if (task == std::string("mnist"))
      CHECK_THAT(child.out(), ContainsSubstring("Train Epoch: 1 [0/640 (0%)]\tLoss: ") &&
                                  ContainsSubstring("Train Epoch: 1 [320/640 (50%)]\tLoss: "));
  }
}

TEST_CASE("a learning rate that warms up is printed with the highest one", "[training]") {
  const TempDir dir;
  const auto line_of = [&](const std::string& name, const std::vector<std::string>& flags) {
    Child child(training("linear", 0, dir.path() / name, flags));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    return child.out();
  };
  CHECK_THAT(line_of("warm", {"--max-steps=1", "--lr=5e-4", "--warmup-steps=5"}),
             ContainsSubstring("learning rate 5e-06, up to 5e-04, 11 parameters\n"));
  CHECK_THAT(line_of("cycle", {"--epochs=1", "--lr=0.5", "--lr-schedule=one-cycle"}),
             ContainsSubstring("learning rate 0.02, up to 0.5, "));
  CHECK_THAT(line_of("plain", {"--max-steps=1", "--lr=5e-4"}),
             ContainsSubstring("learning rate 0.0005, 11 "));
}

TEST_CASE("an estimate measures a few steps and leaves nothing behind", "[training]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(training("linear", 2, out, {"--estimate"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto table = child.out();
  INFO(table);
  const std::regex row(R"((^|\n) +(\d+) +\d+ +\S+ m?s +\S+ m?s +\S+ m?s +\d+ %)");
  CHECK(std::distance(std::sregex_iterator(table.begin(), table.end(), row), {}) == 4);
  CHECK(count_of("measured\n", table) == 1);
  CHECK_FALSE(fs::exists(out));
}

TEST_CASE("toy prints the tutorial's lines and writes its checkpoint.pt", "[training]") {
  const TempDir dir;
  for (const int ranks : {0, 2}) {
    const auto out = dir.path() / std::to_string(ranks);
    Child child(training("toy", ranks, out, {"5", "2"}));
    REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
    const std::string steps = ranks == 2 ? "32" : "64";
    for (int epoch = 0; epoch < 5; ++epoch)
      for (int rank = 0; rank < std::max(ranks, 1); ++rank)
        CHECK(count_of("[CPU" + std::to_string(rank) + "] Epoch " + std::to_string(epoch) +
                           " | Batchsize: 32 | Steps: " + steps + "\n",
                       child.out()) == 1);
    for (const int epoch : {0, 2, 4})
      CHECK(count_of("Epoch " + std::to_string(epoch) + " | Training checkpoint saved at " +
                         (out / "checkpoint.pt").string() + "\n",
                     child.out()) == 1);
    CHECK(count_of("Training checkpoint saved", child.out()) == 3);
    CHECK(count_of("\n  training    train_loss 0.", child.out()) == 1);
    CHECK(fs::file_size(out / "checkpoint.pt") > 0);
    CHECK(fs::exists(out / "checkpoints/last.pt"));
    CHECK(read_summary(out)["epochs"] == 5);
    CHECK_FALSE(read_summary(out).contains("train_acc"));
    CHECK(count_of("warning", child.err()) == 0);
  }
}

TEST_CASE("toy with the document's loss says that nothing is learnt, and nothing is", "[training]") {
  const TempDir dir;
  Child child(training("toy", 0, dir.path() / "run", {"2", "1", "--loss", "cross_entropy"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(child.err(), ContainsSubstring("nothing is learnt") && ContainsSubstring("--loss=mse"));
  CHECK(read_summary(dir.path() / "run")["train_loss"] == 0.0);
}

TEST_CASE("toy's checkpoint.pt loads into Python's Linear(20, 1) by plain torch.load", "[training]") {
  const auto python = python_with("torch");
  const TempDir dir;
  Child child(training("toy", 0, dir.path() / "run", {"1", "1"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  Command command;
  command.argv = {python, "-c",
                  "import sys, torch; m = torch.nn.Linear(20, 1); "
                  "m.load_state_dict(torch.load(sys.argv[1]), strict=True); print(m.weight.shape)",
                  (dir.path() / "run/checkpoint.pt").string()};
  Child loader(command);
  CHECK(loader.wait(kTraining) == ExitStatus::exited(0));
  CHECK_THAT(loader.out(), ContainsSubstring("torch.Size([1, 20])"));
}

TEST_CASE("toy without its two numbers says what is missing", "[training]") {
  const TempDir dir;
  Child child(training("toy", 0, dir.path() / "run", {"5"}));
  CHECK(child.wait() == ExitStatus::exited(2));
  CHECK_THAT(child.err(),
             ContainsSubstring("SAVE_EVERY is missing; usage: worker toy [flags] TOTAL_EPOCHS SAVE_EVERY"));
}

TEST_CASE("linear prints the document's line on every rank, and learns what is in a table", "[training]") {
  const TempDir dir;
  {
    std::ofstream table(dir.path() / "table.csv");
    table << "a,b,label\n";
    for (int i = 0; i < 200; ++i) table << i % 7 - 3 << "," << i % 5 - 2 << "," << (i % 7 > 3) << "\n";
  }
  Child child(training(
      "linear", 2, dir.path() / "run",
      {"--data=" + (dir.path() / "table.csv").string(), "--epochs=20", "--lr=0.05", "--val-split=0.2"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  for (const char* line : {"Rank 0, Epoch 1/20, Loss: ", "Rank 1, Epoch 20/20, Loss: "})
    CHECK(count_of(line, child.out()) == 1);
  const auto summary = read_summary(dir.path() / "run");
  CHECK(summary["val_acc"].get<double>() > 0.95);
  CHECK(summary["val_loss"].get<double>() < 0.4);
}

TEST_CASE("linear names the line of a table that is wrong", "[training]") {
  const TempDir dir;
  std::ofstream(dir.path() / "table.csv") << "1,2,0\n3,4,2\n";
  Child child(training("linear", 0, dir.path() / "run", {"--data=" + (dir.path() / "table.csv").string()}));
  CHECK(child.wait() == ExitStatus::exited(1));
  CHECK_THAT(child.err(),
             ContainsSubstring("table.csv: line 2, column 3: expected a label that is 0 or 1, got '2'"));
}

TEST_CASE("cifar10 learns to tell real pictures apart", "[training][.slow]") {
  const TempDir dir;
  const auto out = dir.path() / "run";
  Child child(training("cifar10", 2, out,
                       {"--data=" + real_cifar10(dir.path()).string(), "--stem=cifar",
                        "--precision=bf16-mixed", "--max-steps=100", "--batch-size=32", "--lr=0.02",
                        "--lr-schedule=one-cycle", "--limit-val=500", "--limit-test=1000"}));
  REQUIRE(child.wait(10 * kTraining) == ExitStatus::exited(0));
  const auto summary = read_summary(out);
  std::cout << "test accuracy after " << summary["steps"] << " steps of 64 pictures: " << summary["test_acc"]
            << std::endl;
  CHECK(summary["steps"] == 100);
  CHECK(summary["test_acc"] > 0.25);  // by chance 0.1, and 0.014 of scatter with 1000 pictures
}

TEST_CASE("cifar10 keeps the document's checkpoints and tests the best of them", "[training]") {
  const TempDir dir;
  write_cifar10(dir.path() / "data", 100, 20);
  const auto out = dir.path() / "run";
  const auto cifar10 = [&](const fs::path& folder, std::vector<std::string> flags) {
    for (const auto& flag : {"--data=" + (dir.path() / "data").string(), std::string("--batch-size=16"),
                             std::string("--lr=0.01"), std::string("--val-split=0.2"),
                             std::string("--stem=cifar"), std::string("--precision=bf16-mixed")})
      flags.push_back(flag);
    return training("cifar10", 2, folder, flags);
  };
  // The worst is to pass for the best: the first epoch, and not the last as it may be by chance.
  Child child(cifar10(out, {"--epochs=5", "--monitor=train_loss_epoch", "--mode=max"}));
  REQUIRE(child.wait(kTraining) == ExitStatus::exited(0));
  const auto summary = read_summary(out);
  CHECK(summary.contains("val_acc"));
  CHECK(summary.contains("test_acc"));
  CHECK(summary["best"]["step"] < summary["last"]["step"]);
  CHECK(summary["best"]["val_loss"] != summary["last"]["val_loss"]);
  const std::string best = summary["best_checkpoint"];
  CHECK_THAT(best, ContainsSubstring("checkpoints/ddp-cifar10-epoch=00") && ContainsSubstring("-val_acc=0."));
  CHECK(fs::exists(best));
  CHECK_THAT(child.out(), ContainsSubstring("best checkpoint: " + best));
  CHECK_THAT(child.out(),
             ContainsSubstring("Epoch 1 [") && !ContainsSubstring("Epoch 0 ["));  // for people, from 1
  int kept = 0;
  for (const auto& entry : fs::directory_iterator(out / "checkpoints"))
    kept += entry.path().filename().string().starts_with("ddp-cifar10-") ? 1 : 0;
  CHECK(kept == 3);
  CHECK(fs::exists(out / "checkpoints/last.ckpt"));
  // The learning rate is scaled by the ranks, and the cosine of 200 epochs has hardly begun to fall.
  const auto rates = values_of(out, "lr");
  CHECK(std::stod(rates.front()) == Approx(0.02));
  CHECK(std::stod(rates.back()) == Approx(0.02 * (1 + std::cos(4 * M_PI / 200)) / 2));

  // Nothing is left to train after these epochs: only the test is made, of the checkpoint's weights.
  const auto tested = [&](const fs::path& checkpoint, const char* epochs) {
    const auto folder = dir.path() / checkpoint.stem();
    Child again(cifar10(folder, {"--resume=" + checkpoint.string(), epochs, "--save-top-k=0"}));
    REQUIRE(again.wait(kTraining) == ExitStatus::exited(0));
    const auto figures = read_summary(folder);
    return std::pair(figures["test_loss"], figures["test_acc"]);
  };
  CHECK(tested(best, "--epochs=1") == std::pair(summary["test_loss"], summary["test_acc"]));
  CHECK(tested(out / "checkpoints/last.ckpt", "--epochs=5").first != summary["test_loss"]);
}
