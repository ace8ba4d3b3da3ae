#include <ddprun/serialize/unpickler.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/jit_type.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ddprun/common/text.h>
#include <ddprun/serialize/portable_value.h>

namespace ddprun::serialize {
namespace {

/// Each opcode may take two hundred bytes of memory. A tensor needs some thirty opcodes.
constexpr std::int64_t kMaxOpcodes = 2'000'000;
constexpr std::size_t kMaxDimensions = 64;
constexpr int kMaxDepth = 100;
/// Values may nest the same value many times, so a few bytes could stand for more elements than anyone can
/// walk through.
constexpr std::int64_t kMaxElements = 10'000'000;

constexpr std::string_view kFunctions[] = {"collections.OrderedDict",
                                           "collections.Counter",
                                           "torch.Size",
                                           "torch.device",
                                           "torch._utils._rebuild_tensor",
                                           "torch._utils._rebuild_tensor_v2",
                                           "torch._utils._rebuild_tensor_v3",
                                           "torch._utils._rebuild_parameter",
                                           "__builtin__.set"};

/// The numbers of a tuple; nullopt unless all are integers >= 0.
std::optional<std::vector<std::int64_t>> integers(const c10::IValue& tuple) {
  if (!tuple.isTuple()) return std::nullopt;
  std::vector<std::int64_t> numbers;
  for (const auto& element : tuple.toTupleRef().elements()) {
    if (!element.isInt() || element.toInt() < 0) return std::nullopt;
    numbers.push_back(element.toInt());
  }
  return numbers;
}

/// Reads a pickle's opcodes and operands front to back; all functions throw UnpickleError past the end.
class PickleBytes {
 public:
  explicit PickleBytes(std::string_view bytes) : bytes_(bytes) {}

  char opcode() {
    opcode_at_ = at_;
    return take(1)[0];
  }

  std::string_view take(std::size_t count) {
    if (count > bytes_.size() - at_) fail("the pickle ends in the middle of an opcode");
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }

  /// Up to the newline, which it skips.
  std::string_view line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) fail("the pickle ends in the middle of a name");
    const auto text = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return text;
  }

  /// Little endian, like this host. count: 8 bytes at most
  std::uint64_t unsigned_number(std::size_t count) {
    std::uint64_t number = 0;
    std::memcpy(&number, take(count).data(), count);
    return number;
  }

  /// A length byte, then the number.
  std::int64_t long_number() {
    const auto count = unsigned_number(1);
    if (count > 8) fail("an integer of more than 64 bits");
    if (count == 0) return 0;
    const auto shift = 64 - 8 * count;
    return static_cast<std::int64_t>(unsigned_number(count) << shift) >> shift;
  }

  /// Big endian.
  double real_number() {
    std::uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    return std::bit_cast<double>(bits);
  }

  /// The number of bytes gives the length of the text.
  std::string text(std::size_t count) { return std::string(take(unsigned_number(count))); }

  std::size_t position() const { return at_; }

  /// Throws UnpickleError with the position of the last opcode.
  [[noreturn]] void fail(const std::string& message) const {
    throw UnpickleError("byte " + std::to_string(opcode_at_) + " of the pickle: " + message);
  }

 private:
  std::string_view bytes_;
  std::size_t at_ = 0, opcode_at_ = 0;
};

/// A Python name that the pickle may use, such as "torch._utils._rebuild_tensor_v2".
struct Global {
  std::string name;
};

/// Depth and size of a container's content, and whether it is inside another one. Such a container is closed
/// and must not change any more: this prevents cycles and keeps depth and size correct.
struct Nesting {
  int depth = 1;
  std::int64_t elements = 1;  // counted as often as a walk through the value visits them
  bool closed = false;
};

struct Value;
using Arguments = std::vector<Value>;  // a tuple that holds what an IValue cannot

struct Value {
  std::variant<c10::IValue, Global, StorageReference, std::shared_ptr<const Arguments>> what;
  std::shared_ptr<Nesting> nesting = nullptr;  // of a list, a dict or a tuple
};

