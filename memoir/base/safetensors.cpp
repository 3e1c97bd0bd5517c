#include "memoir/base/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "memoir/base/error.h"

namespace memoir {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the bound of the reference implementation
constexpr std::uint64_t kLengthBytes = 8;
constexpr std::size_t kMaxDims = 32;
constexpr auto kMaxInt64 = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());

struct Dtype {
  std::string_view name;
  std::uint64_t bits;
};

constexpr std::array<Dtype, 22> kDtypes = {
    {{"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"U16", 16},    {"I16", 16},        {"U32", 32},
     {"I32", 32},    {"U64", 64},    {"I64", 64},    {"F16", 16},    {"BF16", 16},       {"F32", 32},
     {"F64", 64},    {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
     {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}}};

std::optional<std::uint64_t> dtype_bits(std::string_view name) {
  const auto found = std::ranges::find(kDtypes, name, &Dtype::name);
  return found == kDtypes.end() ? std::nullopt : std::optional(found->bits);
}

// A parser's message may quote the whole file.
std::string shortened(std::string_view text) {
  constexpr std::size_t kMaxBytes = 200;
  return std::string(text.substr(0, kMaxBytes)) + (text.size() > kMaxBytes ? "..." : "");
}

struct Header {
  std::map<std::string, std::string> metadata;
  std::vector<SafetensorsTensor> tensors;  // offset and size_bytes as begin and end of the range
};

// Takes the header event by event, so that only the one allowed form is ever stored: no nesting to bound, no key
// twice. nlohmann's parser itself keeps its state on the heap, not on the stack.
class HeaderHandler : public nlohmann::json::json_sax_t {
 public:
  HeaderHandler(const std::string& path, Header& header) : path_(path), header_(header) {}

  bool start_object(std::size_t /*n*/) override {
    if (place_ == Place::kStart) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kEntry) {
      place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kTensor;
      tensor_ = SafetensorsTensor{name_, "", {}, 0, 0};
      has_ = {};
    } else {
      unexpected("an object");
    }
    return true;
  }

  bool key(std::string& text) override {
    if (place_ == Place::kRoot) {
      name_ = text;
      field_.clear();
      if (!names_.insert(text).second) fail("is there twice");
      place_ = Place::kEntry;
    } else {
      field_ = text;
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) add_tensor();
    place_ = place_ == Place::kRoot ? Place::kEnd : Place::kRoot;
    return true;
  }

  bool start_array(std::size_t /*n*/) override {
    if (place_ != Place::kTensor) unexpected("a list");
    if (field_ == "shape") {
      claim(has_.shape);
      place_ = Place::kShape;
    } else if (field_ == "data_offsets") {
      claim(has_.offsets);
      n_offsets_ = 0;
      place_ = Place::kOffsets;
    } else {
      unexpected("a list");
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && n_offsets_ != 2) fail("data_offsets is not a pair");
    place_ = Place::kTensor;
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (value > kMaxInt64) fail(field_ + ": " + std::to_string(value) + " is above 2^63 - 1");
    if (place_ == Place::kShape) {
      if (tensor_.shape.size() == kMaxDims) fail("has more than 32 dimensions");
      tensor_.shape.push_back(static_cast<std::int64_t>(value));
    } else if (place_ == Place::kOffsets) {
      if (n_offsets_ == 2) fail("data_offsets is not a pair");
      (n_offsets_ == 0 ? tensor_.offset : tensor_.size_bytes) = value;
      ++n_offsets_;
    } else {
      unexpected("a number");
    }
    return true;
  }

  bool string(std::string& text) override {
    if (place_ == Place::kMetadata) {
      if (!header_.metadata.emplace(field_, text).second) fail(field_ + " is there twice");
    } else if (place_ == Place::kTensor && field_ == "dtype") {
      claim(has_.dtype);
      tensor_.dtype = text;
    } else {
      unexpected("a string");
    }
    return true;
  }

  bool null() override {
    if (place_ != Place::kEntry || name_ != "__metadata__") unexpected("null");
    place_ = Place::kRoot;
    return true;
  }

  bool boolean(bool /*value*/) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t /*value*/) override { unexpected("a negative number"); }
  bool number_float(number_float_t /*value*/, const std::string& /*text*/) override {
    unexpected("a number that is not a whole one");
  }
  bool binary(nlohmann::json::binary_t& /*value*/) override { unexpected("binary data"); }

  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::json::exception& error) override {
    throw FormatError(path_, "", "the header is not JSON: " + shortened(error.what()));
  }

 private:
  enum class Place { kStart, kRoot, kEntry, kMetadata, kTensor, kShape, kOffsets, kEnd };
  struct Fields {
    bool dtype = false;
    bool shape = false;
    bool offsets = false;
  };

  [[noreturn]] void fail(const std::string& reason) const {
    throw FormatError(path_, shortened(name_), shortened(reason));
  }

  [[noreturn]] void unexpected(const char* what) const {
    fail(std::string(what) + " where the format has none" + (field_.empty() ? "" : " (" + field_ + ")"));
  }

  void claim(bool& seen) const {
    if (seen) fail(field_ + " is there twice");
    seen = true;
  }

  void add_tensor() {
    if (!has_.dtype) fail("has no dtype");
    if (!has_.shape) fail("has no shape");
    if (!has_.offsets) fail("has no data_offsets");
    header_.tensors.push_back(std::move(tensor_));
    field_.clear();
  }

  const std::string& path_;
  Header& header_;
  Place place_ = Place::kStart;
  std::set<std::string> names_;
  std::string name_;
  std::string field_;
  SafetensorsTensor tensor_;
  Fields has_;
  int n_offsets_ = 0;
};

