#include "nibble/cli/chat/line_reader.h"

#include <histedit.h>
#include <langinfo.h>
#include <poll.h>
#include <signal.h>
#include <termios.h>
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
#include "nibble/core/io/files/open_file.h"
#include "nibble/core/tensor/map_fault.h"
#include "nibble/core/text/unicode/utf8.h"

namespace nibble::cli {

namespace {

constexpr int kRemembered = 1000;

// Without UTF-8 the editor would take the bytes of a character for characters.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

bool in_foreground() { return tcgetpgrp(STDIN_FILENO) == getpgrp(); }

/// While it lives, the terminal sends marks around a pasted text (mode 2004), and what is typed between two lines
/// waits, unseen and unchanged, for the next. While the program is stopped, and once a signal has ended it, the
/// terminal is as it was before.
class TerminalModes {
 public:
  explicit TerminalModes(bool marks) {
    marks_ = marks;
    tcgetattr(STDIN_FILENO, &former_);
    for (size_t i = 0; i < kSignals.size(); ++i) {
      sigaction(kSignals[i], nullptr, &former_actions_[i]);
      if (former_actions_[i].sa_handler != SIG_IGN) handle(kSignals[i]);
    }
    before_exit_by_a_map = restore;
    between_lines(true);
    send_marks(true);
  }
  ~TerminalModes() {
    before_exit_by_a_map = nullptr;
    send_marks(false);
    between_lines(false);
    for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former_actions_[i], nullptr);
  }
  TerminalModes(const TerminalModes&) = delete;
  TerminalModes& operator=(const TerminalModes&) = delete;

  static void between_lines(bool on) {
    if (on) between_lines_ = 1;  // after a stop, before hold_back or behind it, it is held back again
    hold_back(on);
    if (!on) between_lines_ = 0;
  }

 private:
  static void hold_back(bool on) {
    termios state = former_;
    if (!in_foreground()) return;  // it is not ours to change
    if (on) state.c_iflag &= ~static_cast<tcflag_t>(ICRNL);
    if (on) state.c_lflag = (state.c_lflag & ~static_cast<tcflag_t>(ICANON | ECHO)) | NOFLSH;
    tcsetattr(STDIN_FILENO, TCSANOW, &state);
  }
  static void send_marks(bool on) {
    if (!marks_) return;
    const std::string_view mode = on ? "\x1b[?2004h" : "\x1b[?2004l";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, mode.data(), mode.size());
  }
  static void restore() {
    send_marks(false);
    hold_back(false);  // libedit has not done it yet where it does not know that it has changed the terminal
  }
  static void handle(int signal) {
    struct sigaction action {};
    action.sa_handler = [](int came) {
      const int error = errno;
      restore();
      raise(came);  // ends the program, or stops it (Ctrl-Z) until it goes on
      handle(came);
      if (between_lines_) hold_back(true);
      send_marks(true);
      errno = error;
    };
    sigemptyset(&action.sa_mask);
    action.sa_flags = SA_RESETHAND | SA_NODEFER;  // what is raised there does at once what it does without a handler
    sigaction(signal, &action, nullptr);
  }

  static constexpr std::array kSignals = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
  std::array<struct sigaction, kSignals.size()> former_actions_{};
  // A signal handler has no other way.
  inline static termios former_{};
  inline static bool marks_ = false;
  inline static volatile sig_atomic_t between_lines_ = 0;
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
  History* history = history_init();
  EditLine* editor = el_init("nibble", stdin, stderr, stderr);
  std::optional<TerminalModes> modes;
  std::string typed;  // that libedit has not seen yet

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
    modes.emplace(isatty(STDERR_FILENO) == 1 && std::getenv("TERM") != nullptr &&
                  std::strcmp(std::getenv("TERM"), "dumb") != 0);
  }
  ~Terminal() {
    modes.reset();
    el_end(editor);
    history_end(history);
  }

  // Gives libedit what was typed.
  void push_typed() {
    if (typed.empty()) return;
    typed = replace_invalid_utf8(typed);
    std::wstring text;
    for (size_t at = 0; at < typed.size(); at += utf8_length(typed[at])) {
      text += static_cast<wchar_t>(utf8_at(typed, at));
    }
    std::erase(text, L'\0');  // which would end it
    el_wpush(editor, text.c_str());
    typed.clear();
  }
};

LineReader::LineReader(const char* prompt) {
  if (isatty(STDIN_FILENO) != 1) return;
  use_utf8();
  terminal_ = std::make_unique<Terminal>(prompt);
}

LineReader::~LineReader() = default;

std::jthread LineReader::take_typed() {
  if (!terminal_) return {};
  return std::jthread([this](const std::stop_token& answered) {
    std::array<char, 4096> bytes{};
    while (!answered.stop_requested()) {
      constexpr int kMilliseconds = 20;
      pollfd input{in_foreground() ? STDIN_FILENO : -1, POLLIN, 0};
      if (poll(&input, 1, kMilliseconds) != 1) continue;
      const ssize_t count = uninterrupted([&] { return ::read(STDIN_FILENO, bytes.data(), bytes.size()); });
      if (count <= 0) return;
      terminal_->typed.append(bytes.data(), static_cast<size_t>(count));
    }
  });
}

bool LineReader::read(std::string& line) {
  if (!terminal_) return static_cast<bool>(std::getline(std::cin, line));
  terminal_->push_typed();
  int count = 0;
  TerminalModes::between_lines(false);
  const char* typed = el_gets(terminal_->editor, &count);
  TerminalModes::between_lines(true);
  if (typed == nullptr || count <= 0) return false;
  line.assign(typed, static_cast<size_t>(count));
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.pop_back();
  HistEvent event;
  if (!line.empty()) ::history(terminal_->history, &event, H_ENTER, line.c_str());
  return true;
}

}  // namespace nibble::cli
