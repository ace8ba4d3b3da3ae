#include <ddprun/train/state/optimizer_state.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include <ddprun/common/errors.h>
#include <ddprun/common/files.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/optim/optimizer.h>
#include "tests/support/catch.h"

using namespace ddprun;
using test::ContainsSubstring;
using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

namespace {

/// One of scripts/make_golden.py's optimizer_state files.
struct OptimizerGolden {
  explicit OptimizerGolden(const std::string& name)
      : path(std::filesystem::path(DDPRUN_GOLDEN_DIR) / "optimizer_state" / (name + ".pt")),
        root(serialize::read_pt(path).toGenericDict()),
        state(root.at("optimizer")) {
    for (const auto& value : root.at("before").toList())
      parameters.push_back(c10::IValue(value).toTensor().clone().requires_grad_());
  }

  void step(Optimizer& optimizer, std::size_t i) {
    const auto gradients = root.at("gradients").toList().get(i).toList();
    for (std::size_t p = 0; p < parameters.size(); ++p)
      parameters[p].mutable_grad() = gradients.get(p).toTensor();
    optimizer.step();
  }

  std::filesystem::path path;
  c10::impl::GenericDict root;
  c10::IValue state;
  std::vector<Tensor> parameters;
};

std::unique_ptr<Optimizer> make_optimizer(const std::string& name, const std::vector<Tensor>& p) {
  namespace o = torch::optim;
  const std::vector<OptimizerParamGroup> groups = {{{p[0], p[1]}}, {{p[2]}}};
  if (name == "sgd" || name == "sgd_plain") return std::make_unique<o::SGD>(groups, o::SGDOptions(7));
  if (name == "adam" || name == "adam_amsgrad") return std::make_unique<o::Adam>(groups);
  if (name == "adamw") return std::make_unique<o::AdamW>(groups);
  if (name == "adadelta") return std::make_unique<train::Adadelta>(groups);
  if (name == "adagrad") return std::make_unique<o::Adagrad>(groups);
  if (name == "rmsprop") return std::make_unique<o::RMSprop>(groups);
  return nullptr;
}

/// Two values as Python prints them, but without the difference between 0 and 0.0.
std::string text_of(const c10::IValue& value) {
  std::string text;
  if (value.isGenericDict()) {
    for (const auto& item : value.toGenericDict())
      text += text_of(item.key()) + ": " + text_of(item.value()) + ", ";
    return "{" + text + "}";
  }
  if (value.isList()) {
    for (const auto& item : value.toList()) text += text_of(c10::IValue(item)) + ", ";
    return "[" + text + "]";
  }
  if (value.isTuple()) {
    for (const auto& item : value.toTupleRef().elements()) text += text_of(item) + ", ";
    return "(" + text + ")";
  }
  std::ostringstream stream;
  if (value.isTensor()) {
    stream << value.toTensor().scalar_type() << ' ' << value.toTensor();
  } else if (value.isInt() || value.isDouble()) {
    stream << value.toScalar().toDouble();
  } else {
    stream << value;
  }
  return stream.str();
}

void check_refused(Optimizer& optimizer, const c10::IValue& state, const std::string& expected) {
  const auto before = text_of(train::optimizer_state_dict(optimizer));
  CHECK_THROWS_WITH(train::load_optimizer_state(optimizer, state, "file.pt"),
                    ContainsSubstring("file.pt: state of optimizer") && ContainsSubstring(expected));
  CHECK(text_of(train::optimizer_state_dict(optimizer)) == before);
}

}  // namespace

TEST_CASE("an optimizer goes on from Python's state dict as Python's does", "[optimizer_state]") {
  for (const std::string name :
       {"sgd", "sgd_plain", "adam", "adam_amsgrad", "adamw", "adadelta", "adagrad", "rmsprop"}) {
    CAPTURE(name);
    OptimizerGolden golden(name);
    const auto optimizer = make_optimizer(name, golden.parameters);
    train::load_optimizer_state(*optimizer, golden.state, golden.path);
    CHECK(optimizer->param_groups()[1].options().get_lr() == 0.05);
    // What is written again is Python's dict: keys, their order, types, values.
    CHECK(text_of(train::optimizer_state_dict(*optimizer)) == text_of(golden.state));
    golden.step(*optimizer, 0);
    golden.step(*optimizer, 1);
    for (std::size_t i = 0; i < golden.parameters.size(); ++i) {
      const auto expected = golden.root.at("after").toList().get(i).toTensor();
      CHECK((golden.parameters[i] - expected).abs().max().item<double>() < 1e-12);
    }
  }
}

