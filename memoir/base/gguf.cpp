#include "memoir/base/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <stdexcept>
#include <type_traits>
#include <utility>

#include "memoir/base/error.h"

namespace memoir {
namespace {

// Bounds on what one header may hold. The largest real headers (a vocabulary of 300,000 tokens with its merges) stay
// under 32 MiB.
constexpr std::uint64_t kMaxHeaderBytes = 1ULL << 30;
constexpr std::uint64_t kMaxStringBytes = 256ULL << 20;
constexpr std::uint64_t kMaxNameBytes = 65535;
constexpr std::uint64_t kMaxArrayElements = 1ULL << 26;
constexpr std::uint64_t kMaxReserve = 1ULL << 16;
constexpr std::uint64_t kMaxAlignment = 1ULL << 30;
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint32_t kMaxDims = 4;

// The smallest possible entries, to bound counts by the bytes that are left.
constexpr std::uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;        // key length, key, type, value
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name length, name, dims, dim, type, offset

enum class ValueType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct TypeInfo {
  GgufType type;
  const char* name;
  GgufBlock block;
};

constexpr std::array<TypeInfo, 19> kTypes = {{
    {GgufType::kF32, "F32", {1, 4}},       {GgufType::kF16, "F16", {1, 2}},       {GgufType::kQ4_0, "Q4_0", {32, 18}},
    {GgufType::kQ4_1, "Q4_1", {32, 20}},   {GgufType::kQ5_0, "Q5_0", {32, 22}},   {GgufType::kQ5_1, "Q5_1", {32, 24}},
    {GgufType::kQ8_0, "Q8_0", {32, 34}},   {GgufType::kQ2_K, "Q2_K", {256, 84}},  {GgufType::kQ3_K, "Q3_K", {256, 110}},
    {GgufType::kQ4_K, "Q4_K", {256, 144}}, {GgufType::kQ5_K, "Q5_K", {256, 176}}, {GgufType::kQ6_K, "Q6_K", {256, 210}},
    {GgufType::kI8, "I8", {1, 1}},         {GgufType::kI16, "I16", {1, 2}},       {GgufType::kI32, "I32", {1, 4}},
    {GgufType::kI64, "I64", {1, 8}},       {GgufType::kF64, "F64", {1, 8}},       {GgufType::kBF16, "BF16", {1, 2}},
    {GgufType::kMXFP4, "MXFP4", {32, 17}},
}};

const TypeInfo* find_type(GgufType type) {
  const auto found = std::ranges::find_if(kTypes, [type](const TypeInfo& info) { return info.type == type; });
  return found == kTypes.end() ? nullptr : &*found;
}

// Reads little-endian values front to back through one buffer. `key` is what the next error message names.
class ForwardReader {
 public:
  explicit ForwardReader(ByteSource& source)
      : source_(source), limit_(std::min(source.size_bytes(), kMaxHeaderBytes)) {}

  std::string key;

  std::uint64_t position() const { return position_; }
  std::uint64_t remaining() const { return limit_ - position_; }

  [[noreturn]] void fail(const std::string& reason) const { throw FormatError(source_.path(), key, reason); }

  [[noreturn]] void refuse(const std::string& reason) const { throw UnsupportedError(source_.path(), key, reason); }

  // Before memory is reserved for `count` things of at least `each` bytes.
  void require(std::uint64_t count, std::uint64_t each, const char* what) const {
    if (count <= remaining() / each) return;
    fail("truncated: " + std::to_string(count) + " " + what + " at offset " + std::to_string(position_) +
         " of a header that has " + std::to_string(limit_) + " bytes");
  }

  void read(std::span<std::byte> out) {
    require(out.size(), 1, "bytes");
    while (!out.empty()) {
      if (position_ == buffer_start_ + buffer_.size()) fill();
      const auto from = static_cast<std::size_t>(position_ - buffer_start_);
      const std::size_t n_bytes = std::min(out.size(), buffer_.size() - from);
      std::memcpy(out.data(), buffer_.data() + from, n_bytes);
      out = out.subspan(n_bytes);
      position_ += n_bytes;
    }
  }

  template <typename T>
  T value() {
    static_assert(std::is_arithmetic_v<T>);
    std::array<std::byte, sizeof(T)> bytes;
    read(bytes);
    if constexpr (std::endian::native == std::endian::big) std::ranges::reverse(bytes);
    return std::bit_cast<T>(bytes);
  }

  std::string string(std::uint64_t max_bytes) {
    const auto n_bytes = value<std::uint64_t>();
    require(n_bytes, 1, "bytes of a string");
    if (n_bytes > max_bytes) {
      fail("a string of " + std::to_string(n_bytes) + " bytes, more than " + std::to_string(max_bytes));
    }
    std::string text(n_bytes, '\0');
    read(std::as_writable_bytes(std::span(text)));
    return text;
  }

