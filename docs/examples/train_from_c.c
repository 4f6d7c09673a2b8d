/* Runs a recipe through the C interface, stops after three steps, goes on, and generates with the result.
 *   train_from_c MODEL_DIR DATA.jsonl RUN_DIR */

#include <nibble/nibble_c.h>
#include <stdio.h>

static int on_step(const nibble_step* step, void* user) {
  int* left = user;
  printf("step %lld of %lld: loss %.4f\n", (long long)step->step, (long long)step->total_steps, step->loss);
  return --*left == 0; /* nonzero: save a checkpoint and stop */
}

static int run(const char* recipe, const char* const* overrides, int steps, nibble_error* error) {
  nibble_train_callbacks callbacks = {0};
  callbacks.on_step = on_step;
  callbacks.user = &steps;
  return nibble_train(recipe, overrides, 3, &callbacks, error);
}

int main(int argc, char** argv) {
  const char* const recipe =
      "{\"adapter\": {\"r\": 4}, \"data\": {\"max_length\": 64}, \"train\": {\"steps\": 6}, \"optimizer\": {\"lr\": 1e-3}}";
  nibble_error error;
  char model_path[512], data[512], directory[512], adapter[512];
  const char* overrides[3] = {model_path, data, directory};
  int32_t ids[64];
  size_t count = 0;
  if (argc < 4) return fprintf(stderr, "usage: train_from_c MODEL_DIR DATA.jsonl RUN_DIR\n"), 2;
  snprintf(model_path, sizeof model_path, "model.path=%s", argv[1]);
  snprintf(data, sizeof data, "data.train=%s", argv[2]);
  snprintf(directory, sizeof directory, "output.dir=%s", argv[3]);
  snprintf(adapter, sizeof adapter, "%s/adapter", argv[3]);

  printf("nibble %s\n", nibble_version());
  if (run(recipe, overrides, 3, &error) != NIBBLE_STOPPED) return fprintf(stderr, "not stopped: %s\n", error.message), 1;
  printf("stopped: %s\n", error.message);
  if (run(recipe, overrides, 0, &error) != NIBBLE_OK) return fprintf(stderr, "error: %s\n", error.message), error.code;

  nibble_model* model = nibble_model_open(argv[1], adapter, NULL, 0, &error);
  if (model == NULL) return fprintf(stderr, "error: %s\n", error.message), error.code;
  if (nibble_encode(model, "Once upon a time", 1, ids, 64, &count, &error) == NIBBLE_OK) {
    const nibble_generate_options options = {.max_new_tokens = 16, .top_p = 1};
    int32_t answer[16];
    char text[512];
    size_t length = 0, said = 0;
    if (nibble_generate(model, ids, count, &options, NULL, NULL, answer, 16, &said, &error) == NIBBLE_OK &&
        nibble_decode(model, answer, said, text, sizeof text, &length, &error) == NIBBLE_OK) {
      printf("text:%s\n", text);
    }
  }
  nibble_model_close(model);
  if (error.code != NIBBLE_OK) fprintf(stderr, "error: %s\n", error.message);
  return error.code;
}
