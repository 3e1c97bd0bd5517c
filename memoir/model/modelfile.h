#pragma once

// Ollama's Modelfile: what a model is made of, and how it runs if nobody says otherwise. No MLX.
//
//   FROM ./gemma-4-e2b          a directory, a .gguf file or a model's name; exactly one
//   DRAFT ./assistant           what guesses tokens for it
//   PARAMETER temperature 0.7   any number of them; only `stop` more than once
//   SYSTEM """You are ..."""    the message before all others
//   MESSAGE user Hello          a conversation that goes before every other; user, assistant or system
//   TEMPLATE """..."""          a chat template instead of the model's own: Jinja, not Go as in Ollama
//   LICENSE """..."""           any number
//
// A command is the first word of a line, in capitals or small letters, indented or not; its value is the rest of the
// line, or what stands between " and " or """ and """, over lines too. Lines that begin with # are comments. A byte
// order mark in front of all is passed over. Values, no ownership, any thread.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace memoir::model {

/// What a Modelfile says of how to run; absent: it doesn't say.
struct ModelfileParameters {
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<int> top_k;
  std::optional<double> repeat_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<int> repeat_last_n;  // -1: all
  std::optional<std::uint64_t> seed;
  std::optional<int> num_predict;  // the most tokens of an answer; below 0: as many as the context has room for
  std::optional<int> num_thread;
  std::optional<int> draft_num_predict;  // the most tokens to guess at a time; 0: none are guessed
  std::vector<std::string> stop;

  bool operator==(const ModelfileParameters&) const = default;
};

struct ModelfileMessage {
  std::string role;  // "user", "assistant" or "system"
  std::string content;

  bool operator==(const ModelfileMessage&) const = default;
};

struct Modelfile {
  std::string from;
  std::optional<std::string> draft;
  ModelfileParameters parameters;
  std::optional<std::string> chat_template;
  std::optional<std::string> system;
  std::vector<ModelfileMessage> messages;
  std::vector<std::string> licenses;
  std::vector<std::string> notes = {};  // what a user should know: parameters without an effect here

  bool operator==(const Modelfile&) const = default;
};

/// Where commands stand, for messages about what they name. From 1; 0: there is none.
struct ModelfileLines {
  int from = 0;
  int draft = 0;
};

/// `lines`, if given, is filled.
/// Throws FormatError or UnsupportedError (path, "line N"): a command that is unknown, repeated, has no value or none
/// of its kind, a quotation without end, no FROM, a text that isn't UTF-8; ADAPTER; a template in Go's language, with
/// wrong syntax, or that can't render a user's message, neither alone nor behind SYSTEM and MESSAGE; a parameter that
/// is unknown, or asks for what memoir doesn't do. `path` is only named.
Modelfile parse_modelfile(std::string_view text, const std::string& path, ModelfileLines* lines = nullptr);

/// A text that parse_modelfile reads as this, but for the notes.
std::string modelfile_text(const Modelfile& modelfile);

}  // namespace memoir::model
