#include "launcher/output/line_format.h"

#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using namespace std::string_literals;
using Lines = std::vector<std::string>;

Lines add(LineSplitter& splitter, std::string_view bytes) {
  Lines lines;
  splitter.add(bytes, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST_CASE("lines come out whole however the bytes come in", "[line_format]") {
  const std::string text = "one\n\ntwo\0\xff\r\nthree\n"s + "end";
  for (std::size_t step = 1; step <= text.size(); ++step) {
    LineSplitter splitter;
    Lines lines;
    for (std::size_t at = 0; at < text.size(); at += step)
      for (auto& line : add(splitter, std::string_view(text).substr(at, step))) lines.push_back(line);
    CHECK(lines == Lines{"one\n", "\n", "two\0\xff\r\n"s, "three\n"});
    CHECK(splitter.partial() == "end");
  }
}

TEST_CASE("lines that come together may leave together, after the one that had begun", "[line_format]") {
  LineSplitter splitter;
  Lines lines;
  for (const char* bytes : {"one\ntwo\nth", "ree", "\nfour\nfive\nsix"})
    splitter.add(
        bytes, [&](std::string_view line) { lines.emplace_back(line); }, /*together=*/true);
  CHECK(lines == Lines{"one\ntwo\n", "three\n", "four\nfive\n"});
  CHECK(splitter.partial() == "six");
}

TEST_CASE("a line that is too long comes in pieces, and nothing of it is lost", "[line_format]") {
  const std::size_t max = LineSplitter::kMaxLine;
  LineSplitter splitter;
  const std::string text = std::string(2 * max + 5, 'x') + "\nnext\n";
  Lines lines;
  for (std::size_t at = 0; at < text.size(); at += 65536)
    for (auto& line : add(splitter, std::string_view(text).substr(at, 65536))) lines.push_back(line);
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].size() == max);
  CHECK(lines[1].size() == max);
  CHECK(lines[2] == "xxxxx\n");
  CHECK(lines[3] == "next\n");
  CHECK(splitter.partial().empty());
}

TEST_CASE("a line of just the longest size is whole", "[line_format]") {
  LineSplitter splitter;
  CHECK(add(splitter, std::string(LineSplitter::kMaxLine - 1, 'x')).empty());
  CHECK(add(splitter, "\n") == Lines{std::string(LineSplitter::kMaxLine - 1, 'x') + "\n"});
}

TEST_CASE("what a progress bar has overwritten can be dropped", "[line_format]") {
  LineSplitter splitter;
  add(splitter, "10%\r20%\r30%\r");
  splitter.drop_overwritten();
  CHECK(splitter.partial() == "30%\r");
  CHECK(add(splitter, "40%\n") == Lines{"30%\r40%\n"});
}

TEST_CASE("a prefix is filled in from its template as Python's safe_substitute does", "[line_format]") {
  const LineSource source{"trainer", 3, 11, "node7"};
  CHECK(line_prefix(kDefaultPrefixTemplate, source) == "[trainer3]:");
  CHECK(line_prefix("[rank ${rank}/$local_rank] ", source) == "[rank 11/3] ");
  CHECK(line_prefix("${hostname}:${rank}: ", source) == "node7:11: ");
  CHECK(line_prefix("$$rank $other ${rank $ ${} $rank_x ${rank}s$", source) ==
        "$rank $other ${rank $ ${} $rank_x 11s$");
  CHECK(line_prefix("", source).empty());
}

TEST_CASE("colours, tabs, newlines and text pass to a terminal", "[line_format]") {
  for (const char* text : {"plain\ttext\n", "\x1b[1;31mred\x1b[0m", "\x1b[38:5:1mx\x1b[m\n",
                           "Gr\u00fc\u00dfe \u2714 \U0001F600", ""})
    CHECK(sanitized(text) == text);
}