/// What a pickle's opcodes work on: a stack with marks, the containers on it, and a memo. All functions throw
/// UnpickleError for malformed input and for values that are too deep or too large.
class PickleStack {
 public:
  explicit PickleStack(std::string_view pickle) : bytes_(pickle) {}

 protected:
  [[noreturn]] void fail(const std::string& message) const { bytes_.fail(message); }

  void push(c10::IValue value) { stack_.push_back({std::move(value)}); }
  void push(Value value) { stack_.push_back(std::move(value)); }
  void push_container(c10::IValue value) {
    stack_.push_back({std::move(value), std::make_shared<Nesting>()});
  }
  void push_list() { push_container(c10::impl::GenericList(c10::AnyType::get())); }
  void push_dict() { push_container(c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get())); }

  Value& top() {
    if (stack_.size() <= bottom()) fail("takes a value from an empty stack");
    return stack_.back();
  }

  Value pop() {
    Value value = std::move(top());
    stack_.pop_back();
    return value;
  }

  Arguments pop_last(std::size_t count) {
    if (stack_.size() - bottom() < count) fail("takes a value from an empty stack");
    const auto first = stack_.end() - static_cast<std::ptrdiff_t>(count);
    Arguments values(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    return values;
  }

  Arguments pop_to_mark() {
    if (marks_.empty()) fail("takes values up to a mark that was not set");
    auto values = pop_last(stack_.size() - marks_.back());
    marks_.pop_back();
    return values;
  }

  /// A tuple's elements.
  Arguments pop_arguments() {
    const Value value = pop();
    if (const auto* arguments = std::get_if<std::shared_ptr<const Arguments>>(&value.what))
      return **arguments;
    const auto& tuple = plain(value, "the arguments");
    if (!tuple.isTuple()) fail("calls a function with arguments that are not a tuple");
    Arguments arguments;
    for (const auto& element : tuple.toTupleRef().elements()) arguments.push_back({element, value.nesting});
    return arguments;
  }

  /// The value left at the end.
  c10::IValue result() const {
    if (!marks_.empty() || stack_.size() != 1) fail("the pickle ends in the middle of a value");
    return plain(stack_.back(), "the pickle's value");
  }

  /// The value or tensor. what: its name in the message if it is a function or a storage
  const c10::IValue& plain(const Value& value, const char* what) const {
    const auto* found = std::get_if<c10::IValue>(&value.what);
    if (found == nullptr)
      fail(std::string(what) + " is a function or a storage, expected a value or a tensor");
    return *found;
  }

  void mark() { marks_.push_back(stack_.size()); }
  void put(std::uint64_t slot) { memo_.insert_or_assign(slot, top()); }
  void get(std::uint64_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) fail("refers to slot " + std::to_string(slot) + ", which is empty");
    stack_.push_back(found->second);
  }

  /// To the list on top.
  void append(const Arguments& values) {
    const Value& target = top();
    const auto& list = plain(target, "the target of APPEND");
    if (!list.isList()) fail("appends to something that is not a list");
    Nesting& nesting = open_nesting(target);
    auto items = list.toList();
    for (const auto& value : values) {
      nest(value, nesting);
      items.push_back(plain(value, "a list's element"));
    }
  }

  /// Of the dict on top: key, value, key, value, ...
  void set_items(const Arguments& values) {
    const Value& target = top();
    const auto& mapping = plain(target, "the target of SETITEM");
    if (!mapping.isGenericDict() || values.size() % 2 != 0)
      fail("sets items of something that is not a dict");
    Nesting& nesting = open_nesting(target);
    auto dict = mapping.toGenericDict();
    for (std::size_t i = 0; i < values.size(); i += 2) {
      const auto& key = plain(values[i], "a dict's key");
      if (!key.isString() && !key.isInt() && !key.isDouble() && !key.isBool())
        fail("a dict's key is a " + key.tagKind() + ", expected a string or a number");
      if (dict.empty() && key.isInt()) dict.unsafeSetKeyType(c10::IntType::get());
      nest(values[i + 1], nesting);
      dict.insert_or_assign(key, plain(values[i + 1], "a dict's value"));
    }
  }

  void push_tuple(Arguments values) {
    auto nesting = std::make_shared<Nesting>();
    nesting->closed = true;
    std::vector<c10::IValue> elements;
    for (const auto& value : values) {
      if (std::holds_alternative<std::shared_ptr<const Arguments>>(value.what))
        fail("a tuple of functions in a tuple");
      nest(value, *nesting);
      if (const auto* element = std::get_if<c10::IValue>(&value.what)) elements.push_back(*element);
    }
    if (elements.size() == values.size())
      stack_.push_back({c10::IValue(c10::ivalue::Tuple::create(std::move(elements))), nesting});
    else
      stack_.push_back({std::make_shared<const Arguments>(std::move(values)), nesting});
  }

  PickleBytes bytes_;

 private:
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }

  Nesting& open_nesting(const Value& container) const {
    if (container.nesting == nullptr || container.nesting->closed)
      fail("changes a container that is already inside another one");
    return *container.nesting;
  }

  void nest(const Value& inner, Nesting& outer) const {
    ++outer.elements;
    if (inner.nesting != nullptr) {
      if (inner.nesting.get() == &outer) fail("puts a container into itself");
      inner.nesting->closed = true;
      outer.depth = std::max(outer.depth, inner.nesting->depth + 1);
      outer.elements += inner.nesting->elements;
    }
    if (outer.depth > kMaxDepth) fail(c10::str("nested deeper than the ", kMaxDepth, " levels allowed"));
    if (outer.elements > kMaxElements)
      fail(c10::str("holds more than the ", kMaxElements, " elements allowed"));
  }

  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
};

