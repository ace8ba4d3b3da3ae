#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <ddprun/group/process_group.h>

namespace ddprun::test {

/// One entry of tests/golden/ddp_parity/MODEL_WORLD.json: a model, a type and an option, and Python's losses.
struct ParityCase {
  nlohmann::json file;   ///< what all cases of the file have in common
  nlohmann::json entry;  ///< this case's own

  std::string name() const;
  double tolerance() const;  ///< largest difference of a loss
  bool has(const char* option) const { return entry.contains(option); }
};

/// All cases of a model on so many ranks.
std::vector<ParityCase> parity_cases(const std::string& model, int world);

/// Mean losses over ranks.
struct ParityLosses {
  std::vector<double> steps;
  std::vector<double> evaluated;  ///< in eval mode, after every tenth step
};

/// Trains as scripts/make_parity.py does, with our runtime in place of Python's. Every rank calls it.
ParityLosses train_parity_case(const ParityCase& the_case, const ddp::ProcessGroup& group);

/// Trains every case of the model that `chosen` takes, on `world` ranks, and compares its losses with
/// Python's. throws  std::runtime_error with all differences together
void check_parity(const std::string& model, int world, const std::function<bool(const ParityCase&)>& chosen);

/// Empty if the case's losses are Python's; else the case and the step that differs most.
std::string compare_parity_case(const ParityCase& the_case, const ParityLosses& losses);

}  // namespace ddprun::test
