#include "launcher/rendezvous/message_json.h"

#include <array>
#include <climits>
#include <cstdint>
#include <nlohmann/json.hpp>

#include <ddprun/common/errors.h>
#include <ddprun/common/json_file.h>
#include <ddprun/common/text/printable.h>
#include "launcher/rendezvous/message_fields.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxShown = 40;  // bytes of what was got, in a message for people
constexpr int kMostLevels = 32;        // a message has 1

std::string dumped(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string shown(const std::string& got) { return quoted(shortened(printable(got), kMaxShown)); }

/// The text as UTF-8 of at most so many bytes, and twice as many in JSON, where a byte can take six.
std::string fitting(const std::string& text, std::size_t most) {
  for (std::size_t size = most;; size -= size / 4) {
    const std::string in_json = dumped(shortened(text, size));
    std::string result = json::parse(in_json).get<std::string>();
    if (result.size() <= most && in_json.size() <= 2 * most) return result;
  }
}

/// Puts a message's fields into JSON.
class Writer {
 public:
  explicit Writer(const char* type) { object_["type"] = type; }

  void integer(const char* field, int value, int, int) { object_[field] = value; }
  void optional_integer(const char* field, const std::optional<int>& value, int, int) {
    if (value) object_[field] = *value;
  }
  void flag(const char* field, bool value) { object_[field] = value; }
  void text(const char* field, const std::string& value, std::size_t most) {
    object_[field] = fitting(value, most);
  }
  template <typename Choice, std::size_t kSize>
  void choice(const char* field, std::optional<Choice> value, const std::array<const char*, kSize>& names) {
    ensure(value.has_value(), "what failed tells of a success");
    object_[field] = names.at(static_cast<std::size_t>(*value));
  }

  std::string result() const { return dumped(object_); }

 private:
  json object_;
};

/// Takes a message's fields out of JSON.
class Reader {
 public:
  Reader(const char* type, const json& object) : type_(type), object_(object) {}

  void integer(const char* field, int& value, int least, int most) const {
    const json* found = find(field);
    if (found == nullptr || !is_within(*found, least, most))
      fail(field, "an integer from " + std::to_string(least) + " to " + std::to_string(most), found);
    value = found->get<int>();
  }

  void optional_integer(const char* field, std::optional<int>& value, int least, int most) const {
    if (find(field) != nullptr) integer(field, value.emplace(), least, most);
  }

  void flag(const char* field, bool& value) const {
    const json* found = find(field);
    if (found == nullptr || !found->is_boolean()) fail(field, "true or false", found);
    value = found->get<bool>();
  }

  void text(const char* field, std::string& value, std::size_t most) const {
    const json* found = find(field);
    if (found == nullptr || !found->is_string() || found->get_ref<const std::string&>().size() > most)
      fail(field, "a text of at most " + std::to_string(most) + " bytes", found);
    value = found->get<std::string>();
  }

  template <typename Choice, std::size_t kSize>
  void choice(const char* field, std::optional<Choice>& value,
              const std::array<const char*, kSize>& names) const {
    const json* found = find(field);
    std::string all;
    for (std::size_t i = 0; i < kSize; ++i) {
      if (found != nullptr && *found == names[i]) {
        value = static_cast<Choice>(i);
        return;
      }
      all += (i == 0 ? "" : i + 1 < kSize ? ", " : " or ") + std::string(names[i]);
    }
    fail(field, all, found);
  }

 private:
  const json* find(const char* field) const {
    const auto found = object_.find(field);
    return found == object_.end() ? nullptr : &*found;
  }

  static bool is_within(const json& value, int least, int most) {
    if (!value.is_number_integer()) return false;
    if (value.is_number_unsigned() && value.get<std::uint64_t>() > INT_MAX) return false;
    const auto number = value.get<std::int64_t>();
    return least <= number && number <= most;
  }

  [[noreturn]] void fail(const char* field, const std::string& expected, const json* got) const {
    throw ProtocolError(std::string(type_) + ": expected " + field + " to be " + expected + ", got " +
                        (got == nullptr ? "nothing" : shown(dumped(*got))));
  }

  const char* type_;
  const json& object_;
};

template <typename Message>
std::string write(Message message) {
  Writer fields(type_of(message));
  visit(fields, message);
  return fields.result();
}

template <typename Messages>
std::string encode_any(const Messages& messages) {
  std::string json = std::visit([](const auto& message) { return write(message); }, messages);
  ensure(json.size() <= kMaxMessage, "a message fits into a frame");
  return json;
}

json parse_object(std::string_view text) {
  json object;
  try {
    object = parse_shallow_json(text, kMostLevels);
  } catch (const std::invalid_argument& error) {
    throw ProtocolError("expected a message, got " + shown(std::string(text)) + ", which " + error.what());
  }
  if (!object.is_object() || !object.contains("type") || !object["type"].is_string())
    throw ProtocolError("expected a message: a JSON object with a \"type\", got " + shown(std::string(text)));
  return object;
}

/// The message of the type that the object names.
template <typename Messages, std::size_t kIndex = 0>
Messages read(const json& object, const char* sender) {
  if constexpr (kIndex == std::variant_size_v<Messages>) {
    throw ProtocolError(std::string("expected a message of a ") + sender + ", got one of type " +
                        shown(dumped(object["type"])));
  } else {
    std::variant_alternative_t<kIndex, Messages> message;
    if (object["type"] != type_of(message)) return read<Messages, kIndex + 1>(object, sender);
    const Reader fields(type_of(message), object);
    visit(fields, message);
    return message;
  }
}

}  // namespace

std::string encode(const NodeMessage& message) { return encode_any(message); }
std::string encode(const CoordinatorMessage& message) { return encode_any(message); }

NodeMessage decode_node_message(std::string_view json) {
  return read<NodeMessage>(parse_object(json), "node");
}

CoordinatorMessage decode_coordinator_message(std::string_view json) {
  return read<CoordinatorMessage>(parse_object(json), "coordinator");
}

}  // namespace ddprun::launcher
