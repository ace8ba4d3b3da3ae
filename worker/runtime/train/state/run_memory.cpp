#include <ddprun/train/state/run_memory.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/serialize.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/logging.h>
#include <ddprun/group/collectives.h>
#include <ddprun/group/rounds.h>
#include <ddprun/serialize/portable_value.h>

namespace ddprun::train {
namespace {

Place place_of(const std::optional<TrainingState>& state, int progress) {
  if (!state) return {};
  return {state->position.epoch, state->position.samples, state->step, progress};
}

nlohmann::json head_of(const RunMemory& memory, const Place& place) {
  return {{"folder", memory.folder.string()},
          {"begun", memory.begun},
          {"run", memory.identity.run},
          {"branch", memory.identity.branch},
          {"place", place}};
}

Place place_in(const nlohmann::json& head) { return head["place"].get<Place>(); }

/// The source's bytes, on every rank.
std::string broadcast_bytes(const ddp::ProcessGroup& group, std::string bytes, int source) {
  const auto size = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  ddp::broadcast_from(group, {size}, source);
  bytes.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
  const auto all = static_cast<std::int64_t>(bytes.size());
  ddp::broadcast_from(group, {at::from_blob(bytes.data(), {all}, at::kByte)}, source);
  return bytes;
}

/// The source's bytes, on that rank.
std::string pass_bytes(const ddp::ProcessGroup& group, std::string bytes, int source, int destination) {
  auto size = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  const auto pass = [&](const at::Tensor& tensor) {
    std::vector<at::Tensor> tensors = {tensor};
    const bool sends = group.rank() == source;
    const auto& handle = group.handle();
    (sends ? handle->send(tensors, destination, /*tag=*/0) : handle->recv(tensors, source, /*tag=*/0))
        ->wait();
  };
  pass(size);
  bytes.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
  pass(at::from_blob(bytes.data(), {size.item<std::int64_t>()}, at::kByte));
  return bytes;
}

/// The source's state, on every rank: tensors travel as they are, and apart from the rest.
TrainingState broadcast_state(const ddp::ProcessGroup& group, const std::optional<TrainingState>& state,
                              int source) {
  std::vector<at::Tensor> tensors;
  std::vector<char> rest;
  auto shapes = nlohmann::json::array();
  if (group.rank() == source) {
    rest = torch::jit::pickle(serialize::portable_value(to_value(*state)), &tensors);
    for (auto& tensor : tensors) {
      tensor = tensor.contiguous();
      shapes.push_back({static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
    }
  }
  // In one string: the shapes, a zero, the rest.
  const auto text =
      broadcast_bytes(group, shapes.dump() + '\0' + std::string(rest.begin(), rest.end()), source);
  const auto end = text.find('\0');
  if (group.rank() != source)
    for (const auto& each : nlohmann::json::parse(text.substr(0, end)))
      tensors.push_back(at::empty(each[1].get<std::vector<std::int64_t>>(), each[0].get<at::ScalarType>()));
  std::vector<at::Tensor> bytes;  // Gloo does not send every type
  for (const auto& tensor : tensors) bytes.push_back(tensor.view({-1}).view(at::kByte));
  ddp::broadcast_from(group, bytes, source);
  if (group.rank() == source) return *state;
  return to_training_state(
      torch::jit::unpickle(text.data() + end + 1, text.size() - end - 1, nullptr, tensors), kInMemory);
}

/// The state in a memory file.
TrainingState unpickled(const std::string& bytes) {
  return to_training_state(torch::pickle_load({bytes.begin(), bytes.end()}), kInMemory);
}

}  // namespace

void RunMemory::begin(const RunIdentity& now) {
  identity = now;
  if (!std::exchange(begun, true) && file && !file->read())
    file->write(head_of(*this, {}).dump(), c10::IValue());
}

void RunMemory::snapshot(const TrainingState& newest) const {
  file->write(head_of(*this, place_of(newest, 0)).dump(), to_value(newest));
}

void RunMemory::snapshot_part(const TrainingState& newest, const ddp::ProcessGroup& group) {
  if (copying && copying->failed()) {  // with all ranks there
    if (group.rank() == 0) log_warning("--replicate-shards: a connection was lost: no more copies for now");
    copying.reset();
  }
  auto head = head_of(*this, place_of(newest, 0));
  head.update({{"rank", group.rank()}, {"ranks", group.size()}, {"number", next_part++}});
  // On a GPU, a step that was running when a rank was lost continues with arbitrary numbers: do not keep it.
  file->write(head.dump(), to_value(newest), &ddp::Rounds::check,
              [copying = copying.get()](const MemoryFile::Record* record) {
                if (copying != nullptr) record != nullptr ? copying->exchange(*record) : copying->abort();
              });
}

void RunMemory::drop_states() {
  state.reset();
  if (!file) return;
  for (auto* each : files())
    for (const auto& head : each->heads()) each->forget(head);
  file->write(head_of(*this, {}).dump(), c10::IValue());
  file->wait();
}

bool RunMemory::ready() const { return file->idle(); }
void RunMemory::wait() const { file->wait(); }

void RunMemory::connect(const ddp::ProcessGroup& group, int local_ranks) {
  if (!copies) return;
  // The same everywhere, so that each rank has one copy; large enough to reach another node.
  const int distance = static_cast<int>(ddp::all_reduce_max(group, {static_cast<double>(local_ranks)})[0]);
  if (group.size() >= 2 * distance)
    copying = std::make_unique<PartCopies>(group, distance, *copies);
  else if (group.rank() == 0)
    log_warning("--replicate-shards: expected at least twice as many ranks as on the largest node, " +
                std::to_string(2 * distance) + ", got " + std::to_string(group.size()) + ": no copies");
}

void RunMemory::disconnect() {
  if (copying) copying->abort();
  if (file) file->wait();
  copying.reset();
}

void RunMemory::take_over(const std::vector<nlohmann::json>& heads) {
  for (const auto& each : heads) {
    if (folder.empty()) folder = each["folder"].get<std::string>();
    begun = begun || each["begun"].get<bool>();
    if (identity.run.empty() || each["branch"] > identity.branch) identity = {each["run"], each["branch"]};
  }
}

std::vector<MemoryFile*> RunMemory::files() const {
  std::vector<MemoryFile*> all = {file.get()};
  if (copies) all.push_back(copies.get());
  return all;
}

/// Its shards may be on other nodes.
ResumePoint RunMemory::newest_saved() const {
  return find_resume(
      folder, [](const auto&, const auto&) {}, identity);
}

bool RunMemory::has_saved(const ddp::ProcessGroup& group) const {
  return ddp::any_rank_true(group, group.rank() == 0 && newest_saved().found());
}

bool RunMemory::saved_later(const ddp::ProcessGroup& group, const Place& place) const {
  bool later = false;
  if (group.rank() == 0) {
    try {
      const auto saved = newest_saved();
      later = saved.found() && place_of(saved.state, 0) > place;
    } catch (const IoError& error) {
      log_warning(error.what());
    }
  }
  return ddp::any_rank_true(group, later);
}

Parts RunMemory::find_parts(const ddp::ProcessGroup& group) {
  auto own = nlohmann::json::array({head_of(*this, {})});
  for (const auto* each : files())
    for (const auto& head : each->heads()) own.push_back(nlohmann::json::parse(head));
  std::vector<std::vector<PartHead>> held;
  next_part = 0;
  for (const auto& text : ddp::all_gather(group, own.dump())) {
    const auto heads = nlohmann::json::parse(text).get<std::vector<nlohmann::json>>();
    take_over(heads);
    held.emplace_back();
    for (const auto& head : heads) {
      const auto number = head.value("number", std::int64_t{-1});
      next_part = std::max(next_part, number + 1);
      if (number >= 0) held.back().push_back({number, head["rank"], head["ranks"], place_in(head)});
    }
  }
  return choose_parts(held);
}

void RunMemory::share_parts(const ddp::ProcessGroup& group) {
  state.reset();
  const auto parts_of = find_parts(group);
  if (parts_of.holders.empty()) {
    if (begun && group.rank() == 0)
      log_warning("a rank's part of the state was lost: continuing from the last checkpoint");
    return;
  }
  if (saved_later(group, parts_of.place)) return;
  const auto number_of = [](const std::string& head) {
    return nlohmann::json::parse(head).value("number", std::int64_t{-1});
  };
  // The older of two states is overwritten next: that must not be the only one that all have.
  for (auto* each : files())
    for (const auto& head : each->heads())
      if (number_of(head) != parts_of.number) each->forget(head);
  const auto part_of = [&](int rank) {
    for (const auto* each : files())
      if (auto record = each->read(); record && nlohmann::json::parse(record->head).value("rank", -1) == rank)
        return std::move(record->state);
    return std::string();
  };
  std::string own;
  for (const auto& [rank, holder] : parts_of.holders) {
    if (group.rank() != rank && group.rank() != holder) continue;
    auto part = group.rank() == holder ? part_of(rank) : "";
    if (rank != holder) part = pass_bytes(group, std::move(part), holder, rank);
    if (group.rank() == rank) own = std::move(part);
  }
  state = unpickled(own);
}

void RunMemory::share(const ddp::ProcessGroup& group) {
  if (parts) return share_parts(group);
  auto head = head_of(*this, place_of(state, progress));
  const auto kept = file && !state ? file->read() : std::nullopt;
  if (kept) (head = nlohmann::json::parse(kept->head))["kept"] = true;
  std::vector<nlohmann::json> all;
  std::vector<Offer> offers;
  for (const auto& text : ddp::all_gather(group, head.dump())) {
    all.push_back(nlohmann::json::parse(text));
    offers.push_back({place_in(all.back()), all.back().contains("kept")});
  }
  take_over(all);
  const auto source = choose_source(offers, [&](const Place& place) { return saved_later(group, place); });
  if (!source) return state.reset();
  const auto own = state;  // kept until all have it
  if (group.rank() == *source && !own) state = unpickled(kept->state);
  state = broadcast_state(group, state, *source);
  progress = 0;
  if (group.rank() != 0) return;
  // State that only rank 0 keeps.
  if (!own && folder.empty()) return;
  auto callbacks = own ? own->callbacks : newest_saved().state.callbacks;
  state->callbacks.merge(callbacks);
}

}  // namespace ddprun::train
