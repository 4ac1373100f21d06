/* The fields of requests: see fields.h. */
#include "server/fields.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "server/request.h"

#define C TD_ROUTE_COMPLETIONS
#define H TD_ROUTE_CHAT
#define T TD_ROUTE_TOKENIZE
#define D TD_ROUTE_DETOKENIZE
#define E TD_ROUTE_EMBEDDINGS
#define M TD_ROUTE_MESSAGES
#define R TD_ROUTE_RESPONSES
#define G (C | H | M | R) /* routes that generate text */

/* ---- served ---- */

#define AT(f) offsetof(td_api_request, f), -1
#define AT_HAS(f) offsetof(td_api_request, f), offsetof(td_api_request, has_##f)
/* clang-format off */
#define DOUBLE(f, in, id) {#f, in, TD_FIELD_DOUBLE, TD_LIMIT_##id, AT(f)}
#define INT(f, in, id) {#f, in, TD_FIELD_INT, TD_LIMIT_##id, AT(f)}
#define BOOL(f, in) {#f, in, TD_FIELD_BOOL, 0, AT(f)}
#define STRING(f, in) {#f, in, TD_FIELD_STRING, 0, AT(f)}
#define ITEM(f, in) {#f, in, TD_FIELD_ITEM, 0, AT(f)}
#define MEMBER(name, in, kind) {name, in, TD_FIELD_##kind, 0, 0, -1} /* not in td_api_request */
/* clang-format on */