TEST_CASE("loading copies, and converts to the parameter's type and memory format", "[optimizer_state]") {
  OptimizerGolden golden("adam");
  for (auto& parameter : golden.parameters)
    parameter = parameter.detach().to(torch::kFloat32).requires_grad_();
  golden.parameters[0] = golden.parameters[0].detach().t().contiguous().t().requires_grad_();
  const auto optimizer = make_optimizer("adam", golden.parameters);
  train::load_optimizer_state(*optimizer, golden.state, golden.path);
  const auto& state = static_cast<torch::optim::AdamParamState&>(
      *optimizer->state().at(golden.parameters[0].unsafeGetTensorImpl()));
  CHECK(state.step() == 2);
  CHECK(state.exp_avg().scalar_type() == torch::kFloat32);
  CHECK(state.exp_avg().strides() == golden.parameters[0].strides());
  const auto text = text_of(golden.state);
  state.exp_avg().zero_();
  CHECK(text_of(golden.state) == text);
}

TEST_CASE("a state dict that does not fit is refused, and nothing is loaded", "[optimizer_state]") {
  OptimizerGolden adam("adam");
  const auto optimizer = make_optimizer("adam", adam.parameters);
  check_refused(*optimizer, OptimizerGolden("sgd").state, "parameter group 0: expected Adam, got SGD");
  check_refused(*optimizer, OptimizerGolden("adamw").state, "expected Adam, got AdamW");
  check_refused(*optimizer, OptimizerGolden("rmsprop").state, "expected Adam, got RMSprop");
  check_refused(*optimizer, OptimizerGolden("adagrad").state, "expected Adam, got Adagrad");
  check_refused(*optimizer, OptimizerGolden("adadelta").state, "expected Adam, got Adadelta");
  check_refused(*optimizer, OptimizerGolden("radam").state, "expected Adam, got another optimizer");
  check_refused(*optimizer, c10::IValue(3), "expected a dict, got Int");
  check_refused(*optimizer, adam.root, "expected 'param_groups', got none");

  SECTION("another number of groups or parameters") {
    torch::optim::Adam one_group(adam.parameters);
    check_refused(one_group, adam.state, "expected 1 parameter groups, got 2");
    torch::optim::Adam fewer(
        {OptimizerParamGroup({adam.parameters[0]}), OptimizerParamGroup({adam.parameters[2]})});
    check_refused(fewer, adam.state, "parameter group 0: expected 1 parameters, got 2");
  }
  SECTION("another shape") {
    const auto other =
        make_optimizer("adam", {adam.parameters[0], torch::zeros({3}, torch::kFloat64), adam.parameters[2]});
    check_refused(*other, adam.state, "parameter 1: 'exp_avg': expected shape [3], got [2]");
  }
  SECTION("a missing or wrong entry") {
    const auto root = adam.state.toGenericDict();
    const auto entry = root.at("state").toGenericDict().at(std::int64_t{2}).toGenericDict();
    CHECK(entry.erase("exp_avg_sq") == 1);
    check_refused(*optimizer, adam.state, "parameter 2: expected 'exp_avg_sq', got none");
    entry.insert("exp_avg_sq", 1.5);
    check_refused(*optimizer, adam.state, "parameter 2: 'exp_avg_sq': expected a tensor, got Double");
    const auto group = root.at("param_groups").toList().get(0).toGenericDict();
    group.insert_or_assign("maximize", true);
    check_refused(*optimizer, adam.state, "parameter group 0: 'maximize': expected False, got True");
    group.insert_or_assign("lr", "fast");
    check_refused(*optimizer, adam.state, "parameter group 0: 'lr': expected a number, got String");
  }
}

TEST_CASE("an optimizer without a state dict is refused", "[optimizer_state]") {
  OptimizerGolden golden("sgd");
  torch::optim::LBFGS optimizer(golden.parameters);
  CHECK_THROWS_AS(train::optimizer_state_dict(optimizer), std::invalid_argument);
  CHECK_THROWS_AS(train::load_optimizer_state(optimizer, golden.state, "x"), std::invalid_argument);
}
