#include "worker/serialize/unpickler.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "worker/serialize/in_quotes.h"
#include "worker/serialize/pickle_bytes.h"
#include "worker/serialize/pickle_value.h"
#include "worker/serialize/rebuild_tensor.h"

namespace ddprun::serialize {
namespace {

constexpr int kMaxDepth = 100;

c10::impl::GenericDict make_dict() {
  return c10::impl::GenericDict(c10::StringType::get(), c10::AnyType::get());
}

class Unpickler {
 public:
  Unpickler(std::string_view pickle, const OpenStorage& open_storage)
      : bytes_(pickle), open_storage_(open_storage) {}

  c10::IValue run() {
    while (step()) {
    }
    if (!marks_.empty() || stack_.size() != 1) fail("the pickle ends in the middle of a value");
    return plain(stack_.back(), "the pickle's value");
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { bytes_.fail(message); }

  // -- the stack --
  void push(c10::IValue value) { stack_.push_back({std::move(value)}); }
  void push_container(c10::IValue value) {
    stack_.push_back({std::move(value), std::make_shared<Nesting>()});
  }
  std::size_t bottom() const { return marks_.empty() ? 0 : marks_.back(); }
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
  const c10::IValue& plain(const Value& value, const char* what) const {
    const auto* found = std::get_if<c10::IValue>(&value.what);
    if (found == nullptr)
      fail(std::string(what) + " is a function or a storage, expected a value or a tensor");
    return *found;
  }

  // -- containers --
  Nesting& open_nesting(const Value& container) const {
    if (container.nesting == nullptr || container.nesting->closed)
      fail("changes a container that is inside another one already");
    return *container.nesting;
  }
  void nest(const Value& inner, Nesting& outer) const {
    if (inner.nesting == nullptr) return;
    if (inner.nesting.get() == &outer) fail("puts a container into itself");
    inner.nesting->closed = true;
    outer.depth = std::max(outer.depth, inner.nesting->depth + 1);
    if (outer.depth > kMaxDepth)
      fail("nested deeper than the " + std::to_string(kMaxDepth) + " levels allowed");
  }
  void append(const Arguments& values) {
    const Value& target = top();
    const auto& list = plain(target, "the target of APPEND");
    if (!list.isList()) fail("appends to what is not a list");
    Nesting& nesting = open_nesting(target);
    auto items = list.toList();
    for (const auto& value : values) {
      nest(value, nesting);
      items.push_back(plain(value, "a list's element"));
    }
  }
  void set_items(const Arguments& values) {
    const Value& target = top();
    const auto& mapping = plain(target, "the target of SETITEM");
    if (!mapping.isGenericDict() || values.size() % 2 != 0) fail("sets items of what is not a dict");
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
  Arguments pop_arguments() {
    const Value value = pop();
    if (const auto* arguments = std::get_if<std::shared_ptr<const Arguments>>(&value.what))
      return **arguments;
    const auto& tuple = plain(value, "the arguments");
    if (!tuple.isTuple()) fail("calls a function with what is not a tuple");
    Arguments arguments;
    for (const auto& element : tuple.toTupleRef().elements()) arguments.push_back({element, value.nesting});
    return arguments;
  }

  void push_global();
  void push_storage();
  void reduce();
  void push_tensor(const std::string& function, const Arguments& arguments);
  /// Attributes such as _metadata: not needed.
  void build() {
    pop();
    if (!plain(top(), "the target of BUILD").isGenericDict()) fail("sets attributes of what is not a dict");
  }

  void put(std::uint64_t slot) { memo_.insert_or_assign(slot, top()); }
  void get(std::uint64_t slot) {
    const auto found = memo_.find(slot);
    if (found == memo_.end()) fail("refers to slot " + std::to_string(slot) + ", which is empty");
    stack_.push_back(found->second);
  }

  bool step();
  bool step_scalar(char opcode);

  PickleBytes bytes_;
  const OpenStorage& open_storage_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
};

bool is_function(const std::string& name) {
  static constexpr std::string_view kNames[] = {
      "collections.OrderedDict",         "torch._utils._rebuild_tensor",    "torch.Size",
      "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter", "__builtin__.set"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

void Unpickler::push_global() {
  std::string name(bytes_.line());
  name.append(".").append(bytes_.line());
  if (is_function(name) || storage_dtype(name)) return stack_.push_back({Global{std::move(name)}});
  if (is_dtype_name(name)) return push(std::move(name));
  fail("uses " + in_quotes(name) + ", which is not on the list of what a checkpoint may use");
}

// ('storage', torch.FloatStorage, key, location, numel) and in old files a view, which is None.
void Unpickler::push_storage() {
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
  const auto dtype = storage_dtype(type->name);
  if (!dtype) fail("a storage of type " + in_quotes(type->name));
  if (numel.toInt() < 0) fail("a storage of " + std::to_string(numel.toInt()) + " elements");
  stack_.push_back({StorageReference{*dtype, key.toStringRef(), numel.toInt()}});
}

// (storage, offset, size, stride), and for _v2 (..., requires_grad, hooks) and perhaps metadata.
void Unpickler::push_tensor(const std::string& function, const Arguments& arguments) {
  const bool second_version = function.ends_with("_v2");
  const auto* storage = arguments.empty() ? nullptr : std::get_if<StorageReference>(&arguments[0].what);
  const bool fits = second_version ? arguments.size() == 6 || arguments.size() == 7 : arguments.size() == 4;
  if (!fits || storage == nullptr) fail("calls " + function + " with other arguments than it has");
  if (arguments.size() == 7) {
    const auto& metadata = plain(arguments[6], "a tensor's metadata");
    if (!metadata.isNone() && !(metadata.isGenericDict() && metadata.toGenericDict().empty()))
      fail("a tensor with metadata (conjugate or negative bit), which is not supported");
  }
  const TensorGeometry geometry = {plain(arguments[1], "a tensor's offset"),
                                   plain(arguments[2], "a tensor's size"),
                                   plain(arguments[3], "a tensor's stride")};
  if (const auto reason = misfit(geometry, *storage)) fail(*reason);
  push(rebuild_tensor(open_storage_(*storage), storage->dtype, geometry));
}

void Unpickler::reduce() {
  const auto arguments = pop_arguments();
  const Value callee = pop();
  const auto* function = std::get_if<Global>(&callee.what);
  if (function == nullptr) fail("calls what is not a function");
  const auto& name = function->name;
  if (name.starts_with("torch._utils._rebuild_tensor")) return push_tensor(name, arguments);
  if (name == "collections.OrderedDict" && arguments.empty()) return push_container(make_dict());
  if (name == "torch._utils._rebuild_parameter" && arguments.size() == 3 &&
      plain(arguments[0], "a parameter's data").isTensor())
    return stack_.push_back(arguments[0]);
  const bool list =
      name == "__builtin__.set" && arguments.size() == 1 && plain(arguments[0], "a set").isList();
  const bool size = name == "torch.Size" && arguments.size() == 1 && plain(arguments[0], "a size").isTuple();
  if (list || size) return stack_.push_back(arguments[0]);
  fail("calls " + name + " with other arguments than it has");
}

// clang-format off

/// Numbers, strings, constants and empty containers. returns  whether the opcode is one of them
bool Unpickler::step_scalar(char opcode) {
  switch (opcode) {
    case 'N':    push(c10::IValue()); break;                                       // NONE
    case '\x88': push(true); break;                                                // NEWTRUE
    case '\x89': push(false); break;                                               // NEWFALSE
    case 'J':    push(static_cast<std::int64_t>(bytes_.int32())); break;           // BININT
    case 'K':    push(static_cast<std::int64_t>(bytes_.unsigned_number(1))); break;  // BININT1
    case 'M':    push(static_cast<std::int64_t>(bytes_.unsigned_number(2))); break;  // BININT2
    case '\x8a': push(bytes_.long_number()); break;                                // LONG1
    case 'G':    push(bytes_.real_number()); break;                                // BINFLOAT
    case 'X':    push(std::string(bytes_.take(bytes_.unsigned_number(4)))); break; // BINUNICODE
    case ')':    push_tuple({}); break;                                            // EMPTY_TUPLE
    case ']':    push_container(c10::impl::GenericList(c10::AnyType::get())); break;  // EMPTY_LIST
    case '}':    push_container(make_dict()); break;                               // EMPTY_DICT
    default: return false;
  }
  return true;
}

/// One opcode. returns  false at STOP
bool Unpickler::step() {
  const char opcode = bytes_.opcode();
  if (step_scalar(opcode)) return true;
  switch (opcode) {
    case '\x80': bytes_.take(1); break;                       // PROTO
    case '.':    return false;                                // STOP
    case '(':    marks_.push_back(stack_.size()); break;      // MARK
    case 'c':    push_global(); break;                        // GLOBAL
    case 'Q':    push_storage(); break;                       // BINPERSID
    case 'R':    reduce(); break;                             // REDUCE
    case 'b':    build(); break;                              // BUILD
    case 'q':    put(bytes_.unsigned_number(1)); break;       // BINPUT
    case 'r':    put(bytes_.unsigned_number(4)); break;       // LONG_BINPUT
    case 'h':    get(bytes_.unsigned_number(1)); break;       // BINGET
    case 'j':    get(bytes_.unsigned_number(4)); break;       // LONG_BINGET
    case 't':    push_tuple(pop_to_mark()); break;            // TUPLE
    case '\x85': push_tuple(pop_last(1)); break;              // TUPLE1
    case '\x86': push_tuple(pop_last(2)); break;              // TUPLE2
    case '\x87': push_tuple(pop_last(3)); break;              // TUPLE3
    case 'a':    append(pop_last(1)); break;                  // APPEND
    case 'e':    append(pop_to_mark()); break;                // APPENDS
    case 's':    set_items(pop_last(2)); break;               // SETITEM
    case 'u':    set_items(pop_to_mark()); break;             // SETITEMS
    default:     fail("opcode " + hex(opcode) + " is not one that torch.save writes");
  }
  return true;
}

// clang-format on

}  // namespace

c10::IValue unpickle(std::string_view bytes, const OpenStorage& open_storage) {
  return Unpickler(bytes, open_storage).run();
}

}  // namespace ddprun::serialize