static const td_field served[] = {
    STRING(model, C | H | T | D | E),
    ITEM(prompt, C | T),
    ITEM(input, E),
    STRING(encoding_format, E),
    INT(dimensions, E, DIMENSIONS),
    {"normalize", E, TD_FIELD_BOOL, 0, AT(normalizes)},
    ITEM(messages, H | T),
    ITEM(tokens, D),
    {"max_tokens", C | H, TD_FIELD_INT, TD_LIMIT_MAX_TOKENS, AT_HAS(max_tokens)},
    {"max_completion_tokens", H, TD_FIELD_INT, TD_LIMIT_MAX_TOKENS, AT_HAS(max_completion_tokens)},
    DOUBLE(temperature, C | H, TEMPERATURE),
    DOUBLE(top_p, C | H, TOP_P),
    INT(top_k, C | H, TOP_K),
    DOUBLE(min_p, C | H, MIN_P),
    DOUBLE(presence_penalty, C | H, PRESENCE_PENALTY),
    DOUBLE(frequency_penalty, C | H, FREQUENCY_PENALTY),
    DOUBLE(repetition_penalty, C | H, REPETITION_PENALTY),
    ITEM(logit_bias, C | H),
    INT(min_tokens, C | H, MIN_TOKENS),
    ITEM(logprobs, C | H),
    INT(top_logprobs, H, TOP_LOGPROBS),
    BOOL(echo, C),
    {"prompt_logprobs", C | H, TD_FIELD_INT, TD_LIMIT_PROMPT_LOGPROBS, AT_HAS(prompt_logprobs)},
    {"seed", C | H, TD_FIELD_SEED, 0, AT_HAS(seed)},
    INT(n, C | H, N),
    INT(best_of, C, N),
    STRING(cache_salt, C | H),
    INT(priority, C | H | E, PRIORITY),
    INT(timeout_ms, C | H | E, TIMEOUT_MS),
    INT(ttft_timeout_ms, C | H | E, TTFT_TIMEOUT_MS),
    ITEM(stop, C | H),
    ITEM(stop_token_ids, C | H),
    BOOL(include_stop_str_in_output, C | H),
    ITEM(bad_words, C | H),
    BOOL(ignore_eos, C | H),
    BOOL(stream, C | H),
    ITEM(stream_options, C | H),
    ITEM(response_format, C | H),
    ITEM(structured_outputs, C | H),
    ITEM(guided_json, C | H),
    ITEM(guided_regex, C | H),
    ITEM(guided_choice, C | H),
    ITEM(guided_grammar, C | H),
    BOOL(include_reasoning, H),
    BOOL(return_token_ids, C | H),
    BOOL(skip_special_tokens, C | H),
    BOOL(add_special_tokens, C | T | E),
    BOOL(return_token_strs, T),
    {"add_generation_prompt", H | T, TD_FIELD_BOOL, 0, AT_HAS(add_generation_prompt)},
    BOOL(continue_final_message, H | T),
    ITEM(chat_template_kwargs, H | T),
    STRING(reasoning_effort, H | T),
    ITEM(tools, H | T),
    ITEM(tool_choice, H | T),
    BOOL(parallel_tool_calls, H | T),

    /* Anthropic's messages, OpenAI's responses: read by their translations. First names that chats share */
    MEMBER("model", M | R, ITEM),
    MEMBER("stream", M | R, ITEM),
    MEMBER("temperature", M | R, ITEM),
    MEMBER("top_p", M | R, ITEM),
    MEMBER("top_k", M | R, ITEM),
    MEMBER("min_p", M | R, ITEM),
    MEMBER("presence_penalty", M | R, ITEM),
    MEMBER("frequency_penalty", M | R, ITEM),
    MEMBER("repetition_penalty", M | R, ITEM),
    MEMBER("logit_bias", M | R, ITEM),
    MEMBER("seed", M | R, ITEM),
    MEMBER("min_tokens", M | R, ITEM),
    MEMBER("stop_token_ids", M | R, ITEM),
    MEMBER("bad_words", M | R, ITEM),
    MEMBER("ignore_eos", M | R, ITEM),
    MEMBER("include_stop_str_in_output", M | R, ITEM),
    MEMBER("skip_special_tokens", M | R, ITEM),
    MEMBER("structured_outputs", M | R, ITEM),
    MEMBER("guided_json", M | R, ITEM),
    MEMBER("guided_regex", M | R, ITEM),
    MEMBER("guided_choice", M | R, ITEM),
    MEMBER("guided_grammar", M | R, ITEM),
    MEMBER("priority", M | R, ITEM),
    MEMBER("cache_salt", M | R, ITEM),
    MEMBER("timeout_ms", M | R, ITEM),
    MEMBER("ttft_timeout_ms", M | R, ITEM),
    MEMBER("chat_template_kwargs", M | R, ITEM),
    MEMBER("tools", M | R, ITEM),
    MEMBER("tool_choice", M | R, ITEM),
    MEMBER("messages", M, ITEM),
    MEMBER("max_tokens", M, ITEM),
    MEMBER("system", M, ITEM),
    MEMBER("stop_sequences", M, ITEM),
    MEMBER("thinking", M, ITEM),
    MEMBER("output_config", M, ITEM),
    MEMBER("output_format", M, ITEM),
    MEMBER("input", R, ITEM),
    MEMBER("instructions", R, ITEM),
    MEMBER("max_output_tokens", R, ITEM),
    MEMBER("parallel_tool_calls", R, ITEM),
    MEMBER("text", R, ITEM),
    MEMBER("reasoning", R, ITEM),
    MEMBER("include", R, ITEM),
    MEMBER("top_logprobs", R, ITEM),
    MEMBER("stop", R, ITEM),

    BOOL(include_usage, TD_IN_STREAM_OPTIONS),
    BOOL(continuous_usage_stats, TD_IN_STREAM_OPTIONS),
    MEMBER("type", TD_IN_RESPONSE_FORMAT | TD_IN_PART, STRING),
    MEMBER("json_schema", TD_IN_RESPONSE_FORMAT, ITEM),
    MEMBER("format", TD_IN_RESPONSE_FORMAT, ITEM),
    MEMBER("structures", TD_IN_RESPONSE_FORMAT, ITEM),
    MEMBER("triggers", TD_IN_RESPONSE_FORMAT, ITEM),
    MEMBER("structural_tag", TD_IN_STRUCTURED, ITEM),
    MEMBER("json", TD_IN_STRUCTURED, ITEM),
    MEMBER("regex", TD_IN_STRUCTURED, ITEM),
    MEMBER("choice", TD_IN_STRUCTURED, ITEM),
    MEMBER("grammar", TD_IN_STRUCTURED, ITEM),
    MEMBER("json_object", TD_IN_STRUCTURED, ITEM),
    MEMBER("text", TD_IN_PART, STRING),
    MEMBER("role", TD_IN_MESSAGE, STRING),
    MEMBER("content", TD_IN_MESSAGE, ITEM),
    MEMBER("name", TD_IN_MESSAGE, STRING),
    MEMBER("tool_call_id", TD_IN_MESSAGE, STRING),
    MEMBER("tool_calls", TD_IN_MESSAGE, ITEM),
    MEMBER("reasoning_content", TD_IN_MESSAGE, ITEM),
    MEMBER("reasoning", TD_IN_MESSAGE, ITEM),
    MEMBER("thinking", TD_IN_MESSAGE, ITEM),
};

