#include "nibble/core/models/generation/answers.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "nibble/core/base/parallel.h"
#include "nibble/core/ops/cross_entropy.h"
#include "nibble/core/ops/elementwise.h"

namespace nibble {

namespace {

constexpr size_t kMinDocuments = 5;  // products of more than 4 rows do not depend on how many there are
constexpr int32_t kUnknown = -1;     // the token of a device without bytes

/// Sequences of the cache: prompts that answers begin with, then answers under way, then what fills a small pass.
class Sampling {
 public:
  Sampling(const Decoder& decoder, const NextLogits& next_logits, std::span<const AnsweredPrompt> prompts,
           const AnswerOptions& options, const StepContext& step, const std::function<void(Answer)>& use)
      : decoder_(decoder),
        next_logits_(next_logits),
        prompts_(prompts),
        options_(options),
        step_(step),
        use_(use),
        slots_(slots_of(prompts, options)),
        stores_(std::min(prompts.size(), slots_.size())),
        cache_(decoder.make_cache(step, static_cast<int64_t>(slots_.size() + stores_.size() + kMinDocuments))) {
    ops::AttentionSpan longest{};  // which may come later, and would double what there is
    for (size_t p = 0; p < prompts.size(); ++p) {
      for (const int64_t sequence : prompts[p].sequences) waiting_.push_back({p, sequence});
      longest.q_end = std::max(longest.q_end, std::ssize(prompts[p].ids));
    }
    cache_.prepare({&longest, 1}, {});
  }

  /// A pass over all that goes on; false when there is nothing left.
  bool pass() {
    free_stores();
    begin_answers();
    documents_.clear();
    samples_.clear();
    sequences_.clear();
    add_prompts();
    add_answers();
    if (documents_.empty()) return false;
    fill_up();
    Batch batch = make_batch(samples_, step_.pool());
    batch.sequences = sequences_;
    Tensor logits = next_logits_(batch, cache_);
    if (logits.device().has_bytes()) logits = logits.to(step_.pool().host());
    if (options_.sampling.temperature > 0) ops::scale(logits, 1 / options_.sampling.temperature);
    take(logits);
    for (size_t i = 0; i < kMinDocuments; ++i) cache_.forget(filler(i));
    return true;
  }

 private:
  struct Wanted {
    size_t prompt;
    int64_t sequence;
  };
  using Slot = std::optional<Answer>;
  struct Store {
    std::optional<size_t> prompt;  // while answers to it wait or are under way: they read its keys there
    Tensor logits;                 // [1, V] behind it, / temperature; undefined: not computed yet, or no answer waits
  };
  struct Document {
    size_t place;  // of its slot or store
    bool is_prompt;
  };

  static size_t slots_of(std::span<const AnsweredPrompt> prompts, const AnswerOptions& options) {
    size_t wanted = 0;
    for (const AnsweredPrompt& prompt : prompts) wanted += prompt.sequences.size();
    return std::min(wanted, static_cast<size_t>(std::max<int64_t>(options.together, 1)));
  }

  int64_t slot(size_t s) const { return static_cast<int64_t>(stores_.size() + s); }
  int64_t filler(size_t i) const { return static_cast<int64_t>(slots_.size() + stores_.size() + i); }
  std::span<const int32_t> prompt_of(const Answer& answer) const { return prompts_[answer.prompt].ids; }
  int64_t length(const Answer& answer) const {
    return static_cast<int64_t>(prompt_of(answer).size() + answer.ids.size());
  }

  Store* store_of(size_t prompt) {
    const auto found = std::ranges::find_if(stores_, [&](const Store& store) { return store.prompt == prompt; });
    return found == stores_.end() ? nullptr : &*found;
  }

  void free_stores() {
    for (Store& store : stores_) {
      const auto is_answered = [&](const Slot& slot) { return slot && slot->prompt == store.prompt; };
      const bool waits = !waiting_.empty() && store.prompt >= waiting_.front().prompt;
      if (!waits && std::ranges::none_of(slots_, is_answered)) store = {};
    }
  }

  // Free slots get the answers that wait for prompts that are there. The first token follows from the prompt's logits.
  void begin_answers() {
    for (size_t s = 0; s < slots_.size(); ++s) {
      while (!slots_[s] && !waiting_.empty()) {
        const Wanted next = waiting_.front();
        Store* store = store_of(next.prompt);
        if (!store || !store->logits) return;
        waiting_.pop_front();
        Answer& answer = slots_[s].emplace(Answer{.prompt = next.prompt, .sequence = next.sequence});
        const int32_t id = choose(store->logits, answer);
        add(s, id, log_prob(store->logits, id));
        if (slots_[s]) cache_.copy(store - stores_.data(), slot(s));
        if (waiting_.empty() || waiting_.front().prompt != next.prompt) store->logits = {};
      }
    }
  }

  int32_t choose(const Tensor& logits, const Answer& answer) const {
    if (!logits.device().has_bytes()) return kUnknown;
    SamplingOptions sampling = options_.sampling;  // of logits that are divided already
    if (sampling.temperature > 0) sampling.temperature = 1;
    return sample_token(logits.span<const float>(), sampling, length(answer), answer.sequence);
  }

  float log_prob(const Tensor& logits, int32_t id) const {
    if (id == kUnknown) return 0;
    MemoryPool& host = step_.pool().host();
    Tensor loss = Tensor::empty(host, {1}, DType::f32, "losses"), none;
    ops::cross_entropy(logits, Tensor::from<int32_t>(host, {1}, std::span(&id, 1)), 0, 1, loss, none, {});
    return -loss.data<const float>()[0];
  }

