#include <map>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/common/settings/command.h>
#include "tests/support/catch.h"

namespace ddprun::settings {
namespace {

using test::ContainsSubstring;
using Words = std::vector<std::string>;

struct Targets {
  std::int64_t epochs = 1, batch_size = 8;
  double lr = 0.5;
  bool progress = true, join = false;
  std::string data;
  Words points;
};

Command make_command(Targets& targets) {
  Command command;
  command.name = "prog";
  command.description = "a program.";
  command.settings = {
      help_flag(),
      integer("epochs", targets.epochs, 1, 100, "passes over the data"),
      integer("batch-size", targets.batch_size, 1, 64, "samples a batch").short_flag("-b"),
      negated("progress", targets.progress, "no progress bar"),
      text("data", targets.data).or_empty(),
      list("point", targets.points, "X,Y"),
      number("lr", targets.lr, {0, 1, true, "a number above 0"}, "learning rate"),
      boolean("join", targets.join),
  };
  for (auto& setting : command.settings)
    if (setting.name == "lr" || setting.name == "join") setting.section = "train";
  command.positionals = {{"epochs", "EPOCHS"}};
  return command;
}

Targets apply(const Words& words) {
  Targets targets;
  const Command command = make_command(targets);
  read_words(words, command).apply(command.settings);
  return targets;
}

Targets apply_file(const std::string& toml) {
  const TempDir folder;
  const auto path = folder.path() / "a.toml";
  write_file_atomic(path, toml);
  Targets targets;
  const Command command = make_command(targets);
  read_toml(path, command).apply(command.settings);
  return targets;
}

TEST_CASE("flags have two spellings and three forms, and the last one wins", "[settings]") {
  for (const Words& words : {Words{"--batch-size", "3"}, Words{"--batch_size=3"}, Words{"-b3"},
                             Words{"-b", "3"}, Words{"-b=3"}, Words{"--batch-size=9", "--batch_size=3"}})
    CHECK(apply(words).batch_size == 3);
}

TEST_CASE("switches take a value after '=', and --no-NAME is the opposite of NAME", "[settings]") {
  CHECK(apply({"--join"}).join);
  CHECK_FALSE(apply({"--join", "--join=false"}).join);
  CHECK_FALSE(apply({"--no-progress"}).progress);
  CHECK(apply({"--no_progress=off"}).progress);
  CHECK(apply({"--no-progress", "--progress"}).progress);
  CHECK_FALSE(apply({"--progress=false"}).progress);
  CHECK_THROWS_WITH(apply({"--join=maybe"}), "--join: expected true or false, got 'maybe'");
}

TEST_CASE("words without a flag are positionals, and a list takes every mention", "[settings]") {
  const Targets targets = apply({"--point", "1,2", "7", "--point=3,4"});
  CHECK(targets.epochs == 7);
  CHECK(targets.points == Words{"1,2", "3,4"});
  CHECK(apply({"7", "--epochs=8"}).epochs == 8);
  CHECK_THROWS_WITH(apply({"--", "--x"}), "EPOCHS: expected an integer from 1 to 100, got '--x'");
  CHECK_THROWS_WITH(apply({"7", "8"}), ContainsSubstring("unexpected argument '8'; usage: prog [flags] "));
}

TEST_CASE("a mistyped flag is named with the flags that were meant", "[settings]") {
  CHECK_THROWS_WITH(apply({"--epoch=3"}), "unknown flag '--epoch': did you mean --epochs?");
  CHECK_THROWS_WITH(apply({"--bach_size=3"}), "unknown flag '--bach_size': did you mean --batch-size?");
  CHECK_THROWS_WITH(apply({"--nope"}), "unknown flag '--nope', see prog --help");
  CHECK_THROWS_WITH(apply({"-x"}), "unknown flag '-x', see prog --help");
}

TEST_CASE("a missing value is named, unless the flag may be empty", "[settings]") {
  CHECK(apply({"--data="}).data.empty());
  CHECK(apply({"--data", ""}).data.empty());
  CHECK_THROWS_WITH(apply({"--lr="}), "--lr: expected a value after '=', got none");
  CHECK_THROWS_WITH(apply({"--lr"}), "--lr: expected a value, got none");
}

TEST_CASE("a forgotten value does not swallow the next flag", "[settings]") {
  CHECK_THROWS_WITH(
      apply({"--data", "--join"}),
      "--data: expected a value, got the flag '--join'; if it is the value, write --data=--join");
  CHECK_THROWS_WITH(apply({"--data", "-b3"}),
                    ContainsSubstring("--data: expected a value, got the flag '-b3'"));
  CHECK_THROWS_WITH(apply({"-b", "--"}), ContainsSubstring("-b: expected a value, got the flag '--'"));
  CHECK_THROWS_WITH(apply({"--data", "--\x1b[31m"}), !ContainsSubstring("\x1b"));
  CHECK(apply({"--data", "-x"}).data == "-x");
  CHECK(apply({"--data=--join"}).data == "--join");
}

TEST_CASE("variables give flags", "[settings]") {
  Targets targets;
  const Command command = make_command(targets);
  const std::map<std::string, std::string> variables = {
      {"A_BATCH_SIZE", "x"}, {"A_NO_PROGRESS", "1"}, {"A_JOIN", ""}, {"A_LR", ""}};
  const Values values = read_variables(
      "A_",
      [&](const std::string& name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::nullopt : std::optional(found->second);
      },
      command.settings);
  CHECK(values.text("progress") == "false");
  CHECK(values.text("join") == "false");
  CHECK_FALSE(values.given("lr"));
  CHECK_THROWS_WITH(values.apply(command.settings),
                    "A_BATCH_SIZE: expected an integer from 1 to 64, got 'x'");
}

TEST_CASE("a file sets keys of either spelling, in their sections", "[settings]") {
  const Targets targets =
      apply_file("batch-size = 3\nprogress = false\npoint = [\"1,2\", 3]\n[train]\nlr = 1\n");
  CHECK(targets.batch_size == 3);
  CHECK_FALSE(targets.progress);
  CHECK(targets.points == Words{"1,2", "3"});
  CHECK(targets.lr == 1);
  CHECK_FALSE(apply_file("no_progress = true").progress);
  CHECK_THROWS_WITH(apply_file("batch_size = 3\nbatch-size = 4"),
                    ContainsSubstring("batch_size: set a second time, after "));
  CHECK_THROWS_WITH(apply_file("progress = true\nno_progress = true"),
                    ContainsSubstring("set a second time"));
  CHECK_THROWS_WITH(apply_file("data = \"a\\u0000b\""),
                    ContainsSubstring("a.toml:1: data: expected text without NUL"));
  CHECK_THROWS_WITH(apply_file("lr = 1"), ContainsSubstring("a.toml:1: 'lr' belongs under [train]"));
  CHECK_THROWS_WITH(apply_file("batch_size = 99"),
                    ContainsSubstring("a.toml:1: batch_size: expected an integer from 1 to 64, got 99"));
}

TEST_CASE("what to_toml writes reads back", "[settings]") {
  Targets targets;
  targets.lr = 1;
  targets.data = "a\n\"b\"";
  const Command command = make_command(targets);
  const std::string text = to_toml(command, true);
  CHECK_THAT(text, ContainsSubstring("lr = 1.0\n") && ContainsSubstring("[train]\n"));
  CHECK(apply_file(text).data == targets.data);
  targets.data = "";
  CHECK_THAT(to_toml(command, true), ContainsSubstring("# data is not set\n"));
}

TEST_CASE("the help shows every flag with its value, explanation and default", "[settings]") {
  Targets targets;
  const std::string text = help_text(make_command(targets));
  CHECK_THAT(text, ContainsSubstring("usage: prog [flags] EPOCHS\n") &&
                       ContainsSubstring("\n  -b, --batch-size N        samples a batch [8]\n") &&
                       ContainsSubstring("\ntrain\n  --lr X ") && ContainsSubstring("  -h, --help"));
}

TEST_CASE("texts become values only as a whole", "[settings]") {
  CHECK(parse_integer("010", 0, 10) == 10);
  for (const char* text : {"", " 1", "1 ", "+1", "1.0", "11", "-1", "99999999999999999999"})
    CHECK_FALSE(parse_integer(text, 0, 10));
  CHECK(parse_number("1e-3") == 1e-3);
  for (const char* text : {"", " 1", "0x1p3", "inf", "nan", "1e999"}) CHECK_FALSE(parse_number(text));
  CHECK(parse_truth("yes") == true);
  CHECK(parse_truth("0") == false);
  CHECK_FALSE(parse_truth("2"));
  CHECK(split("a,,b", ',') == Words{"a", "", "b"});
  CHECK(split("", ',') == Words{""});
  CHECK(one_of({"a"}) == "a");
  CHECK(one_of({"a", "b", "c"}) == "a, b or c");
}

}  // namespace
}  // namespace ddprun::settings
