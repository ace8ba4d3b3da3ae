#include <ddprun/serialize/dict_reader.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <torch/types.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>

namespace ddprun::train {
namespace {

using c10::IValue;

std::optional<double> to_number(const IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isInt()) return static_cast<double>(value.toInt());
  if (value.isTensor() && value.toTensor().numel() == 1 && !value.toTensor().is_complex())
    return value.toTensor().item<double>();
  return std::nullopt;
}

}  // namespace

c10::impl::GenericDict make_state(std::initializer_list<std::pair<const char*, IValue>> items) {
  c10::impl::GenericDict state(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [key, value] : items) state.insert(key, value);
  return state;
}

c10::impl::GenericList make_list(const std::vector<IValue>& values) {
  c10::impl::GenericList list(c10::AnyType::get());
  for (const auto& value : values) list.push_back(value);
  return list;
}

IValue to_value(const nlohmann::json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max())
    return json.dump();  // Python supports such integers, an IValue does not
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_null()) return {};
  if (json.is_array()) {
    auto list = make_list();
    for (const auto& element : json) list.push_back(to_value(element));
    return list;
  }
  auto dict = make_state();
  for (const auto& [key, value] : json.items()) dict.insert(key, to_value(value));
  return dict;
}

nlohmann::json to_json(const IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  if (value.isString()) return value.toStringRef();
  if (value.isNone()) return nullptr;
  if (value.isList()) {
    auto array = nlohmann::json::array();
    for (const IValue& element : value.toListRef()) array.push_back(to_json(element));
    return array;
  }
  if (!value.isGenericDict())
    throw std::invalid_argument("expected numbers, text, lists and dicts, got " + value.tagKind());
  auto object = nlohmann::json::object();
  for (const auto& item : value.toGenericDict()) {
    if (!item.key().isString())
      throw std::invalid_argument("expected text as keys, got " + item.key().tagKind());
    object[item.key().toStringRef()] = to_json(item.value());
  }
  return object;
}

DictReader::DictReader(const IValue& value, std::string owner)
    : dict_(make_state()), owner_(std::move(owner)) {
  if (!value.isGenericDict()) fail("expected a dict, got " + value.tagKind());
  dict_ = value.toGenericDict();
}

void DictReader::fail(const std::string& message) const {
  throw std::invalid_argument("state of " + owner_ + ": " + message);
}

void DictReader::fail(const std::string& key, const char* expected, const IValue& got) const {
  fail("'" + key + "': expected " + expected + ", got " + got.tagKind());
}

bool DictReader::has(const std::string& key) const { return dict_.contains(key) && !dict_.at(key).isNone(); }

IValue DictReader::at(const std::string& key) const {
  if (!dict_.contains(key)) fail("expected '" + key + "', got none");
  return dict_.at(key);
}

double DictReader::number(const std::string& key) const {
  const auto value = at(key);
  const auto number = to_number(value);
  if (!number) fail(key, "a number", value);
  return *number;
}

IValue DictReader::expect(const std::string& key, const char* expected, Kind is_expected) const {
  const auto value = at(key);
  if (!(value.*is_expected)()) fail(key, expected, value);
  return value;
}

std::int64_t DictReader::integer(const std::string& key) const {
  return expect(key, "an integer", &IValue::isInt).toInt();
}

std::int64_t DictReader::positive(const std::string& key) const {
  const auto value = integer(key);
  if (value < 1) fail("'" + key + "': expected 1 or more, got " + std::to_string(value));
  return value;
}

bool DictReader::boolean(const std::string& key) const {
  return expect(key, "a bool", &IValue::isBool).toBool();
}

std::vector<std::string> DictReader::names() const {
  std::vector<std::string> names;
  for (const auto& item : dict_) {
    if (!item.key().isString()) fail("expected names as keys, got " + item.key().tagKind());
    names.push_back(item.key().toStringRef());
  }
  return names;
}

std::string DictReader::text(const std::string& key) const {
  return expect(key, "a string", &IValue::isString).toStringRef();
}

at::Tensor DictReader::tensor(const std::string& key) const {
  return expect(key, "a tensor", &IValue::isTensor).toTensor();
}

c10::impl::GenericDict DictReader::dict(const std::string& key) const {
  return expect(key, "a dict", &IValue::isGenericDict).toGenericDict();
}

std::vector<IValue> DictReader::list(const std::string& key) const {
  const auto value = at(key);
  if (value.isTuple()) return value.toTupleRef().elements().vec();
  if (!value.isList()) fail(key, "a list", value);
  return value.toList().vec();
}

std::vector<double> DictReader::numbers(const std::string& key) const {
  std::vector<double> result;
  for (const auto& value : list(key)) {
    const auto number = to_number(value);
    if (!number) fail(key, "a list of numbers", value);
    result.push_back(*number);
  }
  return result;
}

}  // namespace ddprun::train
