#include "nibble/recipes/reinforcement/rollout.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "nibble/core/base/error.h"

namespace nibble {

namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(double value) { return std::isnan(value) ? Json(nullptr) : Json(value); }

double read_number_or_null(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

Sample text_of(const Rollout& rollout) {
  Sample sample;
  sample.ids = rollout.prompt;
  sample.ids.insert(sample.ids.end(), rollout.answer.begin(), rollout.answer.end());
  sample.labels.assign(rollout.prompt.size(), kIgnoreLabel);
  sample.labels.insert(sample.labels.end(), rollout.answer.begin(), rollout.answer.end());
  return sample;
}

std::string write_rollouts(const std::vector<Rollout>& rollouts, const std::vector<std::string>& names,
                           const std::vector<std::pair<std::string, std::string>>& texts) {
  std::string lines;
  for (size_t i = 0; i < rollouts.size(); ++i) {
    const Rollout& rollout = rollouts[i];
    Json line = Json::object();
    if (!texts.empty()) {
      line["prompt"] = texts[i].first;
      line["completion"] = texts[i].second;
    }
    line["reward"] = number_or_null(rollout.reward);
    for (size_t k = 0; k < rollout.rewards.size(); ++k)
      line["rewards"][names.at(k)] = number_or_null(rollout.rewards[k]);
    if (rollout.advantages.empty()) line["advantage"] = rollout.advantage;
    line["truncated"] = rollout.truncated;
    line["prompt_ids"] = rollout.prompt;
    line["completion_ids"] = rollout.answer;
    const auto add = [&](const char* name, const auto& values) {
      if (!values.empty()) line[name] = values;
    };
    add("logprobs", rollout.sampled);
    add("old_logprobs", rollout.old);
    add("ref_logprobs", rollout.reference);
    add("values", rollout.values);
    add("token_rewards", rollout.token_rewards);
    add("returns", rollout.returns);
    add("advantages", rollout.advantages);
    line["position"] = rollout.position;
    line["sequence"] = rollout.sequence;
    line["record"] = rollout.record;
    lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return lines;
}

std::vector<Rollout> read_rollouts(const std::string& lines, const std::vector<std::string>& names) {
  std::vector<Rollout> rollouts;
  std::istringstream stream(lines);
  try {
    for (std::string text; std::getline(stream, text);) {
      const Json line = Json::parse(text);
      Rollout& rollout = rollouts.emplace_back();
      rollout.position = line.at("position").get<int64_t>();
      rollout.sequence = line.at("sequence").get<int64_t>();
      rollout.record = line.at("record").get<uint32_t>();
      rollout.prompt = line.at("prompt_ids").get<std::vector<int32_t>>();
      rollout.answer = line.at("completion_ids").get<std::vector<int32_t>>();
      rollout.reward = read_number_or_null(line.at("reward"));
      rollout.advantage = line.value("advantage", 0.0);
      rollout.truncated = line.at("truncated").get<bool>();
      const auto read = [&](const char* name, std::vector<float>& values) {
        if (line.contains(name)) values = line.at(name).get<std::vector<float>>();
      };
      read("logprobs", rollout.sampled);
      read("old_logprobs", rollout.old);
      read("ref_logprobs", rollout.reference);
      read("values", rollout.values);
      if (!line.contains("rewards")) continue;
      for (const std::string& name : names) rollout.rewards.push_back(read_number_or_null(line.at("rewards").at(name)));
    }
  } catch (const nlohmann::json::exception& error) {
    throw InputError("rollouts of a checkpoint", error.what(), "the checkpoint cannot be used");
  }
  return rollouts;
}

}  // namespace nibble