/* ---- not served ---- */

/* Values that are accepted, besides null, because they ask for what happens anyway. */
enum {
  ZERO = 1,
  ONE = 2,
  MINUS_ONE = 4,
  OFF = 8,                   /* false */
  ON = 16,                   /* true */
  LIST = 32,                 /* [] */
  OBJECT = 64,               /* {}, or all members null */
  STRING = 128,              /* "" */
  AUTO = 256,                /* "none", "auto" */
  ONLY_TEXT = 512,           /* ["text"] */
  ANY_VALUE = 1024,          /* any value: no answer depends on it */
  REASONING_SEPARATE = 2048, /* "auto", "deepseek": reasoning is separate from content */
};

/* Names by where they occur and which values are accepted, grouped by the API they come from. Many names with
 * ANY_VALUE refine another field that is refused when it is on, so on their own they have no effect. */
static const struct {
  unsigned in, off;
  const char *names;
} unserved[] = {
    /* OpenAI: chat and completions */
    {G | T | D | E, ANY_VALUE,
     "user metadata store safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options "
     "service_tier verbosity prediction cache_control"},
    {C | M, ZERO, "top_logprobs"},
    {M | R, OFF | ZERO, "logprobs"},
    {M | R, ONE, "n"},
    {H | M | R, OFF, "echo"}, /* vLLM: repeats the last message before the answer */
    {G, STRING, "suffix"},
    {C, LIST, "tools"},
    {G | T, LIST, "functions"},
    {C, AUTO, "tool_choice"},
    {G | T, AUTO, "function_call"},
    {C, OFF | ON, "parallel_tool_calls"},
    {M, ON, "parallel_tool_calls"},
    {G, ONLY_TEXT, "modalities"},
    {G, 0, "audio web_search_options moderation"},
    {C, 0, "reasoning_effort"},
    {TD_IN_STREAM_OPTIONS, OFF, "include_obfuscation"},
    {TD_IN_RESPONSE_FORMAT, 0, "schema grammar"},
    {TD_IN_STRUCTURED, 0, "whitespace_pattern"},
    {TD_IN_STRUCTURED, OFF, "disable_any_whitespace disable_additional_properties"},
    {TD_IN_STRUCTURED, OFF | ON, "disable_fallback"},
    /* OpenAI: responses; clients send these fields to the other routes too */
    {G | T, STRING, "input instructions"},
    {G, 0, "max_output_tokens previous_response_id conversation"},
    {C | H | M, 0, "max_tool_calls previous_response"},
    {C | H | M, OFF, "background enable_response_messages"},
    {C | H | M, LIST, "previous_input_messages include"},
    {C | H | M, OBJECT, "text"},
    /* vLLM: ChatCompletionRequest, CompletionRequest, SamplingParams; guided_* of older versions */
    {G | T | D | E, ANY_VALUE,
     "request_id session_id truncation_side media_io_kwargs mm_processor_kwargs stream_interval "
     "return_mm_kwargs spaces_between_special_tokens"},
    {G, ZERO, "routed_experts_prompt_start"},
    {G, ONE, "length_penalty"},
    {G, OFF,
     "use_beam_search early_stopping return_tokens_as_token_ids "
     "return_token_offsets return_prompt_text watermarking guided_json_object"},
    {G, ON, "detokenize"},
    {C, OFF | ON, "include_reasoning"}, /* concerns chats only */
    {M | R, ON, "include_reasoning add_generation_prompt"},
    {M | R, OFF, "continue_final_message return_token_ids"},
    {G, LIST, "logits_processors"},
    {G, STRING, "guided_decoding_backend guided_whitespace_pattern structural_tag"},
    {G, OBJECT, "vllm_xargs extra_args kv_transfer_params ec_transfer_params"},
    {G, 0,
     "logprob_token_ids allowed_token_ids guided_decoding "
     "thinking_token_budget repetition_detection prompt_embeds lora_request"},
    {G | T | E, 0, "truncate_prompt_tokens"},
    {E, ANY_VALUE, "cache_salt"}, /* embeddings share no prefix pages */
    {E, ON, "use_activation"},
    {E, ONE | MINUS_ONE, "embd_normalize"},
    {E, LIST | STRING, "lora_path messages"},
    {E, STRING, "instruction input_type prompt prompt_name task content embed_dtype endianness"},
    {G | T, LIST, "documents"},
    {G | T, STRING, "chat_template"},       /* a request never supplies a template */
    {H | M | R, OFF, "add_special_tokens"}, /* the chat template adds them */
    {H | M | R, ONE, "best_of"},
    /* llama.cpp: params_from_json_cmpl, the chat parser, infill */
    {G | T | D | E, ANY_VALUE,
     "cache_prompt id_slot slot_id n_keep n_discard n_cache_reuse timings_per_token return_progress "
     "post_sampling_probs backend_sampling verbose dynatemp_exponent repeat_last_n penalty_last_n "
     "penalize_nl dry_base dry_allowed_length dry_penalty_last_n dry_sequence_breakers xtc_threshold "
     "mirostat_tau mirostat_eta adaptive_decay stream_reasoning parse_tool_calls chat_format speculative "
     "speculative.n_max speculative.n_min speculative.p_min speculative.type speculative.ngram_size_n "
     "speculative.ngram_size_m speculative.ngram_min_hits sse_ping_interval reasoning_control grammar_type "
     "reasoning_budget_start_tag reasoning_budget_end_tag reasoning_budget_end_tags "
     "reasoning_budget_message"},
    {G, ZERO, "mirostat dry_multiplier xtc_probability dynatemp_range n_probs min_keep n_indent"},
    {G, ONE, "repeat_penalty n_cmpl typical_p typ_p tfs_z"},
    {G, MINUS_ONE, "n_predict"},
    {G, ZERO | MINUS_ONE, "top_n_sigma adaptive_target t_max_predict_ms t_max_prompt_ms"},
    {G, MINUS_ONE, "reasoning_budget reasoning_budget_tokens thinking_budget_tokens"},
    {G, OFF, "grammar_lazy return_tokens thinking_forced_open penalty_prompt"},
    {G, STRING, "grammar input_prefix input_suffix generation_prompt chat_parser"},
    {G, LIST,
     "lora samplers grammar_triggers preserved_tokens response_fields input_extra multimodal_data "
     "image_data"},
    {G, LIST | STRING, "sampler_seq"},
    {C, AUTO, "reasoning_format"},
    {H | M | R, REASONING_SEPARATE, "reasoning_format"},
    {G, OFF | ON, "reasoning_in_content"},
    /* SGLang: its OpenAI routes, and /generate's sampling_params */
    {G | T | D | E, ANY_VALUE,
     "rid extra_key custom_labels ngram_corpus_id images_config max_dynamic_patch min_dynamic_patch "
     "use_audio_in_video routed_dp_rank disagg_prefill_dp_rank data_parallel_rank"},
    {G, ZERO, "routed_experts_start_len min_new_tokens top_logprobs_num"},
    {G, OFF,
     "return_hidden_states return_routed_experts return_cached_tokens_details return_prompt_token_ids "
     "return_meta_info no_stop_trim return_logprob return_text_in_logprobs"},
    {C, OFF | ON, "separate_reasoning"},
    {H | M | R, ON, "separate_reasoning"},
    {G, STRING | LIST, "lora_path stop_regex custom_logit_processor"},
    {G, STRING, "regex ebnf"},
    {G, OBJECT, "custom_params session_params sampling_params"},
    {G, 0,
     "json_schema task input_ids input_embeds max_new_tokens sampling_seed bootstrap_host bootstrap_port "
     "bootstrap_room logprob_start_len token_ids_logprob video_data audio_data"},
    /* Anthropic: messages */
    {G | T | D | E, ANY_VALUE, "anthropic_version anthropic_beta betas inference_geo"},
    {G, LIST, "stop_sequences mcp_servers"},
    {G | T, STRING | LIST, "system"},
    {G | T, 0, "thinking"},
    {G, 0, "max_tokens_to_sample output_config output_format container"},
    {C | H, 0, "context_management"},
    {M, ANY_VALUE,
     "context_management speed user_profile_id diagnostics billing_policy fallback_credit_token "
     "workspace_id"},
    {G, LIST, "fallbacks"},
    {G, 0, "compaction thread"},
    /* OpenAI: responses; vLLM's and SGLang's */
    {R, ANY_VALUE,
     "truncation stream_options client_metadata max_tool_calls context_management access_programs image"},
    {R, OFF, "background enable_response_messages"},
    {R, LIST, "previous_input_messages"},
    {R, 0, "previous_response prompt"},
    /* Hugging Face's generate, TGI, text-generation-webui */
    {G, ZERO,
     "no_repeat_ngram_size penalty_alpha diversity_penalty top_a epsilon_cutoff eta_cutoff "
     "smoothing_factor"},
    {G, ONE, "num_beams num_return_sequences guidance_scale encoder_repetition_penalty"},
    {G, OFF, "watermark return_full_text dynamic_temperature temperature_last"},
    {G, STRING, "negative_prompt custom_token_bans"},
    {G, OBJECT, "parameters"},
    {G, 0, "do_sample inputs truncate max_length min_length logit_processors"},
    /* Ollama, DashScope, DeepSeek, Mistral, OpenRouter, Azure; extra fields of the openai client's users */
    {G | T | D | E, ANY_VALUE, "keep_alive models mode"}, /* the last two differ from `model` by one letter */
    {G, OBJECT, "options extra_body"},
    {G, STRING, "format"},
    {G, MINUS_ONE, "num_predict"},
    {G, OFF, "raw enable_search safe_prompt"},
    {G, LIST, "images transforms plugins data_sources"},
    {G | T, OBJECT, "reasoning"},
    {G | T, 0, "think enable_thinking thinking_budget prompt_mode random_seed"},
    /* messages and their parts; `context` (Azure) and `time` differ from a served name by one letter */
    {TD_IN_MESSAGE | TD_IN_PART, ANY_VALUE,
     "id index timestamp time created created_at updated_at metadata cache_control annotations user"},
    {TD_IN_MESSAGE, ANY_VALUE,
     "type status model context provider_specific_fields thinking_blocks reasoning_details"},
    {TD_IN_MESSAGE, LIST, "tools images"},
    {TD_IN_MESSAGE, STRING, "refusal"},
    {TD_IN_MESSAGE, OFF, "prefix partial"}, /* our field for this is continue_final_message */
    {TD_IN_MESSAGE, 0, "function_call audio task"},
    {TD_IN_PART, ANY_VALUE, "name citations reasoning_content reasoning"},
    {TD_IN_PART, 0, "image_url image input_audio audio_url video_url video file thinking refusal source"},
};

