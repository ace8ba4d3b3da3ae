#include <ddprun/common/text.h>

#include <ddprun/common/errors.h>
#include "tests/support/catch.h"

namespace ddprun {
namespace {

using Lines = std::vector<std::string>;

TEST_CASE("text in any language stays as it is", "[printable]") {
  for (const char* text : {"plain", "a\tb",
                           "Gr\xc3\xbc\xc3\x9f"
                           "e",
                           "\xe6\x97\xa5\xe6\x9c\xac", "\xf0\x9f\x98\x80", "\xc2\xa0"})
    CHECK(printable(text) == text);
}

TEST_CASE("colours are dropped, other control characters become '?'", "[printable]") {
  CHECK(printable("\x1b[31;1mred\x1b[0m") == "red");
  CHECK(printable("\x1b[38:5:1mred\x1b[m") == "red");
  CHECK(printable("\x1b[2J") == "?[2J");
  CHECK(printable("\x1b[31") == "?[31");
  CHECK(printable("\x1b]0;t\x07") == "?]0;t?");
  CHECK(printable(std::string("a\0b\x7f", 4)) == "a?b?");
  CHECK(printable("\xc2\x9b"
                  "2J") == "?2J");  // CSI as one character
  CHECK(printable("\xe2\x80\xae"
                  "txt.exe") == "?txt.exe");  // right-to-left override
}

TEST_CASE("each byte that is not UTF-8 becomes '?'", "[printable]") {
  CHECK(printable("\x9b"
                  "2J") == "?2J");
  CHECK(printable("\xff\xfe") == "??");
  CHECK(printable("\xc3") == "?");
  CHECK(printable("\xc0\x9b") == "??");            // overlong
  CHECK(printable("\xe0\x82\x9b") == "???");       // overlong
  CHECK(printable("\xed\xa0\x80") == "???");       // surrogate
  CHECK(printable("\xf4\x90\x80\x80") == "????");  // beyond Unicode
  CHECK(printable("\xe6\x97"
                  "a") == "??a");
}

TEST_CASE("lines show the last state of what was written over", "[printable]") {
  CHECK(printable_lines("a\n\nb") == Lines{"a", "", "b"});
  CHECK(printable_lines("a\n\n\n") == Lines{"a"});
  CHECK(printable_lines("1%\r2%\r3%\nend\r\n") == Lines{"3%", "end"});
  CHECK(printable_lines("1%\r2%\r") == Lines{"2%"});
  CHECK(printable_lines("").empty());
}

TEST_CASE("a long line is cut between characters", "[printable]") {
  CHECK(shortened("abcdef", 6) == "abcdef");
  CHECK(shortened("abcdefg", 6) == "abc...");
  CHECK(shortened("ab\xc3\xbc"
                  "defg",
                  6) == "ab...");
  CHECK(shortened("abc", 2) == "...");
}

TEST_CASE("many lines show their first and their last", "[printable]") {
  CHECK(first_and_last({"1", "2", "3", "4", "5"}, 1, 2) == Lines{"1", "... (2 lines left out)", "4", "5"});
  CHECK(first_and_last({"1", "2", "3", "4"}, 1, 2) == Lines{"1", "2", "3", "4"});
  CHECK(first_and_last({}, 1, 2).empty());
}

TEST_CASE("sentences are broken at spaces", "[printable]") {
  CHECK(wrapped("one two three", 7) == Lines{"one two", "three"});
  CHECK(wrapped("averylongword two", 7) == Lines{"averylongword", "two"});
  CHECK(wrapped("", 7).empty());
}

TEST_CASE("text that is UTF-8 stays as it is", "[utf8]") {
  const std::string text = "a\tb\n\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";
  CHECK(valid_utf8(text) == text);
  CHECK(valid_utf8("").empty());
}

TEST_CASE("invalid UTF-8 is replaced, byte by byte", "[utf8]") {
  const std::string r = "\xef\xbf\xbd";
  CHECK(valid_utf8("a\xff"
                   "b") == "a" + r + "b");
  CHECK(valid_utf8("\xe2\x82") == r + r);              // cut off
  CHECK(valid_utf8("\xc0\x80") == r + r);              // overlong
  CHECK(valid_utf8("\xed\xa0\x80") == r + r + r);      // half of a pair
  CHECK(valid_utf8("\xf4\x90\x80\x80").size() == 12);  // beyond U+10FFFF
}

TEST_CASE("control characters are replaced, C1 ones too", "[utf8]") {
  const std::string r = "\xef\xbf\xbd";
  CHECK(valid_utf8(std::string("\0", 1)) == r);
  CHECK(valid_utf8("\x1b[31m") == r + "[31m");
  CHECK(valid_utf8("\xc2\x9b") == r);
}

TEST_CASE("a text of several lines becomes one, which cannot drive a terminal", "[one_line]") {
  CHECK(one_line("/tmp/x\ny\r\x1b[2J\x7f") == "/tmp/x?y??[2J?");
  CHECK(one_line(std::string_view("a\0b", 3)) == "a?b");
}

TEST_CASE("an ordinary text stays as it is, tabs and letters beyond ASCII too", "[one_line]") {
  CHECK(one_line("gr\xc3\xb6\xc3\x9f"
                 "er\tLoss: 1") ==
        "gr\xc3\xb6\xc3\x9f"
        "er\tLoss: 1");
  CHECK(one_line("no UTF-8: \xff") == "no UTF-8: \xff");
  CHECK(one_line("").empty());
}

TEST_CASE("an error of ours is one line, whatever it names", "[one_line]") {
  CHECK(UsageError("--lr: got '1\n2'").what() == std::string("--lr: got '1?2'"));
  const IoError error("/tmp/x\ny", "is cut");
  CHECK(error.what() == std::string("/tmp/x?y: is cut"));
  CHECK(error.path == "/tmp/x\ny");
}

TEST_CASE("a help's headings are bold, and nothing else", "[text]") {
  CHECK(
      with_bold_headings("prog: does it\n\nusage: prog FILE\n  FILE   a file\n\ndata\n  --x N\nThe end\n") ==
      "prog: does it\n\n\x1b[1musage: prog FILE\x1b[0m\n  FILE   a file\n\n\x1b[1mdata\x1b[0m\n  --x N\nThe "
      "end\n");
  CHECK(with_bold_headings("").empty());
}

TEST_CASE("the ends of a text are trimmed, not its middle", "[text]") {
  CHECK(trimmed("\t a b\r\n") == "a b");
  CHECK(trimmed(" \n").empty());
  CHECK(trimmed("'a b' ", " '") == "a b");
}

TEST_CASE("a number is the shortest text that reads back as it", "[text]") {
  CHECK(shortest_text(0.1) == "0.1");
  CHECK(shortest_text(2) == "2");
  CHECK(shortest_text(-1e-300) == "-1e-300");
}

TEST_CASE("placeholders are those of Python's string.Template, unknown ones stay", "[text]") {
  const auto value_of = [](std::string_view name) -> std::optional<std::string> {
    if (name == "rank") return "3";
    return std::nullopt;
  };
  CHECK(substituted("[$rank]${rank}x $$rank", value_of) == "[3]3x $rank");
  CHECK(substituted("$ranks ${rank $1 $", value_of) == "$ranks ${rank $1 $");
}

TEST_CASE("a time is written in UTC", "[text]") {
  CHECK(utc_text(86399, "%Y-%m-%dT%H:%M:%SZ") == "1970-01-01T23:59:59Z");
}

}  // namespace
}  // namespace ddprun
