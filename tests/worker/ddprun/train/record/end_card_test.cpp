// The last lines of a run's log.
#include <ddprun/train/record/end_card.h>

#include <cmath>
#include <string>

#include <ddprun/common/text.h>
#include "tests/support/catch.h"

using namespace ddprun;
using namespace ddprun::train;

TEST_CASE("a card has aligned lines that fit into 80 columns, and commands that can be copied",
          "[end_card]") {
  EndCard card;
  card.add("best", "val_loss 0.25");
  card.add("validation", std::string("one ") + std::string(51, 'x') + " two");
  card.add("test", "");
  const NextCommand predict{"predict",
                            {"worker", "sam", "--predict", "IMAGE", "--point", "X,Y", "--checkpoint",
                             "runs/sam-20261127T170309Z", "--mask-out", "mask.png"}};
  card.add(predict);
  const auto& lines = card.lines();
  REQUIRE(lines.size() == 4);
  CHECK(lines[0] == "  best        val_loss 0.25");
  CHECK(lines[1] == "  validation  one " + std::string(51, 'x'));
  CHECK(lines[2] == "              two");
  CHECK(lines[3] == "  predict     " + joined(predict.words, " "));
}

TEST_CASE("the best row has the best finite value, the first of equal ones", "[end_card]") {
  const std::vector<report::MetricRow> rows = {
      {{"step", 1}, {"loss", std::nan("")}}, {{"step", 2}, {"loss", 0.5}},  {{"step", 3}},
      {{"step", 4}, {"loss", 0.25}},         {{"step", 5}, {"loss", 0.25}}, {{"step", 6}, {"loss", 0.75}}};
  CHECK(find_metric(best_row(rows, "loss", MonitorMode::kMin), "step") == 4);
  CHECK(find_metric(best_row(rows, "loss", MonitorMode::kMax), "step") == 6);
  CHECK(best_row({rows[0]}, "loss", MonitorMode::kMin).empty());
}

TEST_CASE("figures are named, and those that are not numbers are nan", "[end_card]") {
  CHECK(figures_text({{"epoch", 1}, {"val_loss", 0.125}, {"val_acc", -std::nan("")}}, "val") ==
        "val_loss 0.125, val_acc nan");
}
