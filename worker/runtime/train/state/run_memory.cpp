#include <ddprun/train/state/run_memory.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <torch/serialize.h>

#include <ddprun/group/collectives.h>
#include <ddprun/serialize/portable_value.h>

namespace ddprun::train {
namespace {

/// How far a state is; none comes before all others.
std::vector<std::int64_t> place_of(const std::optional<TrainingState>& state, int progress) {
  if (!state) return {};
  return {state->position.epoch, state->position.samples, state->step, progress};
}

nlohmann::json head_of(const RunMemory& memory, const std::vector<std::int64_t>& place) {
  return {{"folder", memory.folder.string()}, {"begun", memory.begun}, {"place", place}};
}

std::vector<std::int64_t> place_in(const nlohmann::json& head) {
  return head["place"].get<std::vector<std::int64_t>>();
}

/// The source's bytes, on every rank.
std::string broadcast_bytes(const ddp::ProcessGroup& group, std::string bytes, int source) {
  const auto size = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  ddp::broadcast_from(group, {size}, source);
  bytes.resize(static_cast<std::size_t>(size.item<std::int64_t>()));
  const auto all = static_cast<std::int64_t>(bytes.size());
  ddp::broadcast_from(group, {at::from_blob(bytes.data(), {all}, at::kByte)}, source);
  return bytes;
}

std::string pickled(const TrainingState& state) {
  const auto bytes = torch::pickle_save(serialize::portable_value(to_value(state)));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void RunMemory::begin() {
  if (!std::exchange(begun, true) && file && !file->read())
    file->write(head_of(*this, {}).dump(), c10::IValue());
}

void RunMemory::keep(const TrainingState& newest) const {
  file->write(head_of(*this, place_of(newest, 0)).dump(), to_value(newest));
}

void RunMemory::share(const ddp::ProcessGroup& group) {
  auto head = head_of(*this, place_of(state, progress));
  const auto kept = file && !state ? file->read() : std::nullopt;
  if (kept) head = nlohmann::json::parse(kept->head);
  std::vector<nlohmann::json> all;
  for (const auto& text : ddp::all_gather(group, head.dump())) all.push_back(nlohmann::json::parse(text));
  for (const auto& each : all) {
    if (folder.empty()) folder = each["folder"].get<std::string>();
    begun = begun || each["begun"].get<bool>();
  }
  const auto newest = std::max_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return place_in(a) < place_in(b);  // the first of equal ones
  });
  if (place_in(*newest).empty()) return;
  const auto own = state;  // kept until all have it
  const int source = static_cast<int>(newest - all.begin());
  const bool sends = group.rank() == source;
  const auto bytes = broadcast_bytes(group, !sends ? "" : own ? pickled(*own) : kept->state, source);
  state = sends && own ? *own : to_training_state(torch::pickle_load({bytes.begin(), bytes.end()}), "memory");
  progress = 0;
  if (group.rank() != 0) return;
  // What only rank 0 keeps.
  auto callbacks = own ? own->callbacks : find_resume(folder).state.callbacks;
  state->callbacks.merge(callbacks);
}

}  // namespace ddprun::train
