// Which recipe runs, and what stands around it: the report, the profile.

#include "nibble/recipes/train.h"
#include "nibble/core/base/error.h"
#include "nibble/core/comm/communicator.h"
#include "nibble/core/io/files/list_directory.h"
#include "nibble/core/io/files/output_guard.h"
#include "nibble/core/train/telemetry/profile.h"
#include "nibble/core/train/telemetry/trace.h"
#include "nibble/recipes/models/arithmetic.h"
#include "nibble/recipes/plan/auto_layout.h"
#include "nibble/recipes/report/report.h"

namespace nibble {

void train(const Recipe& given, RankContext& rank, const Observer& observer) {
  require_writable(nearest_existing(given.output.dir));
  const Recipe recipe = with_layout(with_arithmetic(given, rank, observer), rank, observer);
  recipe.pretrains() ? pretrain(recipe, rank, observer) : finetune(recipe, rank, observer);
  if (rank.comm.rank() != 0) return;
  const std::filesystem::path directory = recipe.output.dir;
  try {
    // One that came there while this trained.
    require_replaceable_page(directory / "report.html", recipe.output.force ? Replace::anything : Replace::own);
    write_report(directory, directory / "report.html");
    observer.message("done: " + (directory / (recipe.adapter ? "adapter" : "model")).string() + ", and " +
                     (directory / "report.html").string() + " shows the run");
  } catch (const std::exception& error) {  // what was trained is written: a page that cannot be is no reason to fail
    observer.message(std::string("warning: no report: ") + error.what());
  }
}

void train_profiled(const Recipe& recipe, RankContext& rank, const Observer& observer) {
  Trace trace(rank.comm.rank());
  double share = 0, seconds = 0, tokens = 0, passes = 0;
  Observer watching = observer;
  watching.trace = &trace;
  watching.on_step = [&](const StepReport& report) {
    share += report.share_of_peak * report.seconds;
    seconds += report.seconds;
    tokens += static_cast<double>(report.tokens);
    passes += static_cast<double>(recipe.train.accumulate);
    observer.step(report);
  };
  const auto tell = [&](const std::vector<RankTimes>& ranks) {
    const auto path = write_trace(trace, std::filesystem::path(recipe.output.dir) / "profile");
    for (const std::string& line : profile_lines(trace)) observer.message(line);
    observer.message(bottleneck(ranks, seconds > 0 ? share / seconds : 0, passes > 0 ? tokens / passes : 0));
    observer.message("trace: " + path.string() + " (open it in ui.perfetto.dev or chrome://tracing)");
  };
  try {
    train(recipe, rank, watching);
  } catch (const Interrupted&) {  // the other ranks may be gone
    tell({rank_times(trace)});
    throw;
  }
  tell(gather_times(rank_times(trace), rank));
}

}  // namespace nibble