TEST_CASE("what drives a terminal is taken out", "[line_format]") {
  const auto [text, shown] = GENERATE(table<std::string, std::string>({
      {"a\x1b[2Jb\x1b[10;20Hc", "abc"},                  // CSI
      {"a\x1b[?25lb\x1b[>4;1mc\x1b[ md", "abcd"},        // private, and not quite colours
      {"a\x1b]0;title\ab\x1b]52;c;AAAA\x1b\\c", "abc"},  // OSC
      {"a\x1bP1;2|x\x1b\\b\x1b_x\x1b\\c\x1b^x\x1b\\d\x1bXx\x1b\\e", "abcde"},  // DCS, APC, PM, SOS
      {"a\x1b(0b\x1b#8c\x1b"
       "cd\x1b=e",
       "abcde"},  // character sets, reset
      {"a\0b\b\x07\x0b\x0c\r\x7fz"s, "abz"},
      {"a\xc2\x9b"
       "2Jb\xc2\x9d"
       "0;t\ac\xc2\x85"
       "d",
       "abcd"},  // C1 in UTF-8
      {"a\x9b"
       "2Jb\x85"
       "c",
       "abc"},  // and bare
      {"a\x1b", "a"},
      {"a\x1b[12", "a12"},  // never ends: only the introducer goes
      {"a\x1b]0;title", "a0;title"},
      {"a\x1b[\x1b[31mb\x1b[0m", "a\x1b[31mb\x1b[0m"},
  }));
  CHECK(sanitized(text) == shown);
}

TEST_CASE("bytes that are not UTF-8 are shown as such", "[line_format]") {
  const std::string bad = "\xef\xbf\xbd";
  CHECK(sanitized("a\xff\xfe"
                  "b") == "a" + bad + bad + "b");
  CHECK(sanitized("\xe2\x9c") == bad);                  // cut; 9c alone is a C1 character
  CHECK(sanitized("\xc0\xaf") == bad + bad);            // overlong
  CHECK(sanitized("\xed\xa0\xa0") == bad + bad + bad);  // surrogate
  // Nothing that is taken out may let its neighbours become a character.
  CHECK(sanitized("\xc2\0\x9b"s + "2J").find('\x9b') == std::string::npos);
}

TEST_CASE("colours that are left on end with the text", "[line_format]") {
  CHECK(sanitized("\x1b[31mred\n") == "\x1b[31mred\x1b[0m\n");
  CHECK(sanitized("\x1b[31mred") == "\x1b[31mred\x1b[0m");
}

TEST_CASE("a text of nothing but introducers takes no time", "[line_format]") {
  std::string text;
  while (text.size() < LineSplitter::kMaxLine) text += "\x1b]\x1bP\x1b[0";
  CHECK(sanitized(text).size() < text.size());
}

TEST_CASE("of a line with carriage returns the last part is shown", "[line_format]") {
  CHECK(last_shown("10%\r20%\n") == "20%");
  CHECK(last_shown("10%\r20%\r") == "20%");
  CHECK(last_shown("dos\r\n") == "dos");
  CHECK(last_shown("plain") == "plain");
  CHECK(last_shown("\r\r").empty());
}

TEST_CASE("a line matches if one of the texts is in it", "[line_format]") {
  CHECK(matches_any("step 1 loss 2\n", {"acc", "loss"}));
  CHECK_FALSE(matches_any("step 1\n", {"acc", "loss"}));
  CHECK_FALSE(matches_any("step 1\n", {}));
}

TEST_CASE("the tail of an output is its last lines", "[line_format]") {
  OutputTail tail;
  CHECK(tail.lines().empty());
  tail.add("a\nb\n");
  tail.add("10%\r20%\nwithout end");
  CHECK(tail.lines() == Lines{"a", "b", "20%", "without end"});
  for (int i = 0; i < 100; ++i) tail.add("line " + std::to_string(i) + "\n");
  REQUIRE(tail.lines().size() == OutputTail::kMaxLines);
  CHECK(tail.lines().front() == "line 80");
  CHECK(tail.lines().back() == "line 99");
}

TEST_CASE("the tail of an output is bounded in bytes", "[line_format]") {
  OutputTail tail;
  const std::size_t chunk = GENERATE(std::size_t{1000}, std::size_t{100000});
  for (int i = 0; i < 100; ++i) tail.add(std::string(chunk, 'x'));
  tail.add("\nlast\n");
  const Lines lines = tail.lines();
  REQUIRE(lines.size() == 2);
  CHECK(lines[0].size() <= OutputTail::kMaxBytes);
  CHECK(lines[0].size() > OutputTail::kMaxBytes / 2);
  CHECK(lines[1] == "last");
}

}  // namespace
}  // namespace ddprun::launcher
