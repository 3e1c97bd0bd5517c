#include <exception>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <utility>

#include "memoir/base/error.h"
#include "memoir/cli/commands.h"
#include "memoir/cli/common_options.h"
#include "memoir/cli/line_editor.h"
#include "memoir/cli/model_path.h"
#include "memoir/cli/prefix_cache.h"
#include "memoir/cli/prompt_cache.h"
#include "memoir/cli/prompt_tokens.h"
#include "memoir/cli/report.h"
#include "memoir/cli/signals.h"
#include "memoir/cli/status.h"
#include "memoir/cli/terminal.h"
#include "memoir/engine/conversation.h"
#include "memoir/engine/generate.h"
#include "memoir/engine/session.h"

namespace memoir::cli {
namespace {

constexpr const char* kPrompt = "> ";
constexpr const char* kCommands =
    "/help   this list\n"
    "/reset  a new conversation\n"
    "/exit   leaves, as Ctrl-D and, at the prompt, Ctrl-C do\n";

struct ChatArguments {
  RunOptions run;
  KvArguments kv;
  SamplingOptions sampling;
  PromptCache cache;
  DraftOptions draft;
  PrefixCacheArguments prefix_cache;
  ContextShiftOptions shift;
  std::string system;
  Preface preface;  // of each conversation
  bool shows_stats = false;
};

class Chat {
 public:
  Chat(ChatArguments& arguments, const model::LoadedModel& loaded)
      : arguments_(arguments),
        tokenizer_(*loaded.tokenizer),
        template_(*loaded.tokenizer->chat_template()),
        end_tokens_(loaded.end_tokens),
        options_(drafting_options(arguments, loaded)),
        interrupt_(arguments.cache.is_used() || arguments.prefix_cache.has_directory() ? Ending::kInOrder
                                                                                       : Ending::kAtOnce),
        store_(make_store(arguments, *loaded.model)),
        session_(*loaded.model, arguments.kv.cache_options(loaded.model->config()), store_.get(),
                 arguments.shift.shift(loaded, {{"--prompt-cache", arguments.cache.is_used()},
                                                {"--prefix-cache-dir", arguments.prefix_cache.has_directory()},
                                                {"--draft", arguments.draft.is_asked_for()},
                                                {"--max-kv-size", arguments.kv.max_size > 0}})) {
    options_.should_cancel = [this] { return interrupt_.is_set(); };
    arguments.cache.load_into(session_);
    if (LineEditor::is_usable()) editor_.emplace(kPrompt);
    reset();
  }

  int run() {
    std::exception_ptr failure;  // of a stream: no reason to lose what was computed
    try {
      talk();
    } catch (const std::exception&) {
      failure = std::current_exception();
    }
    arguments_.cache.save(session_);
    if (const int number = interrupt_.ended_by()) return kSignalled + number;
    if (failure) std::rethrow_exception(failure);
    // At a terminal someone has read what failed, and gone on.
    return has_failed_ && !is_terminal_ ? kFailed : kDone;
  }

 private:
  void talk() {
    if (is_terminal_) std::cerr << "Ctrl-C stops an answer, Ctrl-D leaves, /help tells more.\n";
    while (!is_over_ && interrupt_.ended_by() == 0) {
      interrupt_.clear();
      const std::optional<std::string> line = next_line();
      if (!line) {
        if (is_terminal_) std::cerr << '\n';
        break;
      }
      std::optional<EchoOff> echo_off;
      if (!editor_) echo_off.emplace();  // the editor sees to it itself
      take(*line);
    }
  }

  static engine::GenerateOptions drafting_options(ChatArguments& arguments, const model::LoadedModel& loaded) {
    engine::GenerateOptions options = arguments.sampling.generate_options(loaded);
    arguments.draft.use(arguments.run.model, loaded, options);
    return options;
  }

  // Rows that a shift has moved are not what computing them would give.
  static std::unique_ptr<prefix::Store> make_store(const ChatArguments& arguments, const model::Model& model) {
    const cache::CacheOptions caches = arguments.kv.cache_options(model.config());
    arguments.prefix_cache.check(!arguments.shift.is_used() && caches.quantize_from == 0, model, caches,
                                 arguments.draft.companion());
    if (arguments.shift.is_used()) return nullptr;
    return arguments.prefix_cache.store(arguments.run.model, model, caches, arguments.draft.companion());
  }

  void reset() {
    conversation_.emplace(tokenizer_, template_);
    if (arguments_.preface.system) conversation_->add_message("system", *arguments_.preface.system);
    for (const auto& [role, content] : arguments_.preface.messages) conversation_->add_message(role, content);
  }

  std::optional<std::string> next_line() {
    if (editor_) return editor_->read();
    const auto show_prompt = [this] {
      if (is_terminal_) std::cerr << kPrompt << std::flush;
    };
    show_prompt();
    return read_line(show_prompt);
  }

  void take(const std::string& line) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos) return;
    const std::string text = line.substr(begin, line.find_last_not_of(" \t\r") + 1 - begin);
    if (text == "/help") {
      std::cerr << kCommands;
    } else if (text == "/exit") {
      is_over_ = true;
    } else if (text == "/reset") {
      reset();
      std::cerr << "A new conversation.\n";
    } else if (text[0] == '/' && text.find_first_of(" /", 1) == std::string::npos) {
      report("unknown command " + text + ", /help lists them");
    } else {
      try_to_answer(text);
    }
  }

