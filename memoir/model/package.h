#pragma once

// A model as `memoir create` keeps it: a folder with a Modelfile and what that names,
//   Modelfile                     FROM and DRAFT are those below
//   model/ or model.gguf          the weights, configuration and tokenizer
//   draft/ or draft.gguf          what guesses tokens for it, if anything does
//
// Threads: create_package on the thread that owns MLX's work, the rest on any. Ownership: values.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "memoir/model/modelfile.h"

namespace memoir::model {

struct Package {
  std::filesystem::path model;
  std::optional<std::filesystem::path> draft;
  Modelfile modelfile;
};

/// Letters, digits, ".", "_" and "-", neither "." nor "-" first, nor ".gguf", which names are
/// given without, at the end; 1 to 100.
bool is_package_name(const std::string& name);

/// Whether a path is such a folder: it has a Modelfile and no config.json.
bool is_package(const std::filesystem::path& path);

/// Throws FileError, or FormatError where the Modelfile is none or names something else than the folder's own.
Package read_package(const std::filesystem::path& path);

struct PackageRequest {
  std::string name;              // of the folder
  std::filesystem::path folder;  // where it is made
  Modelfile modelfile;
  std::filesystem::path from;  // what FROM means: a directory with config.json and safetensors, or a .gguf file
  std::optional<std::filesystem::path> draft;
  std::optional<int> bits;  // quantize the model's dense matrices to so many, 4 or 8
  std::optional<int> draft_bits;

  /// Called with the files in their place aside; refuses by throwing. May be empty. An InputError about one of these
  /// files is passed on with the name of what it was made of.
  std::function<void(const Package&)> check;

  /// Called with the package's path when all is done but that it gets its name: throws to keep it from that. May be
  /// empty.
  std::function<void(const std::filesystem::path&)> announce;
};

/// Copies, or quantizes, into a folder aside and renames it when it is whole. Returns the package.
/// Throws std::invalid_argument for a name that is none, or other bits; FileError if there is such a model already or a
/// file can't be read or written, naming that with the system's reason; UnsupportedError to quantize what is quantized
/// or a GGUF file; what `check` and `announce` throw. Nothing of the name is there then.
Package create_package(const PackageRequest& request);

/// Throws UnsupportedError for a model that is quantized already or a GGUF file; as read_text_file.
void check_can_be_quantized(const std::filesystem::path& from);

/// Throws FileError, naming the one that can't be read or written.
void copy_model_file(const std::filesystem::path& from, const std::filesystem::path& to);

/// Copies a model's directory (configuration, tokenizer, those safetensors that are loaded) to a new one. bits: dense
/// matrices whose rows are multiples of 32 become MLX's affine quantization in groups of 64, or 32; nullopt: as they
/// are. Routers of experts and what belongs to other media stay dense. Where bits are given,
/// check_can_be_quantized has let `from` pass. Throws as create_package.
void copy_model_directory(const std::filesystem::path& from, const std::filesystem::path& to, std::optional<int> bits);

}  // namespace memoir::model