  std::string name(const char* what) {
    std::string text = string(kMaxNameBytes);
    if (text.empty()) fail(std::string("the name of a ") + what + " is empty");
    return text;
  }

 private:
  void fill() {
    constexpr std::uint64_t kBufferBytes = 64 << 10;
    buffer_start_ = position_;
    buffer_.resize(std::min(kBufferBytes, remaining()));
    source_.read(buffer_start_, buffer_);
  }

  ByteSource& source_;
  std::uint64_t limit_;
  std::uint64_t position_ = 0;
  std::uint64_t buffer_start_ = 0;
  std::vector<std::byte> buffer_;
};

std::int64_t read_bool(ForwardReader& in) {
  const auto value = in.value<std::uint8_t>();
  if (value > 1) in.fail("a boolean is " + std::to_string(value) + ", expected 0 or 1");
  return value;
}

std::int64_t read_uint64(ForwardReader& in) {
  const auto value = in.value<std::uint64_t>();
  if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    in.fail("the integer " + std::to_string(value) + " is above 2^63 - 1");
  }
  return static_cast<std::int64_t>(value);
}

// How many bytes a value takes at least: exact but for strings (their length) and arrays.
std::uint64_t min_bytes(ForwardReader& in, ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kString:
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kArray:
      return 12;
  }
  in.fail("unknown value type " + std::to_string(static_cast<std::uint32_t>(type)));
}

std::int64_t read_integer(ForwardReader& in, ValueType type) {
  switch (type) {
    case ValueType::kUint8:
      return in.value<std::uint8_t>();
    case ValueType::kInt8:
      return in.value<std::int8_t>();
    case ValueType::kUint16:
      return in.value<std::uint16_t>();
    case ValueType::kInt16:
      return in.value<std::int16_t>();
    case ValueType::kUint32:
      return in.value<std::uint32_t>();
    case ValueType::kInt32:
      return in.value<std::int32_t>();
    case ValueType::kUint64:
      return read_uint64(in);
    case ValueType::kBool:
      return read_bool(in);
    default:
      return in.value<std::int64_t>();
  }
}

double read_float(ForwardReader& in, ValueType type) {
  return type == ValueType::kFloat32 ? in.value<float>() : in.value<double>();
}

template <typename Element>
std::vector<Element> read_elements(ForwardReader& in, std::uint64_t count, auto read_one) {
  std::vector<Element> elements;
  elements.reserve(std::min(count, kMaxReserve));
  for (std::uint64_t i = 0; i < count; ++i) elements.push_back(read_one(in));
  return elements;
}

GgufFile::Value read_array(ForwardReader& in) {
  const auto type = static_cast<ValueType>(in.value<std::uint32_t>());
  const auto count = in.value<std::uint64_t>();
  in.require(count, min_bytes(in, type), "array elements");
  if (count > kMaxArrayElements) {
    in.fail("an array of " + std::to_string(count) + " elements, more than " + std::to_string(kMaxArrayElements));
  }
  switch (type) {
    case ValueType::kArray:
      in.refuse("an array of arrays");
    case ValueType::kString:
      return read_elements<std::string>(in, count,
                                        [](ForwardReader& reader) { return reader.string(kMaxStringBytes); });
    case ValueType::kFloat32:
    case ValueType::kFloat64:
      return read_elements<double>(in, count, [type](ForwardReader& reader) { return read_float(reader, type); });
    default:
      return read_elements<std::int64_t>(in, count,
                                         [type](ForwardReader& reader) { return read_integer(reader, type); });
  }
}

GgufFile::Value read_value(ForwardReader& in) {
  const auto type = static_cast<ValueType>(in.value<std::uint32_t>());
  in.require(1, min_bytes(in, type), "value");
  switch (type) {
    case ValueType::kArray:
      return read_array(in);
    case ValueType::kString:
      return in.string(kMaxStringBytes);
    case ValueType::kBool:
      return read_bool(in) != 0;
    case ValueType::kFloat32:
    case ValueType::kFloat64:
      return read_float(in, type);
    default:
      return read_integer(in, type);
  }
}

struct Counts {
  std::uint64_t n_tensors;
  std::uint64_t n_metadata;
};

Counts read_preamble(ForwardReader& in) {
  std::array<char, 4> magic;
  in.read(std::as_writable_bytes(std::span(magic)));
  const std::string_view text(magic.data(), magic.size());
  if (text == "FUGG") in.refuse("a big-endian GGUF file; only little-endian ones can be read");
  if (text != "GGUF") in.fail("not a GGUF file: it does not begin with the letters GGUF");
  const auto version = in.value<std::uint32_t>();
  if (version != 0 && (version & 0xFFFFU) == 0) {
    in.refuse("a big-endian GGUF file; only little-endian ones can be read");
  }
  if (version != 2 && version != 3) {
    in.refuse("GGUF version " + std::to_string(version) + "; versions 2 and 3 can be read");
  }
  Counts counts{};
  counts.n_tensors = in.value<std::uint64_t>();
  counts.n_metadata = in.value<std::uint64_t>();
  in.require(counts.n_metadata, kMinMetadataBytes, "metadata entries");
  in.require(counts.n_tensors, kMinTensorBytes, "tensors");
  return counts;
}

