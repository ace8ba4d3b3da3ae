#include <ddprun/sharding/shard_plan.h>

#include <algorithm>
#include <map>
#include <utility>

namespace ddprun::ddp {
namespace {

constexpr std::int64_t kAlignBytes = 64;

std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// Parameters of one kind that one module owns.
struct UnitMembers {
  std::vector<std::size_t> parameters;
  std::int64_t bytes = 0;
};

/// Fills units, in the order of their first parameters.
class Packer {
 public:
  explicit Packer(std::int64_t unit_bytes) : unit_bytes_(unit_bytes) {}

  void add(const std::string& kind, std::optional<std::size_t> asked_unit, const UnitMembers& group) {
    const auto [entry, is_new] = open_.try_emplace({asked_unit, kind}, 0);
    const bool full = !asked_unit && !is_new && units_[entry->second].bytes + group.bytes > unit_bytes_;
    if (is_new || full) {
      entry->second = units_.size();
      units_.emplace_back();
    }
    UnitMembers& unit = units_[entry->second];
    unit.parameters.insert(unit.parameters.end(), group.parameters.begin(), group.parameters.end());
    unit.bytes += group.bytes;
  }

  const std::vector<UnitMembers>& units() const { return units_; }

 private:
  std::int64_t unit_bytes_;
  std::vector<UnitMembers> units_;
  std::map<std::pair<std::optional<std::size_t>, std::string>, std::size_t> open_;
};

PlannedUnit lay_out(const std::vector<ParameterFacts>& parameters, const UnitMembers& group, int world_size) {
  PlannedUnit unit;
  std::int64_t end = 0;
  for (const std::size_t index : group.parameters) {
    const auto& parameter = parameters[index];
    const std::int64_t align = std::max<std::int64_t>(1, kAlignBytes / parameter.element_bytes);
    unit.parts.push_back({index, round_up(end, align)});
    end = unit.parts.back().offset + parameter.numel;
  }
  unit.shard_numel = std::max<std::int64_t>(1, round_up(end, world_size) / world_size);
  unit.numel = unit.shard_numel * world_size;
  unit.name = parameters[group.parameters.front()].name;
  if (group.parameters.size() > 1) unit.name += " to " + parameters[group.parameters.back()].name;
  return unit;
}

}  // namespace

std::vector<PlannedUnit> plan_units(const std::vector<ParameterFacts>& parameters, std::int64_t unit_bytes,
                                    int world_size) {
  Packer packer(unit_bytes);
  for (std::size_t begin = 0; begin < parameters.size();) {
    std::map<std::pair<std::optional<std::size_t>, std::string>, UnitMembers> by_kind;
    std::size_t end = begin;
    for (; end < parameters.size() && parameters[end].module == parameters[begin].module; ++end) {
      auto& group = by_kind[{parameters[end].asked_unit, parameters[end].kind}];
      group.parameters.push_back(end);
      group.bytes += parameters[end].numel * parameters[end].element_bytes;
    }
    for (const auto& [key, group] : by_kind) packer.add(key.second, key.first, group);
    begin = end;
  }
  std::vector<PlannedUnit> result;
  for (const auto& group : packer.units()) result.push_back(lay_out(parameters, group, world_size));
  return result;
}

}  // namespace ddprun::ddp
