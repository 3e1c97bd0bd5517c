#include "memoir/model/package.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/replaced_file.h"

namespace fs = std::filesystem;

namespace memoir::model {
namespace {

constexpr const char* kModelfile = "Modelfile";
constexpr const char* kIsTaken = "there is such a model already: remove it first";
constexpr std::uint64_t kMaxModelfileBytes = 16 << 20;

// "model" or "draft", or the same with ".gguf": what stands in the folder.
fs::path own_file(const fs::path& folder, const std::string& value, const std::string& role, const char* command) {
  if (value == "./" + role || value == "./" + role + ".gguf") return folder / value.substr(2);
  throw FormatError((folder / kModelfile).string(), command,
                    "is '" + value + "', expected ./" + role + " or ./" + role + ".gguf");
}

// A folder of its own, also beside other runs of the name, that goes with the object unless it got another name.
class FolderAside {
 public:
  explicit FolderAside(const fs::path& prefix) {
    std::random_device random;
    do {
      path_ = prefix;
      path_ += "-" + std::to_string(random());
    } while (!fs::create_directory(path_));
  }
  ~FolderAside() {
    std::error_code ignored;
    if (!is_renamed_) fs::remove_all(path_, ignored);
  }
  FolderAside(const FolderAside&) = delete;
  FolderAside& operator=(const FolderAside&) = delete;

  void rename_to(const fs::path& path) {
    std::error_code error;
    fs::rename(path_, path, error);
    if (error && entry_exists(path)) throw FileError(path.string(), "", kIsTaken);
    if (error) throw FileError(path.string(), "", error.message());
    is_renamed_ = true;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  bool is_renamed_ = false;
};

bool is_gguf(const fs::path& path) {
  return !fs::is_directory(existing_status(path));
}

// Returns what the Modelfile calls it.
std::string import(const fs::path& from, const fs::path& folder, const std::string& role, std::optional<int> bits) {
  if (!is_gguf(from)) {
    copy_model_directory(from, folder / role, bits);
    return "./" + role;
  }
  if (bits) {
    throw UnsupportedError(from.string(), "",
                           "a GGUF file is taken as it is; to quantize, name a directory of safetensors");
  }
  fs::copy_file(from, folder / (role + ".gguf"));
  return "./" + role + ".gguf";
}

void check_request(const PackageRequest& request) {
  if (!is_package_name(request.name)) {
    throw std::invalid_argument("[model.create_package] '" + request.name + "' is no name");
  }
  for (const auto& bits : {request.bits, request.draft_bits}) {
    if (bits && *bits != 4 && *bits != 8) {
      throw std::invalid_argument("[model.create_package] " + std::to_string(*bits) + " bits, expected 4 or 8");
    }
  }
}

Package make(const PackageRequest& request) {
  const fs::path path = request.folder / request.name;
  if (entry_exists(path)) throw FileError(path.string(), "", kIsTaken);
  fs::create_directories(request.folder);
  FolderAside aside(request.folder / ("." + request.name + ".part"));
  Modelfile modelfile = request.modelfile;
  modelfile.from = import(request.from, aside.path(), "model", request.bits);
  modelfile.draft.reset();
  if (request.draft) modelfile.draft = import(*request.draft, aside.path(), "draft", request.draft_bits);
  ReplacedFile file(aside.path() / kModelfile);
  file.write(modelfile_text(modelfile));
  file.commit();
  if (request.check) request.check(read_package(aside.path()));
  aside.rename_to(path);
  return read_package(path);
}

}  // namespace

bool is_package_name(const std::string& name) {
  const auto is_allowed = [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' && name.front() != '-' &&
         !name.ends_with(".gguf") && std::ranges::all_of(name, is_allowed);
}

bool is_package(const fs::path& path) {
  return fs::is_directory(existing_status(path)) && entry_exists(path / kModelfile) &&
         !entry_exists(path / "config.json");
}

Package read_package(const fs::path& path) {
  const fs::path file = path / kModelfile;
  Package package{{}, {}, parse_modelfile(read_text_file(file, kMaxModelfileBytes), file.string())};
  package.model = own_file(path, package.modelfile.from, "model", "FROM");
  if (package.modelfile.draft) package.draft = own_file(path, *package.modelfile.draft, "draft", "DRAFT");
  return package;
}

Package create_package(const PackageRequest& request) {
  check_request(request);
  try {
    return make(request);
  } catch (const fs::filesystem_error& error) {
    throw FileError(error.path1().string(), "", error.code().message());
  }
}

}  // namespace memoir::model