std::vector<std::int64_t> read_shape(ForwardReader& in) {
  const auto n_dims = in.value<std::uint32_t>();
  if (n_dims < 1 || n_dims > kMaxDims) {
    in.fail("has " + std::to_string(n_dims) + " dimensions, expected 1 to " + std::to_string(kMaxDims));
  }
  std::vector<std::int64_t> shape(n_dims);
  std::int64_t n_elements = 1;
  for (std::int64_t& dim : shape) {
    dim = read_uint64(in);
    if (dim == 0) in.fail("a dimension is 0");
    if (dim > std::numeric_limits<std::int64_t>::max() / n_elements) {
      in.fail("has more than 2^63 - 1 elements");
    }
    n_elements *= dim;
  }
  std::ranges::reverse(shape);
  return shape;
}

// A tensor's size in bytes, from its shape and type.
std::uint64_t tensor_bytes(const ForwardReader& in, const GgufTensor& tensor) {
  const auto block = gguf_block(tensor.type);
  if (!block) in.refuse("has the tensor type \"" + gguf_type_name(tensor.type) + "\", which can't be read");
  if (tensor.shape.back() % block->n_elements != 0) {
    in.fail("a row has " + std::to_string(tensor.shape.back()) + " elements, not a multiple of " +
            std::to_string(block->n_elements) + " as " + gguf_type_name(tensor.type) + " needs");
  }
  const std::int64_t n_blocks = tensor.n_elements() / block->n_elements;
  if (n_blocks > std::numeric_limits<std::int64_t>::max() / block->size_bytes) {
    in.fail("has more than 2^63 - 1 bytes");
  }
  return static_cast<std::uint64_t>(n_blocks * block->size_bytes);
}

// An entry of the table; its offset still counts from the start of the data.
GgufTensor read_tensor(ForwardReader& in) {
  GgufTensor tensor{};
  in.key.clear();
  tensor.name = in.name("tensor");
  in.key = tensor.name;
  tensor.shape = read_shape(in);
  tensor.type = static_cast<GgufType>(in.value<std::uint32_t>());
  tensor.offset = in.value<std::uint64_t>();
  tensor.size_bytes = tensor_bytes(in, tensor);
  return tensor;
}

// Makes offsets count from the start of the file, and checks that the tensors lie inside it.
void place_tensors(std::vector<GgufTensor>& tensors, const std::string& path, std::uint64_t header_bytes,
                   std::uint64_t alignment, std::uint64_t file_bytes) {
  const std::uint64_t start = (header_bytes + alignment - 1) / alignment * alignment;
  for (GgufTensor& tensor : tensors) {
    if (tensor.offset % alignment != 0) {
      throw FormatError(path, tensor.name,
                        "its offset " + std::to_string(tensor.offset) + " is not a multiple of the alignment " +
                            std::to_string(alignment));
    }
    if (start > file_bytes || tensor.offset > file_bytes - start ||
        tensor.size_bytes > file_bytes - start - tensor.offset) {
      throw FormatError(path, tensor.name,
                        "truncated: its " + std::to_string(tensor.size_bytes) + " bytes at offset " +
                            std::to_string(tensor.offset) + " of the data pass the end of the file");
    }
    tensor.offset += start;
  }
}

void check_overlaps(const std::vector<GgufTensor>& tensors, const std::string& path) {
  std::vector<const GgufTensor*> by_offset;
  by_offset.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) by_offset.push_back(&tensor);
  std::ranges::sort(by_offset, {}, &GgufTensor::offset);
  for (std::size_t i = 1; i < by_offset.size(); ++i) {
    const GgufTensor& before = *by_offset[i - 1];
    if (before.offset + before.size_bytes > by_offset[i]->offset) {
      throw FormatError(path, by_offset[i]->name, "overlaps the tensor " + before.name);
    }
  }
}

const char* kind_of(const GgufFile::Value& value) {
  constexpr std::array<const char*, std::variant_size_v<GgufFile::Value>> kKinds = {
      "a boolean",          "an integer",        "a number",         "a string",
      "a list of integers", "a list of numbers", "a list of strings"};
  return kKinds[value.index()];
}

[[noreturn]] void wrong_kind(const GgufFile& file, std::string_view key, const GgufFile::Value& value,
                             const char* expected) {
  throw FormatError(file.path(), std::string(key), std::string("is ") + kind_of(value) + ", expected " + expected);
}

