#include "nibble/cli/line_reader.h"

#include <histedit.h>
#include <langinfo.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <optional>
#include <string_view>

#include "nibble/core/base/error.h"

namespace nibble::cli {

namespace {

constexpr int kRemembered = 1000;

// Without UTF-8 the editor would take the bytes of a character for characters.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

/// While it lives, the terminal sends marks around a pasted text (mode 2004), but not to others while the program is
/// stopped, or once a signal has ended it.
class PasteMarks {
 public:
  PasteMarks() {
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], nullptr, &former_[i]);
      if (former_[i].sa_handler != SIG_IGN) meet(kSignals[i]);
    }
    turn(true);
  }
  ~PasteMarks() {
    turn(false);
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former_[i], nullptr);
  }
  PasteMarks(const PasteMarks&) = delete;
  PasteMarks& operator=(const PasteMarks&) = delete;

 private:
  static void turn(bool on) {
    const std::string_view mode = on ? "\x1b[?2004h" : "\x1b[?2004l";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, mode.data(), mode.size());
  }
  static void meet(int signal) {
    struct sigaction action {};
    action.sa_handler = [](int came) {
      const int error = errno;
      turn(false);
      raise(came);  // ends the program, or stops it (Ctrl-Z) until it goes on
      meet(came);
      turn(true);
      errno = error;
    };
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESETHAND | SA_NODEFER;  // what is raised there does at once what it does without a handler
    sigaction(signal, &action, nullptr);
  }

  static constexpr std::array kSignals = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
  std::array<struct sigaction, kSignals.size()> former_{};
};

// What follows the mark of a pasted text goes into the line as it is, with its line breaks, up to the other mark.
unsigned char insert_paste(EditLine* editor, int) {
  constexpr std::wstring_view kEnd = L"\x1b[201~";
  std::wstring text;
  for (wchar_t c = 0, before = 0; !text.ends_with(kEnd);) {
    if (el_wgetc(editor, &c) != 1) return CC_EOF;
    const bool ends_line = c == L'\n' && before == L'\r';  // that has ended
    if (!ends_line) text += c == L'\r' ? L'\n' : c;
    before = c;
  }
  text.resize(text.size() - kEnd.size());
  el_winsertstr(editor, text.c_str());
  return CC_REFRESH;
}

}  // namespace

struct LineReader::Terminal {
  const char* prompt;
  bool knows_modes =
      isatty(STDERR_FILENO) == 1 && std::getenv("TERM") != nullptr && std::strcmp(std::getenv("TERM"), "dumb") != 0;
  History* history = history_init();
  EditLine* editor = el_init("nibble", stdin, stderr, stderr);

  explicit Terminal(const char* shown) : prompt(shown) {
    NIBBLE_CHECK(editor != nullptr && history != nullptr, "libedit does not start");
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kRemembered);
    ::history(history, &event, H_SETUNIQUE, 1);
    el_set(editor, EL_CLIENTDATA, this);
    el_set(
        editor, EL_PROMPT, +[](EditLine* of) {
          Terminal* self = nullptr;
          el_get(of, EL_CLIENTDATA, &self);
          return const_cast<char*>(self->prompt);
        });
    el_set(editor, EL_EDITOR, "emacs");
    el_set(editor, EL_SIGNAL, 1);  // a signal that ends the program finds the terminal as it was
    el_set(editor, EL_HIST, ::history, history);
    el_set(editor, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_wset(editor, EL_ADDFN, L"insert-paste", L"Insert a pasted text", insert_paste);
    el_wset(editor, EL_BIND, L"\x1b[200~", L"insert-paste", nullptr);
  }
  ~Terminal() {
    el_end(editor);
    history_end(history);
  }
};

LineReader::LineReader(const char* prompt) {
  if (isatty(STDIN_FILENO) != 1) return;
  use_utf8();
  terminal_ = std::make_unique<Terminal>(prompt);
}

LineReader::~LineReader() = default;

bool LineReader::read(std::string& line) {
  if (!terminal_) return static_cast<bool>(std::getline(std::cin, line));
  std::optional<PasteMarks> marks;
  if (terminal_->knows_modes) marks.emplace();
  int count = 0;
  const char* typed = el_gets(terminal_->editor, &count);
  if (typed == nullptr || count <= 0) return false;
  line.assign(typed, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  HistEvent event;
  if (!line.empty()) ::history(terminal_->history, &event, H_ENTER, line.c_str());
  return true;
}

}  // namespace nibble::cli
