#include "memoir/model/package.h"

#include <algorithm>
#include <random>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

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
    std::error_code error;
    do {
      path_ = prefix;
      path_ += "-" + std::to_string(random());
    } while (!fs::create_directory(path_, error) && !error);
    if (error) throw FileError(prefix.parent_path().string(), "", "can't make a folder in it: " + error.message());
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

// What messages call the files aside, which nobody but this knows: a path, and what stands for it and what is below.
using Names = std::vector<std::pair<fs::path, fs::path>>;

std::string known_name(const std::string& path, const Names& names) {
  for (const auto& [aside, known] : names) {
    const std::string& prefix = aside.native();
    if (path == prefix) return known.string();
    if (path.starts_with(prefix + "/")) return known.string() + path.substr(prefix.size());
  }
  return path;
}

// Calls work(), whose errors about a file of `names` are about what stands for it.
template <typename Work>
void with_names(const Names& names, const Work& work) {
  const auto named = [&]<typename Error>(const Error& error) {
    return Error(known_name(error.path(), names), error.key(), error.reason());
  };
  try {
    work();
  } catch (const FileError& error) {
    throw named(error);
  } catch (const FormatError& error) {
    throw named(error);
  } catch (const UnsupportedError& error) {
    throw named(error);
  } catch (const fs::filesystem_error& error) {
    throw FileError(known_name(error.path1().string(), names), "", error.code().message());
  }
}

// Returns what the Modelfile calls it.
std::string import(const fs::path& from, const fs::path& folder, const std::string& role, std::optional<int> bits) {
  if (!is_gguf(from)) {
    copy_model_directory(from, folder / role, bits);
    return "./" + role;
  }
  copy_model_file(from, folder / (role + ".gguf"));
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

Modelfile imported(const PackageRequest& request, const fs::path& folder) {
  Modelfile modelfile = request.modelfile;
  modelfile.from = import(request.from, folder, "model", request.bits);
  modelfile.draft.reset();
  if (request.draft) modelfile.draft = import(*request.draft, folder, "draft", request.draft_bits);
  return modelfile;
}

void write_modelfile(const Modelfile& modelfile, const fs::path& path) {
  ReplacedFile file(path);
  file.write(modelfile_text(modelfile));
  file.commit();
}

void check(const PackageRequest& request, const fs::path& aside, const fs::path& path) {
  if (!request.check) return;
  const Package package = read_package(aside);
  Names names = {{package.model, request.from}};
  if (package.draft) names.emplace_back(*package.draft, *request.draft);
  names.emplace_back(aside, path);
  with_names(names, [&] { request.check(package); });
}

Package make(const PackageRequest& request) {
  const fs::path path = request.folder / request.name;
  if (entry_exists(path)) throw FileError(path.string(), "", kIsTaken);
  if (request.bits) check_can_be_quantized(request.from);
  if (request.draft && request.draft_bits) check_can_be_quantized(*request.draft);
  fs::create_directories(request.folder);
  FolderAside aside(request.folder / ("." + request.name + ".part"));
  with_names({{aside.path(), path}},
             [&] { write_modelfile(imported(request, aside.path()), aside.path() / kModelfile); });
  check(request, aside.path(), path);
  if (entry_exists(path)) throw FileError(path.string(), "", kIsTaken);  // nothing is announced then
  if (request.announce) request.announce(path);
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