static bool is_word(const cJSON *v, const char *word)
{
  return cJSON_IsString(v) && strcmp(v->valuestring, word) == 0;
}

static bool all_null(const cJSON *object)
{
  for (const cJSON *m = object->child; m; m = m->next)
    if (!cJSON_IsNull(m))
      return false;
  return true;
}

static bool is_off(const cJSON *v, unsigned off)
{
  if (off & ANY_VALUE)
    return true;
  if (cJSON_IsNumber(v))
    return (v->valuedouble == 0 && (off & ZERO)) || (v->valuedouble == 1 && (off & ONE)) ||
           (v->valuedouble == -1 && (off & MINUS_ONE));
  if (cJSON_IsBool(v))
    return off & (cJSON_IsTrue(v) ? ON : OFF);
  if (cJSON_IsObject(v))
    return (off & OBJECT) && all_null(v);
  if (cJSON_IsArray(v))
    return v->child ? (off & ONLY_TEXT) && !v->child->next && is_word(v->child, "text") : off & LIST;
  return (is_word(v, "") && (off & STRING)) || (is_word(v, "auto") && (off & (AUTO | REASONING_SEPARATE))) ||
         (is_word(v, "none") && (off & AUTO)) || (is_word(v, "deepseek") && (off & REASONING_SEPARATE));
}

