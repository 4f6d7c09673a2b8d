#pragma once
// Questions with choices: which one a model finds most likely, as lm-evaluation-harness counts it.

#include <string>
#include <vector>

#include "nibble/core/data/data_options.h"
#include "nibble/core/models/decoder.h"
#include "nibble/core/text/tokenizers/tokenizer.h"

namespace nibble {

struct ChoiceQuestion {
  std::string prompt;
  std::vector<std::string> choices;  ///< at least two
  size_t answer = 0;                 ///< index of the right one
  std::string place;                 ///< "file:line:column" or "file:row N"
};

/// Reads the questions of data files, of directories their validation or test split:
/// {"question"|"prompt"|"query"|"ctx": text, "choices"|"options"|"endings": [texts] or
/// {"text": [...], "label": [...]}, "answer"|"label"|"gold"|"answerKey": an index from 0, a letter or label, or the
/// text of the choice}; the choices may be JSON in a text, as CSV has it. Throws InputError naming the line and the
/// field.
std::vector<ChoiceQuestion> read_choice_questions(const std::vector<DataSource>& sources);

struct ChoiceAccuracy {
  int64_t asked = 0;
  int64_t right = 0;             ///< by the sum of the log probabilities ("acc")
  int64_t right_normalized = 0;  ///< by that sum over the choice's bytes ("acc_norm")
  double share() const { return asked == 0 ? 0 : static_cast<double>(right) / static_cast<double>(asked); }
  double share_normalized() const {
    return asked == 0 ? 0 : static_cast<double>(right_normalized) / static_cast<double>(asked);
  }
};

/// Asks the first `limit` questions (0: all). A choice follows its prompt after a space, unless either brings one; the
/// prompt's tokens are those of the prompt alone, without blanks at its end, which belong to the choices. Throws
/// InputError naming a question whose choice gives no token, NumericError where a log probability is not finite.
ChoiceAccuracy multiple_choice(Decoder& model, const Tokenizer& tokenizer, const std::vector<ChoiceQuestion>& questions,
                               int64_t limit, const StepContext& step);

}  // namespace nibble
