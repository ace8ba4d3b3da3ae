// PyTorch trains some steps, this library goes on for some, PyTorch for some more: the losses are those of
// PyTorch alone, for every optimizer and schedule, with and without loss scaling.
#include <ddprun/train/optim/optimization.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <torch/types.h>

#include <optional>
#include <string>

#include <ddprun/common/files.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/pt_file.h>
#include <ddprun/train/state/optimizer_state.h>
#include "tests/support/catch.h"
#include "tests/support/python.h"

using namespace ddprun;
using train::LrScheduleKind;
using train::OptimizerKind;

namespace {

constexpr std::int64_t kPart = 7;  // steps of each of the three parts

const std::string kTraining = R"(
import itertools, torch
K = 7
OPTIMIZERS = {
    'sgd': lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    'plain': lambda p: torch.optim.SGD(p, lr=0.05),
    'adam': lambda p: torch.optim.Adam(p, lr=0.01),
    'adamw': lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, weight_decay=0.1),
    'adadelta': lambda p: torch.optim.Adadelta(p, lr=0.5)}
L = torch.optim.lr_scheduler
def warm(o, schedule):
    return L.SequentialLR(o, [L.LinearLR(o, start_factor=0.01, total_iters=10), schedule(o)], [10])
SCHEDULES = {
    'none': lambda o: None,
    'step': lambda o: L.StepLR(o, 4, gamma=0.5),
    'cosine': lambda o: L.CosineAnnealingLR(o, 21),
    'one-cycle': lambda o: L.OneCycleLR(o, 0.05, total_steps=21, cycle_momentum='rho' not in o.defaults),
    'plateau': lambda o: L.ReduceLROnPlateau(o, factor=0.5, patience=0),
    'warm-step': lambda o: warm(o, lambda o: L.StepLR(o, 4, gamma=0.5)),
    'warm-cosine': lambda o: warm(o, lambda o: L.CosineAnnealingLR(o, 11))}
CASES = ['/'.join(c) for c in itertools.product(OPTIMIZERS, SCHEDULES, ['unscaled', 'scaled'], ['float32', 'float64'])]
class Training:
    def __init__(self, case, data):
        optimizer, schedule, scaling, self.dtype = case.split('/')
        self.data = data
        self.model = [p.to(getattr(torch, self.dtype), copy=True).requires_grad_() for p in data['model']]
        self.optimizer = OPTIMIZERS[optimizer](self.model)
        self.schedule = SCHEDULES[schedule](self.optimizer)
        self.scaler = torch.amp.GradScaler('cpu', init_scale=1024., growth_interval=3, enabled=scaling == 'scaled')
    def load(self, d):
        with torch.no_grad():
            for p, value in zip(self.model, d['model']): p.copy_(value)
        self.optimizer.load_state_dict(d['optimizer'])
        if self.schedule: self.schedule.load_state_dict(d['lr_schedule'])
        if self.scaler.is_enabled(): self.scaler.load_state_dict(d['scaler'])
    def state(self):
        return {'model': [p.detach().clone() for p in self.model], 'optimizer': self.optimizer.state_dict(),
                'lr_schedule': self.schedule and self.schedule.state_dict(),
                'scaler': self.scaler.state_dict() or None}
    def run(self, begin, end):
        losses = []
        for i in range(begin, end):
            x, y = self.data['x'][i].to(self.model[0].dtype), self.data['y'][i].to(self.model[0].dtype)
            w1, b1, w2, b2 = self.model
            loss = (((x @ w1 + b1).tanh() @ w2 + b2 - y) ** 2).mean()
            self.optimizer.zero_grad()
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if isinstance(self.schedule, L.ReduceLROnPlateau): self.schedule.step(loss.item())
            elif self.schedule: self.schedule.step()
            losses.append(loss.item())
        return losses
)";

train::OptimOptions options_of(const std::string& optimizer, const std::string& schedule) {
  train::OptimOptions options;
  auto& settings = options.optimizer;
  settings.kind = optimizer == "adam"       ? OptimizerKind::kAdam
                  : optimizer == "adamw"    ? OptimizerKind::kAdamW
                  : optimizer == "adadelta" ? OptimizerKind::kAdadelta
                                            : OptimizerKind::kSgd;
  settings.lr = settings.kind == OptimizerKind::kSgd ? 0.05 : optimizer == "adadelta" ? 0.5 : 0.01;
  if (optimizer == "sgd") settings.momentum = 0.9, settings.nesterov = true, settings.weight_decay = 1e-3;
  if (optimizer == "adamw") settings.amsgrad = true, settings.weight_decay = 0.1;
  options.schedule = schedule.ends_with("step")     ? LrScheduleKind::kStep
                     : schedule.ends_with("cosine") ? LrScheduleKind::kCosine
                     : schedule == "one-cycle"      ? LrScheduleKind::kOneCycle
                     : schedule == "plateau"        ? LrScheduleKind::kPlateau
                                                    : LrScheduleKind::kNone;
  options.schedule_per_step = true;
  options.step_size = 4;
  options.gamma = 0.5;
  options.plateau_patience = 0;
  options.warmup_steps = schedule.starts_with("warm") ? 10 : 0;
  return options;
}