class Unpickler : PickleStack {
 public:
  Unpickler(std::string_view pickle, const OpenStorage& open_storage)
      : PickleStack(pickle), open_storage_(open_storage) {}

  c10::IValue run() {
    for (std::int64_t opcodes = 1; step(); ++opcodes)
      if (opcodes == kMaxOpcodes) fail("more than the " + std::to_string(kMaxOpcodes) + " opcodes allowed");
    return result();
  }
  std::size_t end() const { return bytes_.position(); }

 private:
  std::int64_t integer(std::size_t count) { return static_cast<std::int64_t>(bytes_.unsigned_number(count)); }

  /// Drops attributes such as _metadata.
  void build() {
    pop();
    if (!plain(top(), "the target of BUILD").isGenericDict())
      fail("sets attributes of something that is not a dict");
  }

  void push_global() {
    std::string name(bytes_.line());
    name.append(".").append(bytes_.line());
    const bool is_function = std::ranges::find(kFunctions, name) != std::end(kFunctions);
    if (is_function || dtype_named(name, &DtypeNames::storage)) return push(Value{Global{std::move(name)}});
    if (dtype_named(name, &DtypeNames::dtype)) return push(std::move(name));
    fail("uses " + in_quotes(name) + ", which is not on the list of what a checkpoint may use");
  }

  // ('storage', torch.FloatStorage, key, location, numel) and in old files a view, which is None.
  void push_storage() {
    const auto arguments = pop_arguments();
    if (arguments.size() != 5 && arguments.size() != 6)
      fail("a storage of " + std::to_string(arguments.size()) + " fields");
    const auto& kind = plain(arguments[0], "a storage's kind");
    const auto* type = std::get_if<Global>(&arguments[1].what);
    const auto& key = plain(arguments[2], "a storage's key");
    const auto& numel = plain(arguments[4], "a storage's size");
    if (!kind.isString() || kind.toStringRef() != "storage" || type == nullptr || !key.isString() ||
        !numel.isInt() || (arguments.size() == 6 && !plain(arguments[5], "a storage's view").isNone()))
      fail("a storage that is not ('storage', type, key, location, size)");
    const auto dtype = dtype_named(type->name, &DtypeNames::storage);
    if (!dtype) fail("a storage of type " + in_quotes(type->name));
    if (numel.toInt() < 0) fail("a storage of " + std::to_string(numel.toInt()) + " elements");
    push(Value{StorageReference{*dtype, key.toStringRef(), numel.toInt()}});
  }