/* ---- looking up ---- */

#define COUNT(a) (sizeof(a) / sizeof(a)[0])
enum { ENTRIES_MAX = 768, NAME_BYTES = 40 };

/* Both tables in one array with precomputed lengths, because a body may hold very many names to look up. */
typedef struct entry {
  unsigned in, off;
  const td_field *served; /* NULL: a row of `unserved` */
  size_t n, n_plain;
  char name[NAME_BYTES], plain[NAME_BYTES];
} entry;

static entry entries[ENTRIES_MAX];
static size_t n_entries;
static pthread_once_t entries_once = PTHREAD_ONCE_INIT;

/* The name in lower case, without '_', '-' and blanks, to compare misspelt names. Returns its length;
 * NAME_BYTES means that it is longer than any name of ours. */
static size_t plain_name(const char *name, size_t n, char *out)
{
  size_t k = 0;
  for (size_t i = 0; i < n && k < NAME_BYTES; i++)
    if (!strchr("_- \t\r\n", name[i]))
      out[k++] = (char)tolower((unsigned char)name[i]);
  return k;
}

static void add_entry(const char *name, size_t n, unsigned in, unsigned off, const td_field *f)
{
  TD_BUG_ON(n_entries == ENTRIES_MAX || n >= NAME_BYTES);
  entry *e = &entries[n_entries++];
  *e = (entry){.in = in, .off = off, .served = f, .n = n};
  memcpy(e->name, name, n);
  e->n_plain = plain_name(name, n, e->plain);
}