c10::IValue or_none(const c10::impl::GenericDict& dict, const char* key) {
  return dict.contains(key) ? dict.at(key) : c10::IValue();
}

/// Goes on from a state of the Python above, and returns such a state with the losses.
c10::impl::GenericDict go_on(const std::string& name, const c10::impl::GenericDict& state,
                             const c10::impl::GenericDict& data) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
    end = name.find('/', begin);
    parts.push_back(name.substr(begin, end - begin));
  }
  const auto options = options_of(parts[0], parts[1]);
  std::vector<torch::Tensor> model;
  for (const c10::IValue& value : state.at("model").toList())
    model.push_back(value.toTensor().clone().requires_grad_());
  const auto lr = parts[1] == "one-cycle" ? 0.05 : options.optimizer.lr;
  const train::RunLength length{.steps_per_epoch = 3 * kPart};
  train::Optimization optimization(
      {train::make_optimizer(options.optimizer, {{model}}), nullptr, nullptr}, options,
      parts[2] == "scaled" ? train::Precision::k16Mixed : train::Precision::k32, torch::kCPU,
      train::schedule_options(options, lr, length, train::MonitorMode::kMin));
  train::load_optimizer_state(optimization.optimizer(), state.at("optimizer"), name);
  optimization.go_to(train::schedule_options(options, lr, length, train::MonitorMode::kMin),
                     {.step = kPart, .epoch = kPart}, or_none(state, "lr_schedule"), 1);
  optimization.load_scaler_state(or_none(state, "scaler"));

  c10::impl::GenericList losses(c10::AnyType::get()), tensors(c10::AnyType::get());
  for (std::int64_t i = kPart; i < 2 * kPart; ++i) {
    const auto x = data.at("x").toTensor()[i].to(model[0].scalar_type());
    const auto y = data.at("y").toTensor()[i].to(model[0].scalar_type());
    const auto loss =
        ((x.matmul(model[0]) + model[1]).tanh().matmul(model[2]) + model[3] - y).square().mean();
    optimization.optimizer().zero_grad();
    optimization.scaled(loss).backward();
    optimization.optimizer_step();
    optimization.end_epoch(loss.item<double>());
    losses.push_back(loss.item<double>());
  }
  for (const auto& tensor : model) tensors.push_back(tensor.detach());
  auto result = train::make_state();
  result.insert("model", tensors);
  result.insert("optimizer", train::optimizer_state_dict(optimization.optimizer()));
  optimization.complete(result.at("optimizer"));
  result.insert("lr_schedule", optimization.schedule_state());
  result.insert("scaler", optimization.scaler_state());
  result.insert("losses", losses);
  return result;
}

}  // namespace

TEST_CASE("PyTorch, this library and PyTorch again train as PyTorch alone does", "[python_round_trip]") {
  const TempDir dir;
  test::check_python(dir.path(), "torch", kTraining + R"(
torch.manual_seed(3)
data = {'model': [torch.randn(6, 5) / 2, torch.zeros(5), torch.randn(5, 1) / 2, torch.zeros(1)],
        'x': torch.randn(3 * K, 8, 6)}
data['y'] = data['x'].sum(2, keepdim=True).sin()
states, alone = {}, {}
for case in CASES:
    training = Training(case, data)
    alone[case] = training.run(0, K)
    states[case] = training.state()
    states[case] = torch.utils._pytree.tree_map(lambda v: v.clone() if torch.is_tensor(v) else v, states[case])
    alone[case] += training.run(K, 3 * K)
torch.save(data, 'data.pt')
torch.save(alone, 'alone.pt')
torch.save(states, 'python.pt'))");
  const auto data = serialize::read_pt(dir.path() / "data.pt").toGenericDict();
  auto ours = train::make_state();
  for (const auto& item : serialize::read_pt(dir.path() / "python.pt").toGenericDict())
    ours.insert(item.key().toStringRef(),
                go_on(item.key().toStringRef(), item.value().toGenericDict(), data));
  CHECK(ours.size() == 5 * 7 * 2 * 2);
  serialize::write_pt(dir.path() / "ours.pt", ours);
  test::check_python(dir.path(), "torch", kTraining + R"(
data, alone, ours = (torch.load(name + '.pt') for name in ('data', 'alone', 'ours'))
failed = []
for case in CASES:
    training = Training(case, data)
    try:
        training.load(ours[case])
        losses = ours[case]['losses'] + training.run(2 * K, 3 * K)
    except Exception as error:
        failed.append((case, repr(error)))
        continue
    tolerance = 1e-6 if case.endswith('64') else 2e-5
    worst = max(abs(a - b) for a, b in zip(losses, alone[case][K:], strict=True))
    if not worst <= tolerance: failed.append((case, worst))
assert not failed, failed)");
}