  // The slot is free again where the answer has come to its end.
  void add(size_t s, int32_t id, float log_prob) {
    Answer& answer = *slots_[s];
    answer.ids.push_back(std::max(id, 0));
    answer.log_probs.push_back(log_prob);
    const bool ended = id != kUnknown && (std::ranges::find(options_.stop_ids, id) != options_.stop_ids.end() ||
                                          (options_.ends && options_.ends(answer.ids)));
    const bool full = static_cast<int64_t>(answer.ids.size()) >= options_.max_new_tokens ||
                      length(answer) >= text_limit(decoder_.config());
    if (!ended && !full) return;
    answer.truncated = !ended;
    use_(std::move(answer));
    slots_[s].reset();
    cache_.forget(slot(s));
  }

  void add_document(Document document, int64_t sequence, Sample sample) {
    documents_.push_back(document);
    sequences_.push_back(sequence);
    samples_.push_back(std::move(sample));
  }

  void add_answers() {
    for (size_t s = 0; s < slots_.size(); ++s) {
      if (!slots_[s]) continue;
      const Answer& answer = *slots_[s];
      const int64_t sequence = slot(s);
      if (!decoder_.config().cache_holds(cache_.length(sequence), length(answer))) cache_.forget(sequence);
      Sample sample;
      if (cache_.length(sequence) > 0) {
        sample.ids = {answer.ids.back()};
      } else {
        sample.ids.assign(prompt_of(answer).begin(), prompt_of(answer).end());
        sample.ids.insert(sample.ids.end(), answer.ids.begin(), answer.ids.end());
      }
      add_document({s, false}, sequence, std::move(sample));
    }
  }

  // As many as the free slots have answers for, and as are computed in one pass.
  void add_prompts() {
    auto free = std::ranges::count_if(slots_, [](const Slot& slot) { return !slot; });
    int64_t tokens = 0;
    std::optional<size_t> before;
    std::vector<size_t> into;
    for (const Wanted& next : waiting_) {
      if (free <= 0) break;
      --free;
      if (next.prompt == before || store_of(next.prompt)) continue;
      before = next.prompt;
      const auto empty = std::ranges::find_if(stores_, [](const Store& store) { return !store.prompt; });
      const auto length = static_cast<int64_t>(prompts_[next.prompt].ids.size());
      if (empty == stores_.end() || (tokens > 0 && tokens + length > options_.prompt_tokens)) break;
      tokens += length;
      empty->prompt = next.prompt;
      into.push_back(static_cast<size_t>(empty - stores_.begin()));
    }
    std::ranges::sort(into);  // sequences stand in rising order
    for (const size_t store : into) {
      cache_.forget(static_cast<int64_t>(store));
      Sample sample;
      sample.ids = prompts_[*stores_[store].prompt].ids;
      add_document({store, true}, static_cast<int64_t>(store), std::move(sample));
    }
  }

  void fill_up() {
    for (size_t i = 0; samples_.size() < kMinDocuments; ++i) {
      Sample sample;
      sample.ids = {samples_.front().ids.front()};
      sequences_.push_back(filler(i));
      samples_.push_back(std::move(sample));
    }
  }

  void take(const Tensor& logits) {
    const size_t count = documents_.size();
    std::vector<int32_t> ids(count);
    parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
      for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        if (documents_[i].is_prompt) continue;
        const auto row = static_cast<int64_t>(i);
        ids[i] = choose(logits.rows(row, row + 1), *slots_[documents_[i].place]);
      }
    });
    MemoryPool& host = step_.pool().host();
    const auto rows = static_cast<int64_t>(count);
    Tensor losses = Tensor::zeros(host, {rows}, DType::f32, "losses"), none;
    const bool known = logits.device().has_bytes();
    if (known) {
      ops::cross_entropy(logits.rows(0, rows), Tensor::from<int32_t>(host, {rows}, ids), 0, 1, losses, none, {});
    }
    for (size_t i = 0; i < count; ++i) {
      const auto row = static_cast<int64_t>(i);
      if (documents_[i].is_prompt) {
        const Tensor behind = logits.rows(row, row + 1);
        stores_[documents_[i].place].logits = behind.clone(known ? host : step_.pool());
      } else {
        add(documents_[i].place, ids[i], -losses.data<const float>()[i]);
      }
    }
  }

  const Decoder& decoder_;
  const NextLogits& next_logits_;
  std::span<const AnsweredPrompt> prompts_;
  const AnswerOptions& options_;
  const StepContext& step_;
  const std::function<void(Answer)>& use_;
  std::vector<Slot> slots_;
  std::vector<Store> stores_;
  KvCache cache_;
  std::deque<Wanted> waiting_;
  // Of the pass.
  std::vector<Document> documents_;
  std::vector<Sample> samples_;
  std::vector<int64_t> sequences_;
};

}  // namespace

void sample_answers(const Decoder& decoder, const NextLogits& next_logits, std::span<const AnsweredPrompt> prompts,
                    const AnswerOptions& options, const StepContext& step, const std::function<void(Answer)>& use,
                    const std::function<bool()>& go_on) {
  check(options.sampling);
  for (const AnsweredPrompt& prompt : prompts) check_prompt(decoder.config(), prompt.ids);
  Sampling sampling(decoder, next_logits, prompts, options, step, use);
  while (go_on() && sampling.pass()) {
  }
}

}  // namespace nibble