  // A message that can't be answered is reported and dropped; the conversation goes on without it.
  void try_to_answer(const std::string& line) {
    const std::size_t n_messages = conversation_->messages().size();
    try {
      answer(line);
    } catch (const OutputError&) {
      throw;
    } catch (const std::exception& error) {
      has_failed_ = true;
      while (conversation_->messages().size() > n_messages) conversation_->drop_last_message();
      if (std::exchange(is_answering_, false)) write_out("\n");
      report(error);
    }
  }

  void answer(const std::string& line) {
    conversation_->add_message("user", line);
    const std::vector<TokenId> prompt = conversation_->prompt();
    const int context = session_.model().context();
    if (!session_.shifts() && prompt.size() >= static_cast<std::size_t>(context)) {
      throw std::length_error("the chat has " + std::to_string(prompt.size()) +
                              " tokens with this message, the model's context is " + std::to_string(context) +
                              ": shorten it, or begin a new one with /reset");
    }
    options_.turn_ends = engine::turn_ends(prompt, end_tokens_);
    const engine::Completion completion =
        engine::generate(session_, prompt, options_, &tokenizer_, [this](std::string_view text) {
          is_answering_ = true;
          write_out(text);
        });
    is_answering_ = false;
    write_out("\n");
    if (completion.tokens.empty() && completion.finish_reason == engine::FinishReason::kCancelled) {
      conversation_->drop_last_message();
      return;
    }
    conversation_->add_answer(completion.text, completion.tokens);
    show_stats(completion);
  }

  void show_stats(const engine::Completion& completion) const {
    if (!arguments_.shows_stats && !(is_terminal_ && stderr_is_terminal())) return;
    const auto n_tokens = static_cast<double>(completion.tokens.size());
    std::cerr << "[prompt_tokens " << completion.prompt_tokens << ", cached_tokens " << completion.cached_tokens
              << ", tokens " << completion.tokens.size();
    if (completion.drafts.n_drafted > 0) {
      std::cerr << ", accepted " << completion.drafts.n_accepted << " of " << completion.drafts.n_drafted << " drafts";
    }
    if (completion.decode_s > 0 && n_tokens > 1) {
      std::cerr << ", " << static_cast<int>((n_tokens - 1) / completion.decode_s + 0.5) << " tokens/s";
    }
    std::cerr << "]\n";
  }

  const ChatArguments& arguments_;
  const text::Tokenizer& tokenizer_;
  text::ChatTemplate template_;
  std::vector<TokenId> end_tokens_;
  engine::GenerateOptions options_;
  InterruptFlag interrupt_;
  std::unique_ptr<prefix::Store> store_;  // may be null
  engine::Session session_;
  std::optional<engine::Conversation> conversation_;
  TerminalGuard guard_;
  std::optional<LineEditor> editor_;
  bool is_terminal_ = stdin_is_terminal();
  bool is_over_ = false;
  bool is_answering_ = false;  // the answer's line is not at its end
  bool has_failed_ = false;
};

int run_chat(ChatArguments& arguments) {
  const std::optional<model::Package> package = find_package(arguments.run.model);
  arguments.preface = Preface::of(package);
  if (!arguments.system.empty()) arguments.preface.system = arguments.system;
  if (package) {
    arguments.sampling.use_defaults(package->modelfile.parameters);
    arguments.draft.use_defaults(*package);
    if (arguments.shift.is_used()) arguments.draft.leave_out_default("--context-shift");
  }
  arguments.draft.check();
  arguments.cache.open(arguments.run.model);
  const model::LoadedModel loaded = arguments.run.load();
  arguments.kv.check(*loaded.model);
  if (!loaded.tokenizer) throw UnsupportedError(arguments.run.model, "tokenizer.json", "there is none to chat with");
  if (!loaded.tokenizer->chat_template()) {
    throw UnsupportedError(arguments.run.model, "chat_template", "the model has none: try memoir generate --raw");
  }
  return Chat(arguments, loaded).run();
}

}  // namespace

void add_chat_command(CLI::App& app, Action& action) {
  const auto arguments = std::make_shared<ChatArguments>();
  arguments->run.model = "smollm2";
  arguments->sampling.sampler.temperature = 0.2;  // as SmolLM2's authors advise for so small a model
  arguments->sampling.sampler.top_p = 0.9;
  arguments->sampling.max_tokens = 1024;
  CLI::App* command = app.add_subcommand("chat", "talk in the terminal");
  arguments->run.add_to(*command);
  arguments->kv.add_to(*command);
  command->add_option("--system", arguments->system, "the system message (default: the chat template's)")
      ->type_name("TEXT");
  arguments->sampling.add_to(*command);
  arguments->cache.add_to(*command);
  arguments->draft.add_to(*command);
  arguments->prefix_cache.add_to(*command, "was computed before, for chats that go back to it");
  arguments->shift.add_to(*command);
  command->add_flag("--stats", arguments->shows_stats, "after each answer say on stderr what was computed");
  command->footer(std::string("In the chat:\n") + kCommands +
                  "A message that can't be answered is reported and dropped, and the chat goes on. Where stdin is no\n"
                  "terminal, the exit status is 1 then.");
  command->callback([arguments, &action] { action = [arguments] { return run_chat(*arguments); }; });
}

}  // namespace memoir::cli