static void make_entries(void)
{
  for (size_t i = 0; i < COUNT(served); i++)
    add_entry(served[i].name, strlen(served[i].name), served[i].in, 0, &served[i]);
  for (size_t i = 0; i < COUNT(unserved); i++)
    for (const char *at = unserved[i].names; *at; at += strspn(at, " ")) {
      add_entry(at, strcspn(at, " "), unserved[i].in, unserved[i].off, NULL);
      at += strcspn(at, " ");
    }
}

static const entry *find(const char *name, unsigned in)
{
  size_t n = strlen(name);
  for (const entry *e = entries; e < entries + n_entries; e++)
    if (e->n == n && (e->in & in) && memcmp(e->name, name, n) == 0)
      return e;
  return NULL;
}

static bool is_served(const char *name, unsigned in)
{
  const entry *e = find(name, in);
  return e && e->served;
}

/* ---- near misses ---- */

enum { NEAR_LETTERS = 4 }; /* shorter names are too often one letter apart by chance */

/* Whether a and b differ by one inserted, deleted or replaced letter, or by two swapped neighbours. */
static bool is_letter_off(const char *a, size_t na, const char *b, size_t nb)
{
  if (na < nb)
    return is_letter_off(b, nb, a, na);
  if (na - nb > 1)
    return false;
  size_t i = 0;
  while (i < nb && a[i] == b[i])
    i++;
  if (na > nb)
    return memcmp(a + i + 1, b + i, nb - i) == 0;
  if (i + 1 < na && a[i] == b[i + 1] && a[i + 1] == b[i] && memcmp(a + i + 2, b + i + 2, na - i - 2) == 0)
    return true;
  return i == na || memcmp(a + i + 1, b + i + 1, na - i - 1) == 0;
}

