// The learning-rate search, against Lightning's own. Its suggestion is that of Lightning before 2.6, the
// steepest fall in the plot; since then it divides by the distance of learning rates, and nearly always takes
// the smallest.
#include <ddprun/train/loop/tuner.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include <ddprun/common/files.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"

using namespace ddprun;
using train::LrSearch;

TEST_CASE("the finder of batch sizes prints no exponents", "[tuner]") {
  CHECK(train::rounded_text(1020.4) == "1,020");
  CHECK(train::rounded_text(999.6) == "1,000");
  CHECK(train::rounded_text(999.4) == "999");
  CHECK(train::rounded_text(97.52) == "97.5");
  CHECK(train::rounded_text(1234567) == "1,234,567");
}

TEST_CASE("a learning-rate search smooths, stops and suggests as Lightning's", "[tuner]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto falling = [](double x) {
    return 2.3 - 1.5 / (1 + std::exp(-3 * (x + 3))) + 0.01 * std::sin(40 * x);
  };
  const auto diverging = [&](double x) { return falling(x) + (x > -1.5 ? std::exp(8 * (x + 1.5)) : 0); };
  const auto with_nan = [&](double x) { return x > -0.3 ? nan : falling(x); };
  const auto early = [](double x) { return x > -7.5 ? 1e6 : 1.0; };
  auto cases = nlohmann::json::array();
  for (const auto& loss : {std::function<double(double)>(falling), std::function<double(double)>(diverging),
                           std::function<double(double)>(with_nan), std::function<double(double)>(early)}) {
    LrSearch search;
    auto raw = nlohmann::json::array();
    while (const auto lr = search.next_lr()) {
      raw.push_back(loss(std::log10(*lr)));
      search.add(raw.back().get<double>());
    }
    const auto suggestion = search.suggestion();
    cases.push_back({{"raw", raw},
                     {"lrs", search.lrs()},
                     {"losses", search.losses()},
                     {"suggestion", suggestion ? nlohmann::json(*suggestion) : nlohmann::json()}});
  }
  CHECK(cases[0]["lrs"].size() == 100);
  CHECK(cases[1]["lrs"].size() < 100);
  CHECK(cases[3]["suggestion"].is_null());
  const TempDir dir;
  write_file_atomic(dir.path() / "cases.json", cases.dump());
  test::check_python(dir.path(), "lightning", R"(
import json, math, torch
from types import SimpleNamespace as Some
from lightning.pytorch.tuner.lr_finder import _ExponentialLR, _LRCallback, _LRFinder
for case in json.load(open('cases.json')):
    raw = [math.nan if v is None else v for v in case['raw']]
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1e-8)
    schedule, callback = _ExponentialLR(optimizer, 1, 100), _LRCallback(100)
    trainer = Some(fit_loop=Some(batch_idx=0), accumulate_grad_batches=1, should_stop=False, global_step=0,
                   strategy=Some(broadcast=lambda x: x), lr_scheduler_configs=[Some(scheduler=schedule)])
    for loss in raw:
        assert not trainer.should_stop
        callback.on_train_batch_start(trainer, None, None, 0)
        trainer.global_step += 1
        optimizer.step()
        callback.on_train_batch_end(trainer, None, torch.tensor(loss, dtype=torch.float64), None, 0)
        schedule.step()
    assert trainer.should_stop or len(raw) == 100
    finder = _LRFinder('exponential', 1e-8, 1, 100)
    finder.results = {'lr': callback.lrs, 'loss': callback.losses}

    assert all(math.isclose(a, b, rel_tol=1e-9) for a, b in zip(case["lrs"], callback.lrs, strict=True))
    for mine, theirs in zip(case['losses'], callback.losses, strict=True):
        assert mine is None and math.isnan(theirs) or abs(mine - theirs) <= 1e-9 * theirs, (mine, theirs)
    losses = [v for v in callback.losses[10:-1] if math.isfinite(v)]
    suggestion = finder.suggestion()  # of losses alone, there is none where this finds none
    if suggestion is not None: suggestion = callback.lrs[10 + torch.gradient(torch.tensor(losses, dtype=torch.float64))[0].argmin()]
    assert suggestion is None and case['suggestion'] is None or math.isclose(suggestion, case['suggestion'], rel_tol=1e-9))");
}
