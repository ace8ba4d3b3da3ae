#include <ddprun/train/record/progress.h>

#include "tests/support/catch.h"

using ddprun::train::BarState;
using ddprun::train::render_bar;

TEST_CASE("bar shows share, count, times, rate and loss", "[progress]") {
  const BarState state{"epoch 1/5", 105, 235, 12.4, 2134.4, 0.41201};
  CHECK(render_bar(state, 120) ==
        "epoch 1/5  45% |#################                       | 105/235 [00:12<00:15, 2134 samples/s, "
        "loss 0.4120]");
  CHECK(render_bar(state, 100).size() == 100);
}

TEST_CASE("bar gets narrower with the terminal, then is cut", "[progress]") {
  const BarState state{"epoch 1/5", 105, 235, 12.4, 2134.4, 0.41201};
  for (int columns = 0; columns < 200; ++columns)
    CHECK(render_bar(state, columns).size() <= static_cast<std::size_t>(columns));
  CHECK(render_bar(state, 75) ==
        "epoch 1/5  45% |###    | 105/235 [00:12<00:15, 2134 samples/s, loss 0.4120]");
  CHECK(render_bar(state, 20) == "epoch 1/5  45% || 10");
}

TEST_CASE("bar shows a measure of the epoch so far", "[progress]") {
  BarState state{"epoch 1/5", 105, 235, 12.4, 2134.4, 0.41201};
  state.measure = "dice 0.8731";
  CHECK_THAT(render_bar(state, 120), ddprun::test::ContainsSubstring("loss 0.4120, dice 0.8731]"));
}

TEST_CASE("bar at the ends of an epoch", "[progress]") {
  CHECK_THAT(render_bar({"e", 0, 10, 0, 0, 0}, 60),
             ddprun::test::ContainsSubstring("  0% |") && ddprun::test::ContainsSubstring("0/10"));
  CHECK_THAT(render_bar({"e", 10, 10, 7200, 1, 0}, 60), ddprun::test::ContainsSubstring("100% |###") &&
                                                            ddprun::test::ContainsSubstring("2:00:00<00:00"));
}

TEST_CASE("bar in blocks has eighths of a column, and colour only around the bar", "[progress]") {
  const BarState state{"e", 45, 100, 0, 0, 0};
  const auto plain = render_bar(state, 70), blocks = render_bar(state, 70, {.blocks = true});
  const auto colour = render_bar(state, 70, {.colour = true});
  const auto begin = plain.find('|') + 1, width = plain.find('|', begin) - begin;
  REQUIRE(width == 14);  // of which 6.3 are full
  CHECK(blocks.substr(0, begin) == plain.substr(0, begin));
  CHECK(blocks.substr(begin) ==
        "\u2588\u2588\u2588\u2588\u2588\u2588\u258e       " + plain.substr(begin + width));
  CHECK(colour == plain.substr(0, begin) + "\x1b[32m" + plain.substr(begin, width) + "\x1b[0m" +
                      plain.substr(begin + width));
  CHECK(render_bar(state, 20, {.blocks = true, .colour = true}) == render_bar(state, 20));
}

TEST_CASE("bar shows the whole run's time but in the last epoch", "[progress]") {
  BarState state{"epoch 1/5", 105, 235, 12.4, 2134.4, 0.41201};
  state.run_left = 100;
  CHECK_THAT(render_bar(state, 120),
             ddprun::test::ContainsSubstring("[00:12<00:15, run 01:55, 2134 samples/s"));
  state.run_left = 0;
  CHECK_THAT(render_bar(state, 120), ddprun::test::ContainsSubstring("[00:12<00:15, 2134 samples/s"));
}
