#include <ddprun/train/state/shard_index.h>

#include <torch/nn/module.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <regex>
#include <system_error>

#include <ATen/core/jit_type.h>

#include <ddprun/common/errors.h>
#include <ddprun/common/moved_files.h>
#include <ddprun/common/text.h>
#include <ddprun/serialize/dict_reader.h>
#include <ddprun/serialize/portable_value.h>
#include <ddprun/serialize/pt_file.h>

namespace ddprun::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using serialize::DtypeNames;
using Unit = ddp::FullyShardedDataParallel::Unit;

std::int64_t numel_of(const std::vector<std::int64_t>& sizes) {
  std::int64_t numel = 1;
  for (const auto size : sizes)
    if (size < 0 || __builtin_mul_overflow(numel, size, &numel))
      throw std::invalid_argument("a parameter's shape is impossible");
  return numel;
}

/// Whether as many elements as the shape has hold all of it.
bool is_within(const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& strides) {
  const auto numel = numel_of(sizes);
  std::int64_t last = 0, step = 0;
  if (sizes.size() != strides.size()) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (strides[i] < 0 || (numel > 0 && (__builtin_mul_overflow(sizes[i] - 1, strides[i], &step) ||
                                         __builtin_add_overflow(last, step, &last))))
      return false;
  return numel == 0 || last < numel;
}

std::int64_t size_of(at::ScalarType dtype) { return static_cast<std::int64_t>(c10::elementSize(dtype)); }

/// throws  std::invalid_argument unless all parts are within their bounds
void check(const ShardIndex& index) {
  const auto expect = [](bool condition, const char* what) {
    if (!condition) throw std::invalid_argument(what);
  };
  expect(!index.folder.empty() && index.folder.find('/') == std::string::npos && index.folder != "..",
         "'folder' is not the name of a folder beside it");
  expect(!index.checksums.empty() && index.bytes >= 0, "no checksums");
  const auto chunks = index.bytes / kShardChunk + (index.bytes % kShardChunk != 0 ? 1 : 0);
  for (const auto& of_rank : index.checksums)
    expect(static_cast<std::int64_t>(of_rank.size()) == chunks, "not one checksum for each chunk");
  const auto ranks = static_cast<std::int64_t>(index.checksums.size());
  for (const auto& unit : index.units) {
    std::int64_t numel = 0;
    expect(unit.shard_numel > 0 && !__builtin_mul_overflow(unit.shard_numel, ranks, &numel), "a unit's size");
    for (const auto& parameter : unit.parameters)
      expect(parameter.offset >= 0 && parameter.offset <= numel &&
                 numel_of(parameter.sizes) <= numel - parameter.offset &&
                 is_within(parameter.sizes, parameter.strides),
             "a parameter that is not within its unit");
  }
  for (const auto& piece : index.pieces) {
    expect(piece.unit < index.units.size(), "a piece that belongs to no unit");
    std::int64_t bytes = 0;
    expect(!__builtin_mul_overflow(index.units[piece.unit].shard_numel, size_of(piece.dtype), &bytes) &&
               piece.offset >= 0 && piece.offset <= index.bytes && bytes <= index.bytes - piece.offset,
           "a piece that is not within its file");
  }
}

/// throws  std::invalid_argument for other values, which would become integers: bools, fractions
void check_types(const json& value, int depth = 0) {
  if (value.is_structured() ? depth > 8 : !value.is_string() && !value.is_number_integer())
    throw std::invalid_argument(std::string("expected text and integers, got ") + value.type_name());
  if (value.is_structured())
    for (const auto& each : value) check_types(each, depth + 1);
}

ShardIndex parse_index(const std::string& text) {
  ShardIndex index;
  const auto root = json::parse(text);
  check_types(root);
  root.at("folder").get_to(index.folder);
  root.at("bytes").get_to(index.bytes);
  root.at("checksums").get_to(index.checksums);
  root.at("names").get_to(index.names);
  for (const auto& unit : root.at("units")) {
    auto& read = index.units.emplace_back();
    unit.at("shard_numel").get_to(read.shard_numel);
    for (const auto& each : unit.at("parameters"))
      read.parameters.push_back({each.at(0), each.at(1), each.at(2), each.at(3)});
  }
  for (const auto& piece : root.at("pieces")) {
    const auto dtype = serialize::dtype_named(piece.at(2).get<std::string>(), &DtypeNames::dtype);
    if (!dtype) throw std::invalid_argument("a piece of an unknown type");
    index.pieces.push_back({piece.at(0), piece.at(1), *dtype, piece.at(3)});
  }
  check(index);
  return index;
}