std::string read_header_text(ByteSource& source) {
  std::array<std::uint8_t, kLengthBytes> bytes;
  source.read(0, std::as_writable_bytes(std::span(bytes)));
  std::uint64_t n_bytes = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) n_bytes |= std::uint64_t{bytes[i]} << (8 * i);
  if (n_bytes > kMaxHeaderBytes) {
    throw FormatError(
        source.path(), "",
        "not a safetensors file: the header would have " + std::to_string(n_bytes) + " bytes, more than 100 MB");
  }
  if (n_bytes > source.size_bytes() - kLengthBytes) {
    throw FormatError(source.path(), "",
                      "truncated: the header has " + std::to_string(n_bytes) + " bytes, the file " +
                          std::to_string(source.size_bytes()));
  }
  std::string text(n_bytes, '\0');
  source.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  if (text.empty() || text.front() != '{') {
    throw FormatError(source.path(), "", "not a safetensors file: the header does not begin with {");
  }
  // The parser would take it for the end, whatever follows.
  if (text.find('\0') != std::string::npos) throw FormatError(source.path(), "", "the header has a NUL byte");
  return text;
}

std::uint64_t expected_bytes(const SafetensorsTensor& tensor, const std::string& path) {
  const auto bits = dtype_bits(tensor.dtype);
  if (!bits) {
    throw UnsupportedError(path, tensor.name, "has the unknown dtype \"" + shortened(tensor.dtype) + "\"");
  }
  std::uint64_t n_bits = *bits;
  for (const std::int64_t dim : tensor.shape) {
    const auto size = static_cast<std::uint64_t>(dim);
    if (size != 0 && n_bits > kMaxInt64 / size) {
      throw FormatError(path, tensor.name, "its shape has more elements than any file");
    }
    n_bits *= size;
  }
  if (n_bits % 8 != 0) throw FormatError(path, tensor.name, "does not end at a whole byte");
  return n_bits / 8;
}

// Turns the range [begin, end) of the header into the offset in the file and the size.
void place_tensor(SafetensorsTensor& tensor, const std::string& path, std::uint64_t data_start,
                  std::uint64_t data_bytes) {
  const std::uint64_t begin = tensor.offset;
  const std::uint64_t end = tensor.size_bytes;
  const std::string range = "[" + std::to_string(begin) + ", " + std::to_string(end) + ")";
  if (begin > end) throw FormatError(path, tensor.name, "its byte range " + range + " is reversed");
  if (end > data_bytes) {
    throw FormatError(
        path, tensor.name,
        "truncated: its byte range " + range + " passes the " + std::to_string(data_bytes) + " bytes of data");
  }
  const std::uint64_t expected = expected_bytes(tensor, path);
  if (end - begin != expected) {
    throw FormatError(
        path, tensor.name,
        "its byte range " + range + " does not fit dtype and shape, which take " + std::to_string(expected) + " bytes");
  }
  tensor.offset = data_start + begin;
  tensor.size_bytes = expected;
}

