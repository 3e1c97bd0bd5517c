#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "memoir/base/byte_source.h"
#include "memoir/base/error.h"
#include "memoir/base/json_text.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/messages_file.h"
#include "memoir/cli/prompt_cache.h"
#include "memoir/cli/signals.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/conversation.h"
#include "memoir/engine/generate.h"

namespace memoir::cli {
namespace {

struct GenerateArguments {
  RunOptions run;
  KvArguments kv;
  SamplingOptions sampling;
  PromptCache cache;
  DraftOptions draft;
  std::string prompt;
  std::string tokens;
  std::string messages_file;
  bool is_raw = false;
  bool is_json = false;
  CLI::Option* prompt_option = nullptr;
  CLI::Option* tokens_option = nullptr;
};

const text::Tokenizer& need_tokenizer(const model::LoadedModel& loaded, const GenerateArguments& arguments) {
  if (loaded.tokenizer) return *loaded.tokenizer;
  throw UnsupportedError(arguments.run.model, "tokenizer.json",
                         "there is none, so the prompt must be given as --tokens");
}

std::vector<TokenId> render(const text::Tokenizer& tokenizer, const text::ChatTemplate::Inputs& inputs) {
  const text::ChatTemplate chat_template(*tokenizer.chat_template());
  return tokenizer.encode(chat_template.render(inputs), {.add_special = false, .parse_special = true});
}

std::vector<TokenId> messages_prompt(const model::LoadedModel& loaded, const GenerateArguments& arguments) {
  const text::Tokenizer& tokenizer = need_tokenizer(loaded, arguments);
  if (!tokenizer.chat_template()) {
    throw UnsupportedError(arguments.run.model, "chat_template", "the model has none, so --messages can't be rendered");
  }
  return render(tokenizer, read_messages_file(arguments.messages_file, tokenizer));
}

// The text as one user's message where the model has a chat template, else (and with --raw) as it is.
std::vector<TokenId> text_prompt(const model::LoadedModel& loaded, const GenerateArguments& arguments) {
  const text::Tokenizer& tokenizer = need_tokenizer(loaded, arguments);
  if (arguments.is_raw || !tokenizer.chat_template()) {
    return tokenizer.encode(arguments.prompt, {.add_special = true, .parse_special = true});
  }
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  messages.push_back({{"role", "user"}, {"content", arguments.prompt}});
  return render(tokenizer, engine::template_inputs(tokenizer, std::move(messages)));
}

std::vector<TokenId> prompt_tokens(const model::LoadedModel& loaded, const GenerateArguments& arguments) {
  if (arguments.tokens_option->count() > 0) return parse_tokens(arguments.tokens);
  if (arguments.prompt_option->count() > 0) return text_prompt(loaded, arguments);
  return messages_prompt(loaded, arguments);
}

nlohmann::ordered_json json_of(const engine::Completion& completion) {
  return {{"tokens", completion.tokens},
          {"text", completion.text},
          {"prompt_tokens", completion.prompt_tokens},
          {"cached_tokens", completion.cached_tokens},
          {"prefill_s", completion.prefill_s},
          {"decode_s", completion.decode_s},
          {"drafted", completion.drafts.n_drafted},
          {"accepted", completion.drafts.n_accepted},
          {"rounds", completion.drafts.n_rounds},
          {"finish_reason", engine::finish_reason_name(completion.finish_reason)}};
}

// Without a tokenizer there is no text: the ids, as --tokens takes them.
std::string tokens_text(const std::vector<TokenId>& tokens) {
  std::string text;
  for (const TokenId token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
  return text;
}

int run_generate(GenerateArguments& arguments) {
  arguments.cache.open(arguments.run.model);
  const model::LoadedModel loaded = arguments.run.load();
  const std::vector<TokenId> prompt = prompt_tokens(loaded, arguments);
  if (prompt.empty()) throw UsageError("the prompt is empty");
  const text::Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  engine::GenerateOptions options = arguments.sampling.generate_options(loaded);
  arguments.draft.use(loaded, options);
  ProgressLine progress("prompt");
  options.on_prefill = [&](int n_done, int n_total) {
    n_done < n_total ? progress.show(n_done, n_total) : progress.clear();
  };
  const auto show = [&](std::string_view text) {
    if (!arguments.is_json) write_out(text);
  };
  engine::Session session(*loaded.model, arguments.kv.cache_options(loaded.model->config()));
  arguments.cache.load_into(session);
  // What was computed is not lost by Ctrl-C where there is a file for it.
  std::optional<InterruptFlag> interrupt;
  if (arguments.cache.is_used()) {
    interrupt.emplace();
    options.should_cancel = [&interrupt] { return interrupt->is_set(); };
  }
  const engine::Completion completion = engine::generate(session, prompt, options, tokenizer, show);
  if (arguments.is_json) {
    write_out(json_text(json_of(completion)) + "\n");
  } else {
    write_out((tokenizer ? "" : tokens_text(completion.tokens)) + "\n");
  }
  arguments.cache.save(session);
  return kDone;
}

}  // namespace

void add_generate_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<GenerateArguments>();
  CLI::App* command = app.add_subcommand("generate", "continue a prompt, or answer one message");
  arguments->run.add_to(*command);
  arguments->kv.add_to(*command);
  CLI::Option_group* prompt = command->add_option_group("prompt", "exactly one of");
  arguments->prompt_option = prompt->add_option("-p,--prompt", arguments->prompt, "the prompt")->type_name("TEXT");
  arguments->tokens_option =
      prompt->add_option("--tokens", arguments->tokens, "the prompt as token ids, 1,2,3")->type_name("IDS");
  CLI::Option* messages = prompt
                              ->add_option("--messages", arguments->messages_file,
                                           "a chat, {\"messages\": [...], \"tools\": [...]}; - is stdin")
                              ->type_name("FILE.json");
  prompt->require_option(1);
  arguments->sampling.add_to(*command);
  arguments->cache.add_to(*command);
  arguments->draft.add_to(*command);
  command->add_flag("--raw", arguments->is_raw, "take the prompt as it is, without the chat template")
      ->excludes(messages);
  command->add_flag("--json", arguments->is_json, "print one JSON object instead of the text");
  command->callback([arguments, &action] { action = [arguments] { return run_generate(*arguments); }; });
}

}  // namespace memoir::cli
