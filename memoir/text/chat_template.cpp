#include "memoir/text/chat_template.h"

#include <stdexcept>
#include <utility>

#include "memoir/text/jinja_ast.h"
#include "memoir/text/jinja_error.h"
#include "memoir/text/jinja_interpreter.h"
#include "memoir/text/jinja_value.h"

namespace memoir::text {
namespace {

[[noreturn]] void rethrow(const jinja::Error& error, const std::string& path) {
  const std::string key = error.line() > 0 ? "line " + std::to_string(error.line()) : "";
  switch (error.kind()) {
    case jinja::ErrorKind::kRefusal:
      throw TemplateRefusal(path, key, error.what());
    case jinja::ErrorKind::kUnsupported:
      throw UnsupportedError(path, key, error.what());
    default:
      throw FormatError(path, key, error.what());
  }
}

jinja::Interpreter::Variables variables_of(const ChatTemplate::Inputs& inputs) {
  jinja::Interpreter::Variables variables;
  variables["messages"] = jinja::from_json(inputs.messages);
  variables["tools"] = jinja::from_json(inputs.tools);
  variables["documents"] = jinja::Value();
  variables["add_generation_prompt"] = jinja::Value::boolean(inputs.add_generation_prompt);
  if (inputs.bos_token) variables["bos_token"] = jinja::Value::string(*inputs.bos_token);
  if (inputs.eos_token) variables["eos_token"] = jinja::Value::string(*inputs.eos_token);
  for (const auto& [name, value] : inputs.extra.items()) variables[name] = jinja::from_json(value);
  return variables;
}

}  // namespace

struct ChatTemplate::Parsed {
  jinja::Program program;
};

ChatTemplate::ChatTemplate(const std::string& source, std::string path_for_messages)
    : path_(std::move(path_for_messages)) {
  try {
    parsed_ = std::make_shared<const Parsed>(Parsed{jinja::parse_program(source)});
  } catch (const jinja::Error& error) {
    rethrow(error, path_);
  }
}

std::string ChatTemplate::render(const Inputs& inputs) const {
  if (!inputs.extra.is_null() && !inputs.extra.is_object()) {
    throw std::invalid_argument("[chat_template.render] extra must be a JSON object, is " +
                                std::string(inputs.extra.type_name()));
  }
  try {
    const jinja::Interpreter::Variables variables = variables_of(inputs);
    jinja::Interpreter interpreter(parsed_->program, variables, inputs.now.value_or(std::chrono::system_clock::now()),
                                   inputs.max_steps);
    return interpreter.run();
  } catch (const jinja::Error& error) {
    rethrow(error, path_);
  }
}

}  // namespace memoir::text