/// A tensor of this shape whose storage has a size but no memory.
at::Tensor make_hollow(const std::vector<std::int64_t>& sizes, at::ScalarType dtype) {
  const auto bytes = static_cast<std::size_t>(numel_of(sizes) * size_of(dtype));
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::DataPtr(nullptr, at::kCPU), nullptr,
                       false);
  return at::empty({0}, dtype).set_(storage, 0, sizes);
}

c10::IValue gathered(ShardReader& reader, const std::string& key, const c10::IValue& others) {
  auto dict = make_state();
  const auto value_of = [&](const at::Tensor& hollow) { return reader.value_of(hollow); };
  for (const auto& [name, tensor] : with_memory(reader.hollow(key, others), value_of))
    dict.insert(name, tensor);
  return dict;
}

c10::IValue gathered_optimizer(ShardReader& reader, const c10::IValue& index) {
  const DictReader parts(index, "optimizer");
  const auto keys = reader.index().optimizer_keys();
  c10::impl::GenericDict state(c10::IntType::get(), c10::AnyType::get());
  std::int64_t number = -1;
  for (const auto& [name, parameter] : reader.index().names) {
    if (parameter.empty()) continue;
    ++number;
    if (name != parameter) continue;
    auto entry = make_state();
    for (const auto& key : keys)
      if (const auto value = reader.whole(key, parameter); value.defined()) entry.insert(key, value);
    if (entry.empty() && !keys.empty()) continue;
    if (const auto step = step_of(parts, parameter); !step.isNone()) entry.insert("step", step);
    if (!entry.empty()) state.insert(number, entry);
  }
  return make_state({{"state", state}, {"param_groups", parts.at("param_groups")}});
}

}  // namespace

std::uint32_t crc32_of(const std::string& bytes) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size())));
}

ShardIndex make_shard_index(const torch::nn::Module& module, const std::vector<Unit>& units) {
  ShardIndex index;
  std::map<const void*, std::string> first_names;
  for (const auto& unit : units) {
    auto& written = index.units.emplace_back();
    written.shard_numel = unit.shard.numel();
    for (const auto& each : unit.parameters) {
      written.parameters.push_back({each.name, each.offset, each.tensor.sizes().vec(), each.strides});
      first_names[each.tensor.unsafeGetTensorImpl()] = each.name;
    }
  }
  std::map<std::string, std::string> parameters;
  for (const auto& item : module.named_parameters())
    parameters[item.key()] = first_names.at(item.value().unsafeGetTensorImpl());
  for (const auto& item : state_dict(module)) {
    const auto& name = item.key().toStringRef();
    const auto found = parameters.find(name);
    index.names.emplace_back(name, found == parameters.end() ? "" : found->second);
  }
  return index;
}

std::set<std::string> ShardIndex::optimizer_keys() const {
  std::set<std::string> keys;
  for (const auto& piece : pieces)
    if (piece.key != "model" && piece.key != "ema") keys.insert(piece.key);
  return keys;
}

void Shards::add(const std::string& key, std::size_t unit, const at::Tensor& shard) {
  index.pieces.push_back({key, unit, shard.scalar_type(), index.bytes});
  index.bytes += static_cast<std::int64_t>(shard.nbytes());
  tensors.push_back(shard.detach());
}

std::string to_text(const ShardIndex& index) {
  auto units = json::array(), pieces = json::array();
  for (const auto& unit : index.units) {
    auto parameters = json::array();
    for (const auto& each : unit.parameters)
      parameters.push_back({each.name, each.offset, each.sizes, each.strides});
    units.push_back({{"shard_numel", unit.shard_numel}, {"parameters", parameters}});
  }
  for (const auto& piece : index.pieces)
    pieces.push_back({piece.key, piece.unit, serialize::names_of(piece.dtype).dtype, piece.offset});
  return json{{"folder", index.folder}, {"bytes", index.bytes}, {"checksums", index.checksums},
              {"names", index.names},   {"units", units},       {"pieces", pieces}}
      .dump();
}

ShardReader::ShardReader(fs::path checkpoint, const std::string& shards)
    : checkpoint_(std::move(checkpoint)) {
  try {
    index_ = parse_index(shards);
  } catch (const std::exception& error) {
    throw IoError(checkpoint_, std::string("damaged, expected an index of shards: ") + error.what());
  }
  for (const auto& piece : index_.pieces)
    for (const auto& parameter : index_.units[piece.unit].parameters)
      places_[{piece.key, parameter.name}] = {&parameter, &piece, index_.units[piece.unit].shard_numel};
  files_.resize(index_.checksums.size());
}

