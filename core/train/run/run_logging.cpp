// What a run writes down and tells.

#include <cmath>

#include "nibble/core/train/run/run_impl.h"
#include "nibble/core/train/telemetry/trace.h"

namespace nibble {

namespace fs = std::filesystem;
using detail::Clock, detail::is_due, detail::seconds_since;

namespace {

using EventValues = std::vector<std::pair<std::string_view, double>>;

// Adds the objective's; `names`, empty before, holds what they are called.
void add_metrics(const std::string& split, const NamedNumbers& metrics, std::vector<std::string>& names,
                 EventValues& values) {
  for (const auto& metric : metrics) names.push_back(split + "/" + metric.first);
  for (size_t i = 0; i < names.size(); ++i) values.emplace_back(names[i], metrics[i].second);
}

EventValues event_values(const StepReport& report, std::vector<std::string>& names) {
  EventValues values = {{"train/loss", report.loss},
                        {"train/lr", report.lr},
                        {"train/grad_norm", report.grad_norm},
                        {"train/num_tokens", static_cast<double>(report.num_tokens)},
                        {"train/tokens_per_second", report.tokens_per_second},
                        {"train/peak_memory_bytes", static_cast<double>(report.peak_memory_bytes)}};
  if (report.share_of_peak > 0) values.emplace_back("train/share_of_peak", report.share_of_peak);
  add_metrics("train", report.metrics, names, values);
  return values;
}

std::vector<int64_t> of_every_rank(int64_t mine, Communicator& ranks) {
  MemoryPool pool;
  const Tensor part = Tensor::from<int64_t>(pool, {1}, std::span<const int64_t>(&mine, 1));
  Tensor all = Tensor::empty(pool, {ranks.size()}, DType::i64);
  ranks.all_gather("peak memory", part, all);
  return {all.data<const int64_t>(), all.data<const int64_t>() + ranks.size()};
}

}  // namespace

// A full disk must not end a run: the lines are kept and come with a later one.
void Run::Impl::write_line(const std::string& line) {
  if (!leads()) return;
  const bool written = metrics->append(line);
  if (!written && !lines_wait) {
    observer.message("warning: " + (options.dir / "metrics.jsonl").string() +
                     " cannot be written; its lines are kept until it can: free space on its device");
  }
  lines_wait = !written;
}

void Run::log(const StepResult& result, double lr) {
  Impl& run = *impl_;
  run.set_policy(&Impl::unsaved, true);
  run.lr = lr;
  run.state.num_tokens += result.new_tokens.value_or(result.tokens);
  if (!result.nonfinite.empty()) {
    run.observer.message("warning: step " + std::to_string(run.step) + " skipped: " + result.nonfinite.front());
    run.bad_steps.add({run.step, lr, result.loss, result.grad_norm, result.nonfinite});
    // A run that ends without a step that could be used has nothing to export.
    const bool none_used = !run.has_updated && !run.start;
    if (run.bad_steps.in_a_row() >= run.options.max_bad_steps || (none_used && run.last_step())) {
      if (run.writer.under_way() || run.together) run.take_outcome(false);
      const bool saved = run.start || !checkpoint_steps(run.checkpoints()).empty();
      run.bad_steps.give_up(run.leads() ? run.options.dir / "diagnostic.json" : fs::path(), none_used, saved);
    }
    return;
  }
  run.bad_steps.clear();
  if (!result.updated) {
    run.observer.message("step " + std::to_string(run.step) + " has no token with a label: skipped");
    return;
  }
  run.has_updated = true;
  StepReport report;
  report.step = run.step;
  report.total_steps = run.options.total_steps;
  report.loss = result.loss;
  report.lr = lr;
  report.grad_norm = result.grad_norm;
  report.label_tokens = result.label_tokens;
  report.tokens = result.tokens;
  report.num_tokens = run.state.num_tokens;
  report.metrics = result.metrics;
  report.seconds = seconds_since(run.step_start);
  report.tokens_per_second = static_cast<double>(result.tokens) / std::max(report.seconds, 1e-9);
  report.peak_memory_bytes = peak_memory_bytes();
  if (run.ranks.size() > 1) report.rank_peak_memory_bytes = of_every_rank(report.peak_memory_bytes, run.ranks);
  if (run.peak > 0) {
    const double done = run.work.per_token * static_cast<double>(result.computed_tokens) +
                        run.work.per_label_token * static_cast<double>(result.label_tokens);
    report.share_of_peak = done / std::max(report.seconds, 1e-9) / run.peak;
  }
  if (run.observer.trace) run.observer.trace->count("loss", report.loss);
  if (run.step % run.options.log_every == 0 || run.step == run.options.total_steps) {
    run.write_line(metrics_line(report));
    std::vector<std::string> names;
    if (run.leads()) run.events->add_scalars(report.step, event_values(report, names));
  }
  run.observer.step(report);
  for (const std::string& warning : run.monitor.after_step(report)) run.observer.message(warning);
  run.step_start = Clock::now();  // an evaluation may follow
}

void Run::log(const SampleReport& sample, double seconds) {
  Impl& run = *impl_;
  if (!run.leads()) return;
  if (!run.samples) run.samples = std::make_unique<MetricsFile>(run.options.dir / "samples.jsonl", run.step - 1);
  run.samples->append(sample_line(sample, seconds));
  run.events->add_text(sample.step, "samples", "**" + sample.prompt + "**\n\n" + sample.text);
  run.observer.sample(sample);
}

bool Run::evaluation_due() const {
  const Impl& run = *impl_;
  return run.options.evaluates &&
         (run.step == run.options.total_steps ||
          run.agree("evaluation due", is_due(run.options.eval_every, run.step, run.last_evaluation)));
}

bool Run::evaluating(int64_t batch, int64_t batches) const {
  impl_->observer.work({impl_->step, "evaluation", batch, batches});
  return !stop_requested();
}

void Run::log(const Evaluation& evaluation) {
  Impl& run = *impl_;
  EvaluationReport report;
  report.step = run.step;
  report.loss = evaluation.loss;
  report.perplexity = evaluation.perplexity;
  report.label_tokens = evaluation.label_tokens;
  report.tokens = evaluation.tokens;
  report.metrics = evaluation.metrics;
  report.seconds = seconds_since(run.step_start);
  report.best = !run.state.best_loss || evaluation.loss < *run.state.best_loss;
  if (report.best) {
    run.state.best_loss = evaluation.loss;
    run.state.best_step = run.step;
    run.state.evaluations_since_best = 0;
    run.new_best = true;
  } else {
    ++run.state.evaluations_since_best;
  }
  run.write_line(metrics_line(report));
  EventValues values = {{"eval/loss", report.loss}};
  if (!std::isnan(report.perplexity)) values.emplace_back("eval/perplexity", report.perplexity);
  std::vector<std::string> names;
  add_metrics("eval", report.metrics, names, values);
  if (run.leads()) run.events->add_scalars(report.step, values);
  run.last_evaluation = Clock::now();
  run.observer.evaluation(report);
  if (run.stopped_early() && run.step < run.options.total_steps) {
    run.observer.message("ends at step " + std::to_string(run.step) + " of " + std::to_string(run.options.total_steps) +
                         ": no evaluation since step " + std::to_string(run.state.best_step) +
                         " had a lower loss (train.early_stop=" + std::to_string(run.options.early_stop) + ")");
  }
  for (const std::string& warning : run.monitor.after_evaluation(report)) run.observer.message(warning);
}

}  // namespace nibble