/* The field that was probably meant: preferably one with the same letters, served or not, otherwise a served
 * one that is one letter off. NULL: none. */
static const entry *find_meant(const char *name, unsigned in)
{
  char plain[NAME_BYTES];
  size_t n = plain_name(name, strlen(name), plain);
  const entry *near = NULL;
  for (const entry *e = entries; e < entries + n_entries && n < NAME_BYTES; e++) {
    if (!(e->in & in) || (e->off & ANY_VALUE))
      continue;
    if (e->n_plain == n && memcmp(e->plain, plain, n) == 0)
      return e;
    if (!near && e->served && n >= NEAR_LETTERS && e->n_plain >= NEAR_LETTERS &&
        is_letter_off(plain, n, e->plain, e->n_plain))
      near = e;
  }
  return near;
}

/* ---- judging ---- */

static void full_name(const char *path, const char *name, char *out, size_t n)
{
  snprintf(out, n, "%s%.100s", path, *name ? name : "\"\"");
}

static bool refuse(td_api_error *e, const char *code, const char *path, const char *name, const char *text)
{
  char full[160];
  full_name(path, name, full, sizeof full);
  td_api_error_set(e, 400, code, full, "'%s' %s", full, text);
  return false;
}

bool td_fields_invalid(td_api_error *e, const char *path, const char *name, const char *text)
{
  return refuse(e, "invalid_value", path, name, text);
}

bool td_fields_unsupported(td_api_error *e, const char *path, const char *name, const char *text)
{
  return refuse(e, "unsupported_parameter", path, name, text);
}

static bool near_miss(td_api_error *e, const char *path, const char *name, const char *meant)
{
  char text[NAME_BYTES + 64];
  snprintf(text, sizeof text, "is not a field; is '%s' meant?", meant);
  return td_fields_unsupported(e, path, name, text);
}

/* The name is in no row for this place. If the chat or completions route serves it, the error names that
 * route. A field that matters only for generation is ignored by /tokenize and /detokenize. */
static bool judge_unknown(const char *name, unsigned in, const char *path, td_unknown *unknown,
                          td_api_error *e)
{
  if (name[strspn(name, " \t\r\n")] == '\0')
    return td_fields_unsupported(e, path, name, "is not a field: its name is empty");
  if ((in & G) && is_served(name, H))
    return td_fields_unsupported(e, path, name, "is a field of /v1/chat/completions, not of this route");
  if ((in & G) && is_served(name, C))
    return td_fields_unsupported(e, path, name, "is a field of /v1/completions, not of this route");
  const entry *meant = (in & (T | D)) && is_served(name, C | H | T | D) ? NULL : find_meant(name, in);
  if (meant)
    return near_miss(e, path, name, meant->name);
  if (unknown->strict)
    return td_fields_unsupported(e, path, name, "is not a field of this route");
  td_unknown_add(unknown, path, name);
  return true;
}

bool td_fields_check(const cJSON *m, unsigned in, const char *path, td_unknown *unknown, const td_field **out,
                     td_api_error *e)
{
  pthread_once(&entries_once, make_entries);
  *out = NULL;
  if (cJSON_IsNull(m))
    return true;
  const entry *f = find(m->string, in);
  if (!f)
    return judge_unknown(m->string, in, path, unknown, e);
  *out = f->served;
  return f->served || is_off(m, f->off) || td_fields_unsupported(e, path, m->string, "is not served");
}
