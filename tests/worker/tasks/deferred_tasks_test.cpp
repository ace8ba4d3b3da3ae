// The program's tasks with --fsdp: their models have no memory until it is shared out.
#include <torch/nn/module.h>
#include <torch/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/model/run.h>
#include <ddprun/train/state/state_dict_file.h>
#include "tests/support/catch.h"
#include "tests/worker/config/parse_words.h"
#include "worker/tasks/registry.h"

using namespace ddprun;
using namespace ddprun::worker;

namespace {

train::Task make(const std::vector<std::string>& words) {
  torch::manual_seed(3);
  return make_task(test::parse(words));
}

bool is_hollow(const train::Task& task) { return task.module->parameters()[0].is_meta(); }

}  // namespace

TEST_CASE("with --fsdp a task's model has no memory, and gets the weights of a plain start", "[tasks]") {
  const std::string pictures = std::string("--data=") + DDPRUN_SOURCE_DIR + "/share/ddprun/nuclei-sample";
  for (auto words : {std::vector<std::string>{"toy", "1", "1"}, {"linear"}, {"sam", pictures}}) {
    CAPTURE(words);
    const auto plain = make(words);
    words.emplace_back("--fsdp");
    const auto deferred = make(words);
    CHECK_FALSE(is_hollow(plain));
    REQUIRE(is_hollow(deferred));
    CHECK(torch::equal(plain.train_set->get_batch({0}).input, deferred.train_set->get_batch({0}).input));
    const auto check = [&](const auto& tensors) {
      for (const auto& item : tensors) {
        CAPTURE(item.key());
        auto values = torch::empty_like(item.value());
        deferred.initialise(item.key(), values);
        CHECK(values.equal(item.value()));
      }
    };
    check(plain.module->named_parameters());
    check(plain.module->named_buffers());
    CHECK_THROWS_AS(train::check_options(deferred, {}), UsageError);
  }
}

TEST_CASE("a model is made whole where its weights come from a file, or are looked at", "[tasks]") {
  const TempDir dir;
  const auto file = dir.path() / "weights.pt";
  serialize::write_pt(file, train::state_dict(*make({"linear"}).module));
  CHECK_FALSE(is_hollow(make({"linear", "--fsdp", "--init-weights=" + file.string()})));
  CHECK_FALSE(is_hollow(make({"linear", "--fsdp", "--summary"})));
}
