/* The C interface of nibble, for programs in other languages.
 *
 * Every call that can fail takes a nibble_error, which may be NULL, and returns its code: 0, or the exit code that the
 * nibble program ends with for the same reason. No call prints, exits or keeps anything between calls but in the
 * objects it returns. Objects may be used from one thread at a time. Strings are UTF-8. */
#ifndef NIBBLE_C_H
#define NIBBLE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum nibble_code {
  NIBBLE_OK = 0,
  NIBBLE_USAGE = 2,     /* a wrong argument, recipe key or value */
  NIBBLE_INPUT = 3,     /* a file whose content cannot be used */
  NIBBLE_IO = 4,        /* reading, writing, space, memory */
  NIBBLE_NUMERIC = 5,   /* a loss, gradient or weight that is not finite */
  NIBBLE_INTERNAL = 70, /* a bug of nibble */
  NIBBLE_STOPPED = 75,  /* a callback asked to stop; a checkpoint was saved */
  NIBBLE_LOST_RANK = 76 /* a rank is lost or hangs */
};

/* One line: place, reason, remedy. */
typedef struct nibble_error {
  int code;
  char message[1024];
} nibble_error;

/* "0.1.0" */
const char* nibble_version(void);

/* A model for inference, with its tokenizer. */
typedef struct nibble_model nibble_model;

/* model_dir: Hugging Face directory, 16/32-bit or bitsandbytes 4-bit. adapter_dir: PEFT directory, or NULL. quantize:
 * "none", "nf4" or "fp4", or NULL for none. threads: 0 for all cores. Returns NULL on failure. */
nibble_model* nibble_model_open(const char* model_dir, const char* adapter_dir, const char* quantize, int threads,
                                nibble_error* error);
void nibble_model_close(nibble_model* model);

/* Writes at most `capacity` ids and sets *count to how many the text has. add_special: BOS and the like as the
 * tokenizer adds them. */
int nibble_encode(const nibble_model* model, const char* text, int add_special, int32_t* ids, size_t capacity,
                  size_t* count, nibble_error* error);

/* Writes at most `capacity` bytes with a 0 at the end and sets *length to the text's bytes. Special tokens give no
 * text. */
int nibble_decode(const nibble_model* model, const int32_t* ids, size_t count, char* text, size_t capacity,
                  size_t* length, nibble_error* error);

/* Called with each id as it is chosen; nonzero ends the generation after it. */
typedef int (*nibble_on_token)(int32_t id, void* user);

typedef struct nibble_generate_options {
  int64_t max_new_tokens;
  float temperature; /* 0: greedy */
  int64_t top_k;     /* 0: all */
  float top_p;       /* 1: all */
  uint64_t seed;
} nibble_generate_options;

/* Writes at most `capacity` of the new ids and sets *count to how many there are. options: NULL for 128 greedy tokens.
 * on_token may be NULL. */
int nibble_generate(nibble_model* model, const int32_t* prompt, size_t prompt_count,
                    const nibble_generate_options* options, nibble_on_token on_token, void* user, int32_t* ids,
                    size_t capacity, size_t* count, nibble_error* error);

/* Sum of the cross-entropy (natural log) of ids[1..], each predicted from those before it. */
int nibble_loss(nibble_model* model, const int32_t* ids, size_t count, double* loss_sum, nibble_error* error);

typedef struct nibble_step {
  int64_t step, total_steps;
  double loss, lr, grad_norm, tokens_per_second;
  int64_t peak_memory_bytes;
} nibble_step;

/* Each may be NULL. on_step: after every optimizer step; nonzero saves a checkpoint and stops with NIBBLE_STOPPED. */
typedef struct nibble_train_callbacks {
  int (*on_step)(const nibble_step* step, void* user);
  /* perplexity: NAN where the loss is not of next tokens */
  void (*on_evaluation)(int64_t step, double loss, double perplexity, void* user);
  void (*on_message)(const char* line, void* user);
  void* user;
} nibble_train_callbacks;

/* Runs a recipe (JSON text, as in a recipe file) with `override_count` overrides "key.path=value". callbacks: may be
 * NULL. The same call continues a run that was stopped. */
int nibble_train(const char* recipe_json, const char* const* overrides, size_t override_count,
                 const nibble_train_callbacks* callbacks, nibble_error* error);

/* Merges an adapter into its base and writes a model directory. base_dir: NULL for the one that the adapter names. */
int nibble_merge(const char* adapter_dir, const char* base_dir, const char* out_dir, nibble_error* error);

#ifdef __cplusplus
}
#endif

#endif
