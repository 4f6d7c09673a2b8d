#include "nibble/core/text/unicode/visible_text.h"

#include <gtest/gtest.h>

namespace nibble {
namespace {

TEST(VisibleText, ShowsWhatWouldSteerATerminal) {
  EXPECT_EQ(visible_text("\x1b[2J\x1b]0;title\a"), "\\x1b[2J\\x1b]0;title\\x07");
  EXPECT_EQ(visible_text("\u009B2J"), "<U+009B>2J");  // CSI as one character of C1
  EXPECT_EQ(visible_text("\x9b"
                         "2J"),
            "\\x9b2J");  // and as the byte that is no UTF-8
  EXPECT_EQ(visible_text("a\rb\x7f"
                         "c\b"),
            "a\\x0db\\x7fc\\x08");
  EXPECT_EQ(visible_text(std::string("a\0b", 3)), "a\\x00b");
}

TEST(VisibleText, ShowsMarksOfDirection) {
  EXPECT_EQ(visible_text("user\u202E\u2066// admin\u2069\u200F\u061C"),
            "user<U+202E><U+2066>// admin<U+2069><U+200F><U+061C>");
}

TEST(VisibleText, LeavesTextAsItIs) {
  const std::string text = "\tGr\u00fc\u00dfe, \u05e9\u05dc\u05d5\u05dd, \u4f60\u597d, \U0001F469\u200D\U0001F680";
  EXPECT_EQ(visible_text(text), text);
}

TEST(VisibleText, ShowsLineBreaksWhereALineIsWanted) {
  EXPECT_EQ(visible_text("a\nb\u2028c"), "a\\x0ab<U+2028>c");
  EXPECT_EQ(visible_text("a\nb", Lines::many), "a\nb");
}

}  // namespace
}  // namespace nibble