fs::path ShardReader::file(std::size_t rank) const {
  return checkpoint_.parent_path() / index_.folder / ("rank-" + std::to_string(rank));
}

const ShardReader::Found* ShardReader::find(const std::string& key, const std::string& parameter) const {
  const auto found = places_.find({key, parameter});
  return found == places_.end() ? nullptr : &found->second;
}

void ShardReader::load_chunk(std::size_t rank, std::int64_t chunk) {
  if (chunk_at_ == std::pair(rank, chunk)) return;
  chunk_at_ = {0, -1};
  auto& fd = files_[rank];
  if (!fd) fd = open_regular_file(file(rank));
  const auto begin = chunk * kShardChunk;
  chunk_.resize(static_cast<std::size_t>(std::min(kShardChunk, index_.bytes - begin)));
  const auto got = read_at(fd, static_cast<std::size_t>(begin), chunk_.data(), chunk_.size(), file(rank));
  if (got < chunk_.size())
    throw IoError(file(rank), "damaged, expected " + std::to_string(index_.bytes) + " bytes, got " +
                                  std::to_string(begin + static_cast<std::int64_t>(got)));
  if (crc32_of(chunk_) != index_.checksums[rank][static_cast<std::size_t>(chunk)])
    throw IoError(file(rank), "damaged: CRC error in the bytes from " + std::to_string(begin));
  chunk_at_ = {rank, chunk};
}

void ShardReader::read_bytes(std::size_t rank, std::int64_t begin, std::int64_t count, char* to) {
  while (count > 0) {
    load_chunk(rank, begin / kShardChunk);
    const auto within = begin % kShardChunk;
    const auto here = std::min(count, static_cast<std::int64_t>(chunk_.size()) - within);
    std::memcpy(to, chunk_.data() + within, static_cast<std::size_t>(here));
    to += here;
    begin += here;
    count -= here;
  }
}

/// Elements of a parameter's memory, from whichever ranks have them.
void ShardReader::read(const Found& from, std::int64_t begin, std::int64_t count, char* to) {
  const auto element = size_of(from.piece->dtype);
  for (auto at = from.parameter->offset + begin; count > 0;) {
    const auto within = at % from.shard_numel;
    const auto here = std::min(count, from.shard_numel - within);
    const auto rank = static_cast<std::size_t>(at / from.shard_numel);
    read_bytes(rank, from.piece->offset + within * element, here * element, to);
    if (from.piece->dtype == at::kBool)
      if (const auto reason = serialize::bad_bools(to, static_cast<std::size_t>(here)))
        throw IoError(file(rank), "'" + from.piece->key + "' of " + from.parameter->name + " " + *reason);
    to += here * element;
    at += here;
    count -= here;
  }
}

void ShardReader::verify(const ShardHolders& holders, int rank) {
  const auto chunks = static_cast<std::int64_t>(index_.checksums.front().size());
  for (std::size_t number = 0; number < index_.checksums.size(); ++number) {
    const auto found = holders.find(index_.folder + "/" + file(number).filename().string());
    if (rank != (found == holders.end() ? 0 : *found->second.begin())) continue;
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) load_chunk(number, chunk);
  }
}

at::Tensor ShardReader::whole(const Found& from, const at::Tensor& memory) {
  read(from, 0, memory.numel(), static_cast<char*>(memory.mutable_data_ptr()));
  return memory.as_strided(from.parameter->sizes, from.parameter->strides, memory.storage_offset())
      .contiguous();
}

at::Tensor ShardReader::whole(const std::string& key, const std::string& parameter) {
  const auto* found = find(key, parameter);
  if (found == nullptr) return {};
  return whole(*found, at::empty({numel_of(found->parameter->sizes)}, found->piece->dtype));
}

