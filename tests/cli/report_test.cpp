// nibble report and nibble compare: the pages and plots that they write.

#include "nibble/tests/assets.h"
#include "nibble/tests/cli/trained_model.h"

namespace nibble {
namespace {

class Report : public test::TrainedModel {};

// Of a command with two outputs.
TEST_F(Report, WritesNothingWhereItsPlotsCannotBe) {
  test::write_bytes(root_ / "file", "");
  EXPECT_EQ(run("report run --out page.html --plots file/plots").code, 4);
  EXPECT_FALSE(exists(root_ / "page.html"));
  EXPECT_EQ(run("report run --plots run/adapter").code, 2);
  EXPECT_FALSE(exists(root_ / "run/adapter/loss.svg"));
}

TEST_F(Report, PagesReplaceNoFileOfOthersUnasked) {
  for (const std::string words : {"report run --out page.html", "compare run --out page.html"}) {
    for (const std::string more : {"", " --force"}) {
      test::write_bytes(root_ / "page.html", "<!doctype html>\n<title>My thesis</title>");
      const CommandOutput kept = run(words + more);
      EXPECT_EQ(kept.code, 2) << words;
      EXPECT_EQ(kept.text,
                "error: page.html: is no page of nibble; choose another name, or replace it with --force=anything\n");
      EXPECT_TRUE(test::read_bytes(root_ / "page.html").ends_with("My thesis</title>")) << words;
    }
    for (const std::string more : {" --force=anything", "", " --force"}) {
      const CommandOutput written = run(words + more);
      EXPECT_EQ(written.code, 0) << written.text;
      EXPECT_TRUE(test::read_bytes(root_ / "page.html").ends_with("</html>\n")) << words;
    }
  }
  EXPECT_EQ(run("report run").code, 0) << "over the page that train wrote";
  test::write_bytes(root_ / "run/report.html", "notes");
  EXPECT_EQ(run("report run").code, 2);
  test::write_bytes(root_ / "run/report.html", "");
  test::write_bytes(root_ / "loss.svg", "<svg>mine</svg>");
  EXPECT_EQ(run("report run --plots .").code, 2);
  EXPECT_EQ(test::read_bytes(root_ / "loss.svg"), "<svg>mine</svg>");
  for (const char* more : {" --force=anything", ""}) EXPECT_EQ(run("report run --plots ." + std::string(more)).code, 0);
  EXPECT_GT(std::filesystem::file_size(root_ / "loss.svg"), 100u);
}

}  // namespace
}  // namespace nibble
