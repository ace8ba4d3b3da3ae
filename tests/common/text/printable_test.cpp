#include <ddprun/common/text/printable.h>

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

}  // namespace
}  // namespace ddprun