template <typename T>
const T* look_up(const GgufFile& file, std::string_view key, const char* expected) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) return nullptr;
  const T* value = std::get_if<T>(&found->second);
  if (value == nullptr) wrong_kind(file, key, found->second, expected);
  return value;
}

std::unique_ptr<ByteSource> checked(std::unique_ptr<ByteSource> source) {
  if (source == nullptr) throw std::invalid_argument("[gguf.open] the source is null");
  return source;
}

std::uint64_t alignment_of(const GgufFile& file) {
  constexpr std::string_view kKey = "general.alignment";
  const auto value = file.integer(kKey);
  if (!value) return kDefaultAlignment;
  const auto alignment = static_cast<std::uint64_t>(*value);
  if (*value < 1 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
    throw FormatError(file.path(), std::string(kKey),
                      "is " + std::to_string(*value) + ", expected a power of two up to 2^30");
  }
  return alignment;
}

}  // namespace

std::string gguf_type_name(GgufType type) {
  if (const TypeInfo* info = find_type(type)) return info->name;
  return "type " + std::to_string(static_cast<std::uint32_t>(type));
}

std::optional<GgufBlock> gguf_block(GgufType type) {
  if (const TypeInfo* info = find_type(type)) return info->block;
  return std::nullopt;
}

std::int64_t GgufTensor::n_elements() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : shape) product *= dim;
  return product;
}

GgufFile GgufFile::open(const std::filesystem::path& path) {
  return GgufFile(open_file(path));
}

GgufFile::GgufFile(std::unique_ptr<ByteSource> source) : source_(checked(std::move(source))) {
  ForwardReader in(*source_);
  const Counts counts = read_preamble(in);
  for (std::uint64_t i = 0; i < counts.n_metadata; ++i) {
    in.key.clear();
    in.key = in.name("metadata entry");
    Value value = read_value(in);
    if (!metadata_.emplace(in.key, std::move(value)).second) in.fail("is there twice");
  }
  const std::uint64_t alignment = alignment_of(*this);
  std::set<std::string> names;
  tensors_.reserve(std::min(counts.n_tensors, kMaxReserve));
  for (std::uint64_t i = 0; i < counts.n_tensors; ++i) {
    tensors_.push_back(read_tensor(in));
    if (!names.insert(tensors_.back().name).second) in.fail("a tensor of this name is there twice");
  }
  place_tensors(tensors_, path(), in.position(), alignment, source_->size_bytes());
  check_overlaps(tensors_, path());
}

std::optional<bool> GgufFile::boolean(std::string_view key) const {
  const bool* value = look_up<bool>(*this, key, "a boolean");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const {
  const auto* value = look_up<std::int64_t>(*this, key, "an integer");
  return value == nullptr ? std::nullopt : std::optional(*value);
}

std::optional<double> GgufFile::number(std::string_view key) const {
  const auto found = metadata_.find(key);
  if (found == metadata_.end()) return std::nullopt;
  if (const auto* value = std::get_if<double>(&found->second)) return *value;
  if (const auto* value = std::get_if<std::int64_t>(&found->second)) {
    return static_cast<double>(*value);
  }
  wrong_kind(*this, key, found->second, "a number");
}

const std::string* GgufFile::string(std::string_view key) const {
  return look_up<std::string>(*this, key, "a string");
}

const std::vector<std::int64_t>* GgufFile::integers(std::string_view key) const {
  return look_up<std::vector<std::int64_t>>(*this, key, "a list of integers");
}

const std::vector<double>* GgufFile::numbers(std::string_view key) const {
  return look_up<std::vector<double>>(*this, key, "a list of numbers");
}

const std::vector<std::string>* GgufFile::strings(std::string_view key) const {
  return look_up<std::vector<std::string>>(*this, key, "a list of strings");
}

void GgufFile::read(const GgufTensor& tensor, std::span<std::byte> out) const {
  if (out.size() != tensor.size_bytes) {
    throw std::invalid_argument("[gguf.read] the tensor " + tensor.name + " has " + std::to_string(tensor.size_bytes) +
                                " bytes, room is for " + std::to_string(out.size()));
  }
  source_->read(tensor.offset, out);
}

void GgufFile::read_part(const GgufTensor& tensor, std::uint64_t begin, std::span<std::byte> out) const {
  if (begin > tensor.size_bytes || out.size() > tensor.size_bytes - begin) {
    throw std::invalid_argument("[gguf.read_part] the tensor " + tensor.name + " has " +
                                std::to_string(tensor.size_bytes) + " bytes, asked for are " +
                                std::to_string(out.size()) + " from " + std::to_string(begin));
  }
  source_->read(tensor.offset + begin, out);
}

}  // namespace memoir