at::Tensor ShardReader::shard(const std::string& key, const Unit& unit, int rank) {
  const std::int64_t own_begin = rank * unit.shard.numel(), own_end = own_begin + unit.shard.numel();
  at::Tensor result;
  std::size_t missing = 0;
  for (const auto& own : unit.parameters) {
    const auto* found = find(key, own.name);
    if (found == nullptr && ++missing) continue;
    if (found->parameter->sizes != own.tensor.sizes())
      throw IoError(checkpoint_,
                    "its tensors do not fit the model: with a different shape " + in_quotes(own.name));
    if (!result.defined()) result = at::zeros({unit.shard.numel()}, found->piece->dtype);
    if (result.scalar_type() != found->piece->dtype)
      throw IoError(checkpoint_, "damaged, expected '" + key + "' of " + in_quotes(own.name) +
                                     " to have the same type as the other parameters of its unit");
    const auto begin = std::max(own_begin, own.offset);
    const auto end = std::min(own_end, own.offset + own.tensor.numel());
    if (begin >= end) continue;
    auto part = result.narrow(0, begin - own_begin, end - begin);
    if (found->parameter->strides == own.strides) {
      read(*found, begin - own.offset, end - begin, static_cast<char*>(part.mutable_data_ptr()));
    } else {  // in another memory order
      auto reordered = at::empty_strided(own.tensor.sizes(), own.strides, result.options());
      reordered.copy_(whole(key, own.name));
      part.copy_(reordered.as_strided({end - begin}, {1}, begin - own.offset));
    }
  }
  if (missing > 0 && (key == "model" || (key == "ema" && result.defined())))
    throw IoError(checkpoint_, "its tensors do not fit the model: '" + key + "' lacks " +
                                   std::to_string(missing) + " of the parameters " +
                                   unit.parameters.front().name + " to " + unit.parameters.back().name);
  return result;
}

StateDict ShardReader::hollow(const std::string& key, const c10::IValue& others) {
  const DictReader reader(others, key);
  const auto dict = others.toGenericDict();
  const std::string prefix = key == "ema" ? "module." : "";
  StateDict tensors;
  if (key == "ema" && dict.contains("n_averaged"))
    tensors.emplace_back("n_averaged", reader.tensor("n_averaged"));
  std::map<std::string, at::Tensor> known;
  for (const auto& [name, parameter] : index_.names) {
    auto& tensor = known[parameter];
    if (const auto* found = find(key, parameter); found != nullptr && !tensor.defined()) {
      tensor = make_hollow(found->parameter->sizes, found->piece->dtype);
      hollow_[tensor.storage().unsafeGetStorageImpl()] = {key, parameter};
    }
    if (!parameter.empty() && tensor.defined())
      tensors.emplace_back(prefix + name, tensor);
    else if (dict.contains(prefix + name) && dict.at(prefix + name).isTensor())
      tensors.emplace_back(prefix + name, dict.at(prefix + name).toTensor());
    else
      throw IoError(checkpoint_, "damaged, expected a tensor " + in_quotes(prefix + name));
  }
  return tensors;
}

at::Tensor ShardReader::value_of(const at::Tensor& hollow) {
  const auto found = hollow_.find(hollow.storage().unsafeGetStorageImpl());
  if (found == hollow_.end()) return hollow;
  // Reuses memory: freed blocks of many sizes would add up.
  const auto bytes = static_cast<std::int64_t>(hollow.nbytes());
  if (!scratch_.defined() || scratch_.numel() < bytes) {
    scratch_.reset();
    scratch_ = at::empty({bytes}, at::kByte);
  }
  const auto memory = scratch_.narrow(0, 0, bytes).view(hollow.scalar_type());
  return whole(*find(found->second.first, found->second.second), memory);
}

c10::IValue step_of(const DictReader& state, const std::string& parameter) {
  // Older checkpoints have one number for all.
  const DictReader steps(state.dict(state.has("steps") ? "steps" : "scalars"), "optimizer");
  const auto key = state.has("steps") ? parameter : "step";
  return steps.has(key) ? steps.at(key) : c10::IValue();
}

void gather_shards(TrainingState& state, const fs::path& source, const std::vector<std::string>& keys) {
  if (state.shards.empty()) return;
  ShardReader reader(source, state.shards);
  try {
    for (const auto& key : keys) {
      if (key == "model") state.model = gathered(reader, key, state.model);
      if (key == "ema" && state.ema.isGenericDict()) state.ema = gathered(reader, key, state.ema);
      if (key == "optimizer") state.optimizer = gathered_optimizer(reader, state.optimizer);
    }
  } catch (const std::invalid_argument& error) {
    throw IoError(source, error.what());
  }
  state.shards.clear();
}

std::vector<fs::path> shard_folders(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const auto& path : folder_entries(folder))
    if (path.extension() == kShardsEnd && fs::is_directory(path, ignored)) folders.push_back(path);
  return folders;
}

void remove_shards(const fs::path& folder) {
  static const std::regex kOurs(R"(rank-\d+|\.rank-\d+\.tmp\.\d+)");
  std::error_code error;
  for (const auto& file : fs::directory_iterator(folder, error))
    if (std::regex_match(file.path().filename().string(), kOurs) && !fs::remove(file, error) && error)
      throw IoError(file, "cannot delete what no checkpoint uses", error.value());
  fs::remove(folder, error);
}

}  // namespace ddprun::train