  /// viewed  the storage as elements of the tensor's type
  at::Tensor rebuild_tensor(const StorageReference& storage, const StorageReference& viewed,
                            const c10::IValue& offset, const c10::IValue& size, const c10::IValue& stride) {
    const auto sizes = integers(size);
    const auto strides = integers(stride);
    if (!offset.isInt() || offset.toInt() < 0 || !sizes || !strides || sizes->size() != strides->size() ||
        sizes->size() > kMaxDimensions)
      fail(
          "a tensor whose offset, size and stride are not a number and two tuples of the same length, all >= "
          "0");
    // Neither may overflow int64, nor may the product without zeros: TensorImpl multiplies in that order.
    auto bytes = static_cast<std::int64_t>(c10::elementSize(viewed.dtype));
    std::int64_t last = offset.toInt();
    bool overflow = false, empty = false;
    for (std::size_t i = 0; i < sizes->size(); ++i) {
      const auto extent = (*sizes)[i];
      std::int64_t reach = 0;
      empty |= extent == 0;
      if (extent == 0) continue;
      overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
      overflow |= __builtin_mul_overflow(extent - 1, (*strides)[i], &reach);
      overflow |= __builtin_add_overflow(last, reach, &last);
    }
    if (overflow || (empty ? offset.toInt() > viewed.numel : last >= viewed.numel))
      fail("a tensor reaches beyond its storage " + in_quotes(viewed.key) + " of " +
           std::to_string(viewed.numel) + " elements");
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(open_storage_(storage),
                                                           c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                           c10::scalarTypeToTypeMeta(viewed.dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(*sizes, *strides, offset.toInt());
    return tensor;
  }

  // (storage, offset, size, stride), for _v2 also (requires_grad, hooks), for _v3 (requires_grad, hooks,
  // dtype); then perhaps metadata.
  void push_tensor(const std::string& function, const Arguments& arguments) {
    const std::size_t needed = function.ends_with("_v3") ? 7 : function.ends_with("_v2") ? 6 : 4;
    const auto* storage = arguments.empty() ? nullptr : std::get_if<StorageReference>(&arguments[0].what);
    const bool fits = arguments.size() == needed || (needed > 4 && arguments.size() == needed + 1);
    if (!fits || storage == nullptr) fail("calls " + function + " with arguments that it does not take");
    auto viewed = *storage;
    if (needed == 7) {
      const auto& name = plain(arguments[6], "a tensor's dtype");
      const auto dtype = name.isString() ? dtype_named(name.toStringRef(), &DtypeNames::dtype) : std::nullopt;
      if (!dtype || *dtype == c10::ScalarType::Bool || storage->dtype != c10::ScalarType::Byte)
        fail("a tensor without a proper dtype");
      viewed.dtype = *dtype;
      viewed.numel /= static_cast<std::int64_t>(c10::elementSize(*dtype));
    }
    if (arguments.size() > needed) {
      const auto& metadata = plain(arguments[needed], "a tensor's metadata");
      if (!metadata.isNone() && !(metadata.isGenericDict() && metadata.toGenericDict().empty()))
        fail("a tensor with metadata (conjugate or negative bit), which is not supported");
    }
    push(rebuild_tensor(*storage, viewed, plain(arguments[1], "a tensor's offset"),
                        plain(arguments[2], "a tensor's size"), plain(arguments[3], "a tensor's stride")));
  }

  // ('cpu',) or ('cuda', 0): its name.
  void push_device(const Arguments& arguments) {
    std::string name;
    if (!arguments.empty() && plain(arguments[0], "a device").isString())
      name = plain(arguments[0], "a device").toStringRef();
    if (arguments.size() == 2 && plain(arguments[1], "a device").isInt())
      name += ":" + std::to_string(plain(arguments[1], "a device").toInt());
    else if (arguments.size() != 1)
      name.clear();
    if (name.empty()) fail("calls torch.device with arguments that it does not take");
    push(std::move(name));
  }

  void reduce() {
    const auto arguments = pop_arguments();
    const Value callee = pop();
    const auto* function = std::get_if<Global>(&callee.what);
    if (function == nullptr) fail("calls something that is not a function");
    const auto& name = function->name;
    if (name.starts_with("torch._utils._rebuild_tensor")) return push_tensor(name, arguments);
    if (name == "torch.device") return push_device(arguments);
    const bool dict = name == "collections.OrderedDict" || name == "collections.Counter";
    if (dict && arguments.empty()) return push_dict();
    const auto first_is = [&](const char* callee_name, bool (c10::IValue::*kind)() const) {
      return name == callee_name && arguments.size() == 1 && (plain(arguments[0], "an argument").*kind)();
    };
    const bool parameter = name == "torch._utils._rebuild_parameter" && arguments.size() == 3 &&
                           plain(arguments[0], "a parameter's data").isTensor();
    if (parameter || first_is("collections.Counter", &c10::IValue::isGenericDict) ||
        first_is("__builtin__.set", &c10::IValue::isList) || first_is("torch.Size", &c10::IValue::isTuple))
      return push(arguments[0]);
    fail("calls " + name + " with arguments that it does not take");
  }

  // clang-format off

  /// Numbers, strings, constants and empty containers. returns  false for other opcodes
  bool step_scalar(char opcode) {
    switch (opcode) {
      case 'N':    push(c10::IValue()); break;                 // NONE
      case '\x88': push(true); break;                          // NEWTRUE
      case '\x89': push(false); break;                         // NEWFALSE
      case 'J':    push(std::int64_t{static_cast<std::int32_t>(integer(4))}); break; // BININT
      case 'K':    push(integer(1)); break;                    // BININT1
      case 'M':    push(integer(2)); break;                    // BININT2
      case '\x8a': push(bytes_.long_number()); break;          // LONG1
      case 'G':    push(bytes_.real_number()); break;          // BINFLOAT
      case 'X':    push(bytes_.text(4)); break;                // BINUNICODE
      case 'T':    push(bytes_.text(4)); break;                // BINSTRING, of Python 2
      case 'U':    push(bytes_.text(1)); break;                // SHORT_BINSTRING, of Python 2
      case ')':    push_tuple({}); break;                      // EMPTY_TUPLE
      case ']':    push_list(); break;                         // EMPTY_LIST
      case '}':    push_dict(); break;                         // EMPTY_DICT
      default: return false;
    }
    return true;
  }

  /// One opcode. returns  false at STOP
  bool step() {
    const char opcode = bytes_.opcode();
    if (step_scalar(opcode)) return true;
    switch (opcode) {
      case '\x80': bytes_.take(1); break;                      // PROTO
      case '.':    return false;                               // STOP
      case '(':    mark(); break;                              // MARK
      case 'c':    push_global(); break;                       // GLOBAL
      case 'Q':    push_storage(); break;                      // BINPERSID
      case 'R':    reduce(); break;                            // REDUCE
      case 'b':    build(); break;                             // BUILD
      case 'q':    put(bytes_.unsigned_number(1)); break;      // BINPUT
      case 'r':    put(bytes_.unsigned_number(4)); break;      // LONG_BINPUT
      case 'h':    get(bytes_.unsigned_number(1)); break;      // BINGET
      case 'j':    get(bytes_.unsigned_number(4)); break;      // LONG_BINGET
      case 't':    push_tuple(pop_to_mark()); break;           // TUPLE
      case '\x85': push_tuple(pop_last(1)); break;             // TUPLE1
      case '\x86': push_tuple(pop_last(2)); break;             // TUPLE2
      case '\x87': push_tuple(pop_last(3)); break;             // TUPLE3
      case 'a':    append(pop_last(1)); break;                 // APPEND
      case 'e':    append(pop_to_mark()); break;               // APPENDS
      case 's':    set_items(pop_last(2)); break;              // SETITEM
      case 'u':    set_items(pop_to_mark()); break;            // SETITEMS
      default:     fail(formatted("opcode 0x%02x is not one that torch.save writes", static_cast<unsigned char>(opcode)));
    }
    return true;
  }

  // clang-format on

  const OpenStorage& open_storage_;
};

}  // namespace

c10::IValue unpickle_first(std::string_view& bytes, const OpenStorage& open_storage) {
  Unpickler unpickler(bytes, open_storage);
  auto value = unpickler.run();
  bytes.remove_prefix(unpickler.end());
  return value;
}

}  // namespace ddprun::serialize
