#include <ddprun/common/text/utf8.h>

#include "tests/support/catch.h"

using ddprun::valid_utf8;

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
