#include "nibble/cli/line_reader.h"

#include <histedit.h>
#include <langinfo.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "nibble/core/base/error.h"

namespace nibble::cli {

namespace {

constexpr int kRemembered = 1000;

// Without UTF-8 the editor would take the bytes of a character for characters.
void use_utf8() {
  std::setlocale(LC_CTYPE, "");
  if (std::strcmp(nl_langinfo(CODESET), "UTF-8") != 0) std::setlocale(LC_CTYPE, "C.UTF-8");
}

}  // namespace

struct LineReader::Terminal {
  const char* prompt;
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