void check_overlaps(const std::vector<SafetensorsTensor>& tensors, const std::string& path) {
  for (std::size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i - 1].offset + tensors[i - 1].size_bytes > tensors[i].offset) {
      throw FormatError(path, tensors[i].name, "overlaps the tensor " + tensors[i - 1].name);
    }
  }
}

std::unique_ptr<ByteSource> checked(std::unique_ptr<ByteSource> source) {
  if (source == nullptr) throw std::invalid_argument("[safetensors.open] the source is null");
  return source;
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  return SafetensorsFile(open_file(path));
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<ByteSource> source) : source_(checked(std::move(source))) {
  const std::string text = read_header_text(*source_);
  Header header;
  HeaderHandler handler(path(), header);
  nlohmann::json::sax_parse(text, &handler);

  data_start_ = kLengthBytes + text.size();
  const std::uint64_t data_bytes = source_->size_bytes() - data_start_;
  for (SafetensorsTensor& tensor : header.tensors) {
    place_tensor(tensor, path(), data_start_, data_bytes);
  }
  std::ranges::stable_sort(header.tensors, {},
                           [](const SafetensorsTensor& tensor) { return std::pair(tensor.offset, tensor.size_bytes); });
  check_overlaps(header.tensors, path());
  metadata_ = std::move(header.metadata);
  tensors_ = std::move(header.tensors);
}

std::uint64_t SafetensorsFile::n_bytes_behind() const {
  std::uint64_t end = data_start_;
  for (const SafetensorsTensor& tensor : tensors_) end = std::max(end, tensor.offset + tensor.size_bytes);
  return source_->size_bytes() - end;
}

std::string safetensors_header(const std::string& name, const std::string& dtype,
                               const std::vector<std::int64_t>& shape) {
  return safetensors_header({{name, dtype, shape}});
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               const std::map<std::string, std::string>& metadata) {
  // Put together as text: ordered_json would look through all entries for each.
  std::string json;
  const auto add = [&json](const nlohmann::ordered_json& name, const nlohmann::ordered_json& value) {
    json += (json.empty() ? '{' : ',') + name.dump() + ':' + value.dump();
  };
  try {
    if (!metadata.empty()) add("__metadata__", metadata);
    std::set<std::string> names;
    std::uint64_t n_total = 0;
    for (const SafetensorsEntry& entry : entries) {
      const std::uint64_t n_bytes = expected_bytes({entry.name, entry.dtype, entry.shape, 0, 0}, "header");
      if (n_bytes > kMaxInt64 - n_total) throw FormatError("header", entry.name, "passes the size of any file");
      if (entry.name == "__metadata__" || !names.insert(entry.name).second) {
        throw std::invalid_argument("[safetensors.header] two entries are called " + shortened(entry.name));
      }
      add(entry.name, {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {n_total, n_total + n_bytes}}});
      n_total += n_bytes;
    }
  } catch (const nlohmann::json::exception&) {
    throw std::invalid_argument("[safetensors.header] a name or a piece of metadata is not UTF-8");
  }
  json += json.empty() ? "{}" : "}";
  json.resize((json.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');  // so that the data are aligned
  std::string header;
  for (std::size_t i = 0; i < kLengthBytes; ++i) header += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return header + json;
}

void SafetensorsFile::read(const SafetensorsTensor& tensor, std::span<std::byte> out) const {
  if (out.size() != tensor.size_bytes) {
    throw std::invalid_argument("[safetensors.read] the tensor " + shortened(tensor.name) + " has " +
                                std::to_string(tensor.size_bytes) + " bytes, room is for " +
                                std::to_string(out.size()));
  }
  source_->read(tensor.offset, out);
}

void SafetensorsFile::read_part(const SafetensorsTensor& tensor, std::uint64_t begin, std::span<std::byte> out) const {
  if (begin > tensor.size_bytes || out.size() > tensor.size_bytes - begin) {
    throw std::invalid_argument("[safetensors.read_part] the tensor " + shortened(tensor.name) + " has " +
                                std::to_string(tensor.size_bytes) + " bytes, asked for are " +
                                std::to_string(out.size()) + " from " + std::to_string(begin));
  }
  source_->read(tensor.offset + begin, out);
}

}  // namespace memoir
