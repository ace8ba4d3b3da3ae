#include <ddprun/common/errors.h>
#include "launcher/cli/options.h"
#include "tests/support/catch.h"

namespace ddprun::launcher {
namespace {

using test::ContainsSubstring;
using Texts = std::vector<std::string>;

constexpr Streams kNone{false, false};
constexpr Streams kOut{true, false};
constexpr Streams kErr{false, true};
constexpr Streams kBoth{true, true};

/// As the command line reads it.
template <typename Target, typename Setting>
Target applied(const Setting& setting, const std::string& text, Target& target) {
  settings::Values values;
  values.add(setting, {text, "--" + setting.name});
  values.apply({setting});
  return target;
}

StreamSelection parse_selection(const std::string& text) {
  StreamSelection tee;
  return applied(settings::parsed("tee", tee, parse_stream_selection, kStreamSelections), text, tee);
}

TEST_CASE("one digit selects streams of all workers", "[stream_selection]") {
  CHECK(parse_selection("0").of(0) == kNone);
  CHECK(parse_selection("1").of(0) == kOut);
  CHECK(parse_selection("2").of(7) == kErr);
  CHECK(parse_selection("3").of(4095) == kBoth);
}

TEST_CASE("a list selects streams of the listed workers, others have none", "[stream_selection]") {
  const StreamSelection selection = parse_selection("0:1,1:2,3:3,4:0");
  CHECK(selection.of(0) == kOut);
  CHECK(selection.of(1) == kErr);
  CHECK(selection.of(2) == kNone);
  CHECK(selection.of(3) == kBoth);
  CHECK(selection.of(4) == kNone);
}

TEST_CASE("ranks in a list may have several digits", "[stream_selection]") {
  CHECK(parse_selection("10:3").of(10) == kBoth);
  CHECK(parse_selection("10:3").of(1) == kNone);
  CHECK(parse_selection("127:1,0:2").of(127) == kOut);
}

TEST_CASE("a selection that is none is refused, naming the flag, the syntax and the text",
          "[stream_selection]") {
  const std::string text = GENERATE(as<std::string>(), "", "4", "-1", "11", "a", "0:1,", ",0:1", "0:1,1",
                                    "0:4", "0:", ":1", "0:11", "0:1,,1:1", "0:1 ,1:1", " 1", "+0:1", "-1:1",
                                    "-0:1", "0:1,0:2", "1:1,01:1", "99999999999:1", "4096:1", "0:1:1", "0=1");
  CHECK_THROWS_AS(parse_selection(text), UsageError);
  CHECK_THROWS_WITH(parse_selection(text), ContainsSubstring("--tee: expected 0 (none), 1 (stdout)") &&
                                               ContainsSubstring("got '" + text + "'"));
}

TEST_CASE("control characters of a refused text stay out of the message", "[stream_selection]") {
  CHECK_THROWS_WITH(parse_selection("1\n\x1b[2J"), ContainsSubstring("got '1??[2J'"));
  CHECK_THROWS_WITH(parse_selection("1\xc2\x9b,\xff"), ContainsSubstring("got '1?,?'"));
}

TEST_CASE("local ranks are a list of numbers, and none given means all", "[stream_selection]") {
  const auto shown = [](const std::string& text) {
    std::optional<std::set<int>> ranks;
    return applied(settings::parsed("local-ranks-filter", ranks, parse_local_ranks, kLocalRanks), text,
                   ranks);
  };
  const EnvLookup nothing_set = [](const std::string&) { return std::nullopt; };
  CHECK_FALSE(parse_options({"--local-ranks-filter=", "prog"}, nothing_set).output.shown);
  CHECK(shown("0") == std::set<int>{0});
  CHECK(shown("10,2,2") == std::set<int>{2, 10});
  for (const char* text : {",", "0,", "a", "0 1", "-1", "0:1", "4096"})
    CHECK_THROWS_WITH(shown(text),
                      ContainsSubstring("--local-ranks-filter: expected local ranks separated by commas"));
}

TEST_CASE("filters are separated by commas, a double comma is part of a filter", "[stream_selection]") {
  CHECK(parse_line_filters("a") == Texts{"a"});
  CHECK(parse_line_filters("loss,val acc") == Texts{"loss", "val acc"});
  CHECK(parse_line_filters("a,,b,c") == Texts{"a,b", "c"});
  CHECK(parse_line_filters("a,,,b") == Texts{"a,", "b"});
  CHECK(parse_line_filters(",,") == Texts{","});
  CHECK(parse_line_filters("")->empty());
  CHECK(parse_line_filters("a,")->size() == 1);
}

}  // namespace
}  // namespace ddprun::launcher
