#include "memoir/cli/line_editor.h"

#include <histedit.h>
#include <termios.h>
#include <unistd.h>

#include <clocale>
#include <cstdlib>
#include <cwchar>
#include <string_view>

#include "memoir/cli/signals.h"
#include "memoir/cli/terminal.h"

namespace memoir::cli {
namespace {

constexpr int kHistoryLines = 500;

// libedit takes apart what is typed as the locale says. Models speak UTF-8; so does a terminal, whatever its user set.
void use_utf8() {
  for (const char* locale : {"", "C.UTF-8", "en_US.UTF-8"}) {
    if (std::setlocale(LC_CTYPE, locale) != nullptr && MB_CUR_MAX > 1) return;
  }
}

// In libedit's place, which starts to wait again after a signal. 1 with a character, 0 at the end, -1 if interrupted.
int read_character(EditLine* editor, wchar_t* character) {
  constexpr auto kNoCharacter = static_cast<std::size_t>(-1);
  constexpr auto kIncomplete = static_cast<std::size_t>(-2);
  std::mbstate_t state{};
  while (true) {
    if (!wait_for_input([editor] { el_set(editor, EL_REFRESH); })) return -1;
    char byte = 0;
    const ssize_t n_read = ::read(STDIN_FILENO, &byte, 1);
    if (n_read <= 0) return n_read == 0 ? 0 : -1;
    const bool is_inside = std::mbsinit(&state) == 0;
    std::size_t length = std::mbrtowc(character, &byte, 1, &state);
    if (length == kNoCharacter) {  // left out
      state = {};
      // Where it cut a character short, only that one's beginning: the byte may be the next, Enter for one.
      if (is_inside) length = std::mbrtowc(character, &byte, 1, &state);
      if (length == kNoCharacter) state = {};
    }
    if (length != kNoCharacter && length != kIncomplete) return 1;
  }
}

}  // namespace

struct LineEditor::State {
  EditLine* editor;
  History* history;
  std::string prompt;
  termios settings_before;
};

void LineEditor::keep_keys() const {
  termios settings = state_->settings_before;
  settings.c_lflag &= ~static_cast<tcflag_t>(ECHO | ICANON);
  tcsetattr(STDIN_FILENO, TCSANOW, &settings);
}

bool LineEditor::is_usable() {
  const char* const terminal = std::getenv("TERM");
  const bool can_move = terminal != nullptr && *terminal != '\0' && std::string_view(terminal) != "dumb";
  return can_move && stdin_is_terminal() && stderr_is_terminal();
}

LineEditor::LineEditor(const std::string& prompt) : state_(new State{nullptr, history_init(), prompt, {}}) {
  tcgetattr(STDIN_FILENO, &state_->settings_before);
  use_utf8();
  HistEvent event;
  history(state_->history, &event, H_SETSIZE, kHistoryLines);
  history(state_->history, &event, H_SETUNIQUE, 1);
  state_->editor = el_init("memoir", stdin, stderr, stderr);
  EditLine* const editor = state_->editor;
  el_set(editor, EL_CLIENTDATA, state_.get());
  char* (*const prompt_of)(EditLine*) = [](EditLine* asking) {
    void* state = nullptr;
    el_get(asking, EL_CLIENTDATA, &state);
    return static_cast<State*>(state)->prompt.data();
  };
  el_set(editor, EL_PROMPT, prompt_of);
  el_set(editor, EL_EDITOR, "emacs");
  el_set(editor, EL_HIST, history, state_->history);
  el_set(editor, EL_GETCFN, read_character);
  el_source(editor, nullptr);
}

LineEditor::~LineEditor() {
  el_end(state_->editor);
  history_end(state_->history);
  tcsetattr(STDIN_FILENO, TCSANOW, &state_->settings_before);
}

std::optional<std::string> LineEditor::read() {
  // Before it shows the prompt: else the terminal would still echo, and take Ctrl-D for itself, for a moment after.
  el_set(state_->editor, EL_PREP_TERM, 1);
  int n_bytes = 0;
  const char* const typed = el_gets(state_->editor, &n_bytes);
  keep_keys();
  if (typed == nullptr || n_bytes <= 0) return std::nullopt;
  std::string line(typed, static_cast<std::size_t>(n_bytes));
  while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
  HistEvent event;
  if (!line.empty()) history(state_->history, &event, H_ENTER, line.c_str());
  return line;
}

}  // namespace memoir::cli
