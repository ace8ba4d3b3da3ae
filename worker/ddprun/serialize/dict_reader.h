#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ddprun::train {

/// A new dict with string keys.
c10::impl::GenericDict make_state(std::initializer_list<std::pair<const char*, c10::IValue>> items = {});

/// A new list of values of any type.
c10::impl::GenericList make_list(const std::vector<c10::IValue>& values = {});

/// JSON as a dict, list or scalar, and back. throws  std::invalid_argument for what JSON cannot hold
c10::IValue to_value(const nlohmann::json& json);
nlohmann::json to_json(const c10::IValue& value);

/// Reads a state dict. Each call throws std::invalid_argument naming owner and key if the key is missing or
/// its value has another type.
class DictReader {
 public:
  /// owner  whose state it is, for messages
  DictReader(const c10::impl::GenericDict& dict, std::string owner) : dict_(dict), owner_(std::move(owner)) {}
  /// throws  std::invalid_argument if the value is not a dict
  DictReader(const c10::IValue& value, std::string owner);

  bool has(const std::string& key) const;  ///< present and not None
  std::vector<std::string> names() const;  ///< all keys, which must be strings
  c10::IValue at(const std::string& key) const;
  double number(const std::string& key) const;  ///< an int, a float or a tensor of one element
  std::int64_t integer(const std::string& key) const;
  std::int64_t positive(const std::string& key) const;  ///< an integer of 1 or more
  bool boolean(const std::string& key) const;
  std::string text(const std::string& key) const;
  at::Tensor tensor(const std::string& key) const;
  c10::impl::GenericDict dict(const std::string& key) const;
  std::vector<c10::IValue> list(const std::string& key) const;
  std::vector<double> numbers(const std::string& key) const;  ///< a list or tuple of ints and floats

  [[noreturn]] void fail(const std::string& message) const;

 private:
  using Kind = bool (c10::IValue::*)() const;
  c10::IValue expect(const std::string& key, const char* expected, Kind is_expected) const;
  [[noreturn]] void fail(const std::string& key, const char* expected, const c10::IValue& got) const;

  c10::impl::GenericDict dict_;
  std::string owner_;
};

}  // namespace ddprun::train
