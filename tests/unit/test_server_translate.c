/* Bodies of Anthropic's messages and OpenAI's responses: the chat that each becomes, byte for byte, or its
 * error. Quotes are written as ' here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "config/limits.h"
#include "server/translate.h"

static char *quoted(const char *text)
{
  char *copy = strdup(text);
  assert_non_null(copy);
  for (char *c = copy; *c; c++)
    *c = *c == '\'' ? '"' : *c;
  return copy;
}

typedef struct said {
  char *chat;       /* NULL: refused */
  char error[1400]; /* "status code param: message" */
  char ignored[sizeof((td_unknown *)0)->names], echo[70000];
} said;

static void translate(const td_api *api, bool strict, bool drops_billing_line, const char *body, said *out)
{
  static td_call call;
  td_json_limits limits = {64, 65536, TD_ERR_REQUEST};
  td_error err;
  cJSON *root;
  char *json = quoted(body);
  memset(&call, 0, sizeof call);
  call.api = api;
  call.strict_fields = strict;
  call.drops_billing_line = drops_billing_line;
  if (td_json_parse(json, strlen(json), &limits, &root, &err) != TD_OK)
    fail_msg("not JSON: %s: %s", json, err.message);
  free(json);
  cJSON *chat = api->translate(&call, root);
  cJSON_Delete(root);
  out->chat = chat ? cJSON_PrintUnformatted(chat) : NULL;
  cJSON_Delete(chat);
  snprintf(out->error, sizeof out->error, "%d %s %s: %s", call.error.status,
           call.error.code ? call.error.code : "", call.error.param, call.error.message);
  snprintf(out->ignored, sizeof out->ignored, "%s", call.request.unknown.names);
  snprintf(out->echo, sizeof out->echo, "%s", call.echo.data ? call.echo.data : "");
  td_buf_deinit(&call.echo);
}

/* want: the chat, or, if it begins with a status, the error. */
typedef struct example {
  const char *body, *want;
} example;

static void check(const td_api *api, const example *all, size_t n)
{
  for (size_t i = 0; i < n; i++) {
    said s;
    char *want = all[i].want[0] == '{' ? quoted(all[i].want) : strdup(all[i].want);
    translate(api, false, false, all[i].body, &s);
    const char *got = s.chat ? s.chat : s.error;
    if (strcmp(got, want) != 0)
      fail_msg("%s\n becomes %s\n and not %s", all[i].body, got, want);
    free(s.chat);
    free(want);
  }
}

#define CHECK(api, ...)                                                                                      \
  do {                                                                                                       \
    static const example all[] = {__VA_ARGS__};                                                              \
    check(api, all, sizeof all / sizeof *all);                                                               \
  } while (0)

/* ---- Anthropic ---- */

#define ASK "'max_tokens':5,'messages':[{'role':'user','content':'x'}]"
#define MADE(messages, rest) "{'messages':[" messages "],'max_tokens':5" rest "}"
#define PART(text) "{'type':'text','text':'" text "'}"
#define USER(text) "{'role':'user','content':[" PART(text) "]}"
#define X USER("x")

static void test_messages(void **state)
{
  CHECK(
      &td_api_messages, {"{" ASK "}", MADE(X, "")},
      {"[]", "400 invalid_value : the body must be a JSON object"},
      {"{'max_tokens':5}", "400 invalid_value messages: 'messages' must be an array of at least one message"},
      {"{'max_tokens':5,'messages':[]}",
       "400 invalid_value messages: 'messages' must be an array of at least one message"},
      {"{'messages':[{'role':'user','content':'x'}]}",
       "400 invalid_value max_tokens: 'max_tokens' is required and must be a number"},
      {"{'max_tokens':'5','messages':[1]}",
       "400 invalid_value max_tokens: 'max_tokens' is required and must be a number"},
      {"{'max_tokens':5,'messages':[1]}",
       "400 invalid_value messages[0].role: 'messages[0].role' must be user or assistant"},
      {"{'max_tokens':5,'messages':[{'role':'user','content':'x'},{'role':'tool','content':'x'}]}",
       "400 invalid_value messages[1].role: 'messages[1].role' must be user or assistant"},
      {"{'max_tokens':5,'messages':[{'role':'user','content':7}]}",
       "400 invalid_value messages[0].content: 'messages[0].content' must be a string or an array of blocks"},
      {"{'max_tokens':5,'messages':[{'role':'user','content':[]}]}", "{'messages':[],'max_tokens':5}"},
      {"{'max_tokens':5,'messages':[{'role':'system','content':'s'},{'role':'user','content':[{'type':'text',"
       "'text':'a'},{'type':'text','text':'b'}]}]}",
       MADE("{'role':'system','content':[" PART("s") "]},{'role':'user','content':[" PART("a") "," PART(
                "b") "]}",
            "")},
      {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'text','text':1}]}]}",
       "400 invalid_value messages[0].content[0].text: 'messages[0].content[0].text' is required and must be "
       "a string"},
      {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'image'}]}]"
       "}",
       "400 unsupported_parameter messages[0].content[1].type: 'messages[0].content[1].type' is served as "
       "text, tool_use, "
       "tool_result and thinking, each in its role"});
  /* thoughts, calls and results, each in its role */
  CHECK(&td_api_messages,
        {
            "{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'thinking','thinking':'hm'},"
            "{'type':'thinking','thinking':'more'},{'type':'redacted_thinking','data':'z'},{'type':'text','"
            "text':'"
            "a'},"
            "{'type':'tool_use','id':'i','name':'f','input':{'a':[1]}},{'type':'tool_use','id':'j','name':'g'"
            ",'"
            "input':{}}]},"
            "{'role':'user','content':[{'type':'text','text':'b'},{'type':'tool_result','tool_use_id':'i','"
            "content':'r'},"
            "{'type':'tool_result','tool_use_id':'j'},{'type':'text','text':'c'},"
            "{'type':'tool_result','tool_use_id':'k','content':[{'type':'text','text':'1'},{'type':'text','"
            "text':'"
            "2'}]},"
            "{'type':'tool_result','tool_use_id':'l','content':[]},{'type':'tool_result','tool_use_id':'m','"
            "content':null}]}]}",
            // clang-format off
       "{'messages':[{'role':'assistant','reasoning_content':'hm','content':[" PART("a")
       "],'tool_calls':[{'function':{'name':'f','arguments':'{\\'a\\':[1]}'},'id':'i',"
       "'type':'function'},{'function':{'name':'g','arguments':'{}'},'id':'j','type':'function'}]},"
       USER("b") ",{'role':'tool','tool_call_id':'i','content':[" PART("r")
       "]},{'role':'tool','tool_call_id':'j','content':[" PART("") "]}," USER("c")
       ",{'role':'tool','tool_call_id':'k','content':[" PART("1") "," PART("2")
       "]},{'role':'tool','tool_call_id':'l','content':[" PART("")
       "]},{'role':'tool','tool_call_id':'m','content':[" PART("") "]}],'max_tokens':5}"
            // clang-format on
        },
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_result','content':'r'}]}]}",
         "400 invalid_value messages[0].content[0].tool_use_id: 'messages[0].content[0].tool_use_id' is "
         "required and must be "
         "a string"},
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'i','"
         "content':["
         "{'type':'image','text':'x'}]}]}]}",
         "400 unsupported_parameter messages[0].content[0].content: 'messages[0].content[0].content' is "
         "served "
         "as text"},
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'i','"
         "content':["
         "{'type':'text'}]}]}]}",
         "400 unsupported_parameter messages[0].content[0].content: 'messages[0].content[0].content' is "
         "served "
         "as text"},
        {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_result','tool_use_id':'i'}"
         "]}"
         "]}",
         "400 unsupported_parameter messages[0].content[0].type: 'messages[0].content[0].type' is served as "
         "text, tool_use, "
         "tool_result and thinking, each in its role"},
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_use','id':'i','name':'f','"
         "input':"
         "{}}]}]}",
         "400 unsupported_parameter messages[0].content[0].type: 'messages[0].content[0].type' is served as "
         "text, tool_use, "
         "tool_result and thinking, each in its role"},
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'thinking','thinking':'hm'}]}]}",
         "400 unsupported_parameter messages[0].content[0].type: 'messages[0].content[0].type' is served as "
         "text, tool_use, "
         "tool_result and thinking, each in its role"},
        {"{'max_tokens':5,'messages':[{'role':'user','content':[{'type':'redacted_thinking'}]}]}",
         "400 unsupported_parameter messages[0].content[0].type: 'messages[0].content[0].type' is served as "
         "text, tool_use, "
         "tool_result and thinking, each in its role"},
        {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_use','name':'f','input':{}"
         "}]"
         "}]}",
         "400 invalid_value messages[0].content[0].id: 'messages[0].content[0].id' is required and must be a "
         "string"},
        {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'i','input':{}}]"
         "}]"
         "}",
         "400 invalid_value messages[0].content[0].name: 'messages[0].content[0].name' is required and must "
         "be "
         "a string"},
        {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'i','name':'f','"
         "input':'{}'}]}]}",
         "400 invalid_value messages[0].content[0].input: 'messages[0].content[0].input' is required and "
         "must "
         "be an object"});
  /* the answer's beginning is gone on with, unless it has called */
  CHECK(&td_api_messages,
        {"{'max_tokens':5,'messages':[{'role':'assistant','content':'a'}]}",
         MADE("{'role':'assistant','content':[" PART("a") "]}", ",'continue_final_message':true")},
        {"{'max_tokens':5,'messages':[{'role':'assistant','content':'a'},{'role':'user','content':'x'}]}",
         MADE("{'role':'assistant','content':[" PART("a") "]}," X, "")},
        {"{'max_tokens':5,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'i','name':'f','"
         "input':{}}]}]}",
         MADE("{'role':'assistant','tool_calls':[{'function':{'name':'f','arguments':'{}'},'id':'i','type':'"
              "function'}]}",
              "")});
}

static void test_messages_system(void **state)
{
  CHECK(&td_api_messages,
        {"{" ASK ",'system':'s'}", MADE("{'role':'system','content':[" PART("s") "]}," X, "")},
        {"{" ASK ",'system':null}", MADE(X, "")}, {"{" ASK ",'system':[]}", MADE(X, "")},
        {"{" ASK ",'system':''}", MADE("{'role':'system','content':[" PART("") "]}," X, "")},
        {"{" ASK ",'system':[{'type':'text','text':'a'},{'type':'text','text':''}]}",
         MADE("{'role':'system','content':[" PART("a") "," PART("") "]}," X, "")},
        {"{" ASK ",'system':7}",
         "400 invalid_value system: 'system' must be a string or an array of text blocks"},
        {"{" ASK ",'system':[{'type':'text'}]}",
         "400 invalid_value system: 'system' must be a string or an array of text blocks"},
        {"{" ASK ",'system':[{'type':'x','text':'a'}]}",
         "400 invalid_value system: 'system' must be a string or an array of text blocks"});
  static const struct {
    const char *system;
    bool drops;
    const char *want; /* of the system message; "": there is none */
  } lines[] = {
      {"'x-anthropic-billing-header: 1\\n\\ns'", true, "{'role':'system','content':[" PART("s") "]},"},
      {"'x-anthropic-billing-header: 1\\ns'", false,
       "{'role':'system','content':[" PART("x-anthropic-billing-header: 1\\ns") "]},"},
      {"'x-anthropic-billing-header'", true,
       "{'role':'system','content':[" PART("x-anthropic-billing-header") "]},"},
      {"[{'type':'text','text':'x-anthropic-billing-header: 1'},{'type':'text','text':'s'}]", true,
       "{'role':'system','content':[" PART("s") "]},"},
      {"[{'type':'text','text':'x-anthropic-billing-header: 1'}]", true, ""},
  };
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    char body[400], made[400];
    said s;
    snprintf(body, sizeof body, "{" ASK ",'system':%s}", lines[i].system);
    snprintf(made, sizeof made, "{'messages':[%s" X "],'max_tokens':5}", lines[i].want);
    translate(&td_api_messages, false, lines[i].drops, body, &s);
    char *want = quoted(made);
    assert_non_null(s.chat);
    assert_string_equal(s.chat, want);
    free(want);
    free(s.chat);
  }
}

static void test_messages_tools(void **state)
{
  CHECK(
      &td_api_messages,
      {"{" ASK ",'tools':[{'name':'f'},{'type':'custom','name':'g','description':'d','input_schema':{'type':'"
       "object'},"
       "'strict':true},{'type':null,'name':'h','description':null}]}",
       MADE(X,
            ",'tools':[{'type':'function','function':{'name':'f'}},{'type':'function','function':{'name':'g',"
            "'description':'d','parameters':{'type':'object'},'strict':true}},"
            "{'type':'function','function':{'name':'h'}}]")},
      {"{" ASK ",'tools':null}", MADE(X, "")}, {"{" ASK ",'tools':[]}", MADE(X, "")},
      {"{" ASK ",'tools':{}}", "400 invalid_value tools: 'tools' must be an array of tools"},
      {"{" ASK ",'tools':[{'name':'f'},{'type':'web_search','name':'w'}]}",
       "400 unsupported_parameter tools[1].type: 'tools[1].type' is served as 'custom'"},
      {"{" ASK ",'tools':[{}]}",
       "400 invalid_value tools[0].name: 'tools[0].name' is required and must be a string"},
      {"{" ASK ",'tool_choice':{'type':'auto'}}", MADE(X, ",'tool_choice':'auto'")},
      {"{" ASK ",'tool_choice':{'type':'any','disable_parallel_tool_use':true}}",
       MADE(X, ",'parallel_tool_calls':false,'tool_choice':'required'")},
      {"{" ASK ",'tool_choice':{'type':'none','disable_parallel_tool_use':false}}",
       MADE(X, ",'tool_choice':'none'")},
      {"{" ASK ",'tool_choice':null}", MADE(X, "")},
      {"{" ASK ",'tool_choice':{'type':'tool','name':'f'}}",
       MADE(X, ",'tool_choice':{'function':{'name':'f'}}")},
      {"{" ASK ",'tool_choice':{'type':'tool'}}", "400 invalid_value tool_choice: 'tool_choice' must have "
                                                  "the type auto, any, none, or tool with a 'name'"},
      {"{" ASK ",'tool_choice':{'type':'x','name':'f'}}",
       "400 invalid_value tool_choice: 'tool_choice' must have the type auto, any, none, or tool with a "
       "'name'"});
}

static void test_messages_wishes(void **state)
{
  CHECK(&td_api_messages, {"{" ASK ",'thinking':null}", MADE(X, "")},
        {"{" ASK ",'thinking':{'type':'enabled','budget_tokens':null}}",
         MADE(X, ",'chat_template_kwargs':{'enable_thinking':true}")},
        {"{" ASK ",'thinking':{'type':'adaptive'}}",
         MADE(X, ",'chat_template_kwargs':{'enable_thinking':true}")},
        {"{" ASK ",'thinking':{'type':'disabled'}}",
         MADE(X, ",'chat_template_kwargs':{'enable_thinking':false}")},
        {"{" ASK ",'thinking':{'type':'x'}}",
         "400 invalid_value thinking: 'thinking' must have the type enabled, adaptive or disabled"},
        {"{'chat_template_kwargs':{'a':1}," ASK ",'thinking':{'type':'enabled'}}",
         "{'messages':[" X "],'chat_template_kwargs':{'a':1,'enable_thinking':true},'max_tokens':5}"},
        {"{'chat_template_kwargs':{'enable_thinking':false}," ASK ",'thinking':{'type':'enabled'}}",
         "{'messages':[" X "],'chat_template_kwargs':{'enable_thinking':false},'max_tokens':5}"},
        {"{'chat_template_kwargs':7," ASK ",'thinking':{'type':'enabled'}}",
         "{'messages':[" X "],'chat_template_kwargs':7,'max_tokens':5}"},
        {"{" ASK ",'stop_sequences':['a'],'output_config':{'effort':'low','format':{'type':'json_schema','"
         "schema':{'a':1}}}}",
         "{'messages':[" X
         "],'max_tokens':5,'stop':['a'],'reasoning_effort':'low','response_format':{'json_schema':"
         "{'schema':{'a':1}},'type':'json_schema'}}"},
        {"{" ASK ",'output_format':{'type':'json_schema','schema':{}}}",
         MADE(X, ",'response_format':{'json_schema':{'schema':{}},'type':'json_schema'}")},
        {"{" ASK ",'output_format':null,'output_config':null}", MADE(X, "")},
        {"{" ASK ",'output_format':{'type':'json_schema'}}",
         "400 invalid_value output_format: 'output_format' must have the type json_schema and a 'schema'"},
        {"{" ASK ",'output_format':{'type':'json','schema':{}}}",
         "400 invalid_value output_format: 'output_format' must have the type json_schema and a 'schema'"},
        {"{" ASK ",'output_config':7}", "400 invalid_value output_config: 'output_config' must be an object"},
        {"{'model':'m','stream':true,'temperature':1,'top_p':2,'top_k':3,'min_p':4,'presence_penalty':5,"
         "'frequency_penalty':6,'repetition_penalty':7,'logit_bias':8,'seed':9,'min_tokens':10,'stop_token_"
         "ids':11,"
         "'bad_words':12,'ignore_eos':13,'include_stop_str_in_output':14,'skip_special_tokens':15,'"
         "structured_outputs':16,"
         "'guided_json':17,'guided_regex':18,'guided_choice':19,'guided_grammar':20,'priority':21,'cache_"
         "salt':22,"
         "'timeout_ms':23,'ttft_timeout_ms':24,'chat_template_kwargs':25," ASK "}",
         "{'messages':[" X "],'model':'m','stream':true,'temperature':1,'top_p':2,'top_k':3,'min_p':4,"
         "'presence_penalty':5,'frequency_penalty':6,'repetition_penalty':7,'logit_bias':8,'seed':9,'min_"
         "tokens':10,"
         "'stop_token_ids':11,'bad_words':12,'ignore_eos':13,'include_stop_str_in_output':14,'skip_special_"
         "tokens':15,"
         "'structured_outputs':16,'guided_json':17,'guided_regex':18,'guided_choice':19,'guided_grammar':20,'"
         "priority':21,"
         "'cache_salt':22,'timeout_ms':23,'ttft_timeout_ms':24,'chat_template_kwargs':25,'max_tokens':5}"});
  CHECK(&td_api_count_tokens, {"{'messages':[{'role':'user','content':'x'}]}", "{'messages':[" X "]}"});
}

/* Fields that are named as ignored, or refused if fields are strict. */
static void test_ignored(void **state)
{
  static const struct {
    const td_api *api;
    const char *body, *ignored, *refused;
  } all[] = {
      {&td_api_messages, "{" ASK ",'thinking':{'type':'enabled','budget_tokens':5}}",
       "thinking.budget_tokens",
       "400 unsupported_parameter thinking.budget_tokens: 'thinking.budget_tokens' is not served"},
      {&td_api_messages, "{" ASK ",'output_config':{'x':1,'y':null,'effort':'low'}}", "output_config.x",
       "400 unsupported_parameter output_config.x: 'output_config.x' is not served"},
      {&td_api_messages, "{" ASK ",'nonsense':1}", "nonsense",
       "400 unsupported_parameter nonsense: 'nonsense' is not a field of this route"},
      {&td_api_responses, "{'input':'x','text':{'a':1,'format':null,'verbosity':'low','b':null}}", "text.a",
       "400 unsupported_parameter text.a: 'text.a' is not served"},
      {&td_api_responses,
       "{'input':'x','reasoning':{'a':1,'summary':'auto','generate_summary':'auto','b':null}}", "reasoning.a",
       "400 unsupported_parameter reasoning.a: 'reasoning.a' is not served"},
      {&td_api_responses, "{'input':'x','tools':[{'type':'web_search'}]}", "tools.type", NULL},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    for (int strict = 0; strict < 2; strict++) {
      said s;
      translate(all[i].api, strict, false, all[i].body, &s);
      if (strict && all[i].refused) {
        assert_null(s.chat);
        assert_string_equal(s.error, all[i].refused);
      } else {
        assert_non_null(s.chat);
        assert_string_equal(s.ignored, all[i].ignored);
      }
      free(s.chat);
    }
}

/* ---- OpenAI's responses ---- */

#define SAYS(role, text) "{'role':'" role "','content':[" PART(text) "]}"

static void test_responses(void **state)
{
  CHECK(&td_api_responses, {"{'input':'x'}", "{'messages':[" X "]}"},
        {"7", "400 invalid_value : the body must be a JSON object"},
        {"{'instructions':'s','input':'x'}", "{'messages':[" SAYS("system", "s") "," X "]}"},
        {"{'instructions':'','input':'x'}", "{'messages':[" X "]}"},
        {"{'instructions':null,'input':'x'}", "{'messages':[" X "]}"},
        {"{'instructions':7,'input':'x'}", "400 invalid_value instructions: 'instructions' must be a string"},
        {"{}", "400 invalid_value input: 'input' is required: a string, or an array of items"},
        {"{'input':[]}", "400 invalid_value input: 'input' is required: a string, or an array of items"},
        {"{'input':7}", "400 invalid_value input: 'input' is required: a string, or an array of items"},
        {"{'input':[{'role':'user','content':'x'},{'type':'message','role':'developer','content':[{'type':'"
         "input_text',"
         "'text':'a'},{'type':'output_text','text':'b'},{'type':'text','text':'c'},{'type':'refusal','"
         "refusal':'d'}]}]}",
         "{'messages':[" X
         ",{'role':'developer','content':[" PART("a") "," PART("b") "," PART("c") "," PART("d") "]}]}"},
        {"{'input':[{'role':7,'content':'x'}]}",
         "400 invalid_value input[0].role: 'input[0].role' is required and must be a string"},
        {"{'input':[{'role':'user'}]}",
         "400 invalid_value input[0].content: 'input[0].content' must be a string or an array of text parts"},
        {"{'input':[{'role':'user','content':[{'type':'input_image'}]}]}",
         "400 unsupported_parameter input[0].content: 'input[0].content' has a part of type 'input_image', "
         "which "
         "is not served; 'input_text' and 'output_text' are"},
        {"{'input':[{'role':'user','content':['a']}]}",
         "400 unsupported_parameter input[0].content: 'input[0].content' has a part without a type, which is "
         "not served; 'input_text' and 'output_text' are"},
        {"{'input':[{'role':'user','content':[{'type':'input_text'}]}]}",
         "400 invalid_value input[0].content: 'input[0].content' has a part without its text"},
        {"{'input':[{'role':'user','content':[{'type':'refusal','text':'a'}]}]}",
         "400 invalid_value input[0].content: 'input[0].content' has a part without its text"},
        {"{'input':[{'role':'user','content':'x'},{'type':'item_reference'}]}",
         "400 unsupported_parameter input[1].type: 'input[1].type' is served as message, function_call, "
         "function_call_output and reasoning"},
        {"{'input':[{'type':'function_call','name':'f','arguments':'{}'}]}",
         "400 invalid_value input[0].call_id: 'input[0].call_id' is required and must be a string"},
        {"{'input':[{'type':'function_call','call_id':'i','arguments':'{}'}]}",
         "400 invalid_value input[0].name: 'input[0].name' is required and must be a string"},
        {"{'input':[{'type':'function_call','call_id':'i','name':'f','arguments':{}}]}",
         "400 invalid_value input[0].arguments: 'input[0].arguments' is required and must be a string"},
        {"{'input':[{'type':'function_call_output','output':'r'}]}",
         "400 invalid_value input[0].call_id: 'input[0].call_id' is required and must be a string"},
        {"{'input':[{'type':'function_call_output','call_id':'i'}]}",
         "400 invalid_value input[0].output: 'input[0].output' must be a string or an array of text parts"});
}

/* Thoughts, text and calls of one turn are one message. */
static void test_turns(void **state)
{
#define THINKS(text) "{'type':'reasoning','content':[{'type':'reasoning_text','text':'" text "'}]}"
#define CALLS(id, name) "{'type':'function_call','call_id':'" id "','name':'" name "','arguments':'{}'}"
#define CALLED(id, name) "{'function':{'name':'" name "','arguments':'{}'},'id':'" id "','type':'function'}"
  CHECK(&td_api_responses,
        {
            "{'input':[" THINKS("hm") ",{'role':'assistant','content':'a'}," CALLS("i", "f") "," CALLS(
                "j",
                "g") ",{'type':'function_call_output','call_id':'i','output':'r'},"
                     "{'type':'function_call_output','call_id':'j','output':[{'type':'input_text','text':'s'}"
                     "]}," CALLS("k", "h") "]}",
            // clang-format off
       "{'messages':[{'role':'assistant','reasoning_content':'hm','content':[" PART("a") "],'tool_calls':["
       CALLED("i", "f") "," CALLED("j", "g") "]},{'role':'tool','tool_call_id':'i','content':[" PART("r")
       "]},{'role':'tool','tool_call_id':'j','content':[" PART("s") "]},{'role':'assistant','tool_calls':["
       CALLED("k", "h") "]}]}"
            // clang-format on
        },
        {"{'input':[{'role':'assistant','content':'a'},{'role':'assistant','content':'b'}]}",
         "{'messages':[" SAYS("assistant", "a") "," SAYS("assistant", "b") "]}"},
        {"{'input':[" CALLS("i", "f") ",{'role':'assistant','content':'b'}]}",
         "{'messages':[{'role':'assistant','tool_calls':[" CALLED("i", "f") "]}," SAYS("assistant",
                                                                                       "b") "]}"},
        {"{'input':[" THINKS("a") ",{'role':'user','content':'x'}," CALLS("i", "f") "]}",
         "{'messages':[{'role':'assistant','reasoning_content':'a'}," X
         ",{'role':'assistant','tool_calls':[" CALLED("i", "f") "]}]}"},
        {"{'input':[" THINKS("a") "," THINKS("b") "]}",
         "{'messages':[{'role':'assistant','reasoning_content':'"
         "a'},{'role':'assistant','reasoning_content':'b'}]}"},
        {"{'input':[{'type':'reasoning','encrypted_content':'z'},{'type':'reasoning','content':'z'},"
         "{'role':'user','content':'x'}]}",
         "{'messages':[" X "]}"});
}

static void test_responses_wishes(void **state)
{
#define IN "'input':'x'"
#define OUT(rest) "{'messages':[" X "]" rest "}"
  CHECK(
      &td_api_responses,
      {"{" IN ",'parallel_tool_calls':false,'stop':'s','max_output_tokens':7,'temperature':1}",
       OUT(",'temperature':1,'parallel_tool_calls':false,'stop':'s','max_tokens':7")},
      {"{" IN ",'tools':{}}", "400 invalid_value tools: 'tools' must be an array of tools"},
      {"{" IN ",'tools':null}", OUT("")},
      {"{" IN ",'tools':[{'type':'function','name':'f','parameters':{},'strict':null}]}",
       OUT(",'tools':[{'type':'function','function':{'name':'f','parameters':{}}}]")},
      {"{" IN ",'tools':[{'type':'web_search'},{'type':'function'}]}",
       "400 invalid_value tools[1].name: 'tools[1].name' is required and must be a string"},
      {"{" IN ",'tool_choice':'auto'}", OUT(",'tool_choice':'auto'")},
      {"{" IN ",'tool_choice':null}", OUT("")},
      {"{" IN ",'tool_choice':{'type':'function','name':'f'}}",
       OUT(",'tool_choice':{'function':{'name':'f'}}")},
      {"{" IN ",'tool_choice':{'type':'function'}}",
       "400 invalid_value tool_choice.name: 'tool_choice.name' is required and must be a string"},
      {"{" IN ",'tool_choice':{'type':'mcp'}}",
       "400 unsupported_parameter tool_choice.type: 'tool_choice.type' is served as 'function' and "
       "'allowed_tools'"},
      {"{" IN ",'tool_choice':{'type':'allowed_tools','mode':'auto','tools':[{'type':'function','name':'f'},"
       "{'type':'mcp'},{'type':'function','name':'g'}]}}",
       OUT(",'tool_choice':{'allowed_tools':{'tools':[{'function':{'name':'f'}},{'function':{'name':'g'}}],"
           "'mode':'auto'},'type':'allowed_tools'}")},
      {"{" IN ",'tool_choice':{'type':'allowed_tools','tools':7}}",
       OUT(",'tool_choice':{'allowed_tools':{'tools':[],'mode':''},'type':'allowed_tools'}")},
      {"{" IN ",'text':{'format':{'type':'json_object'}}}", OUT(",'response_format':{'type':'json_object'}")},
      {"{" IN ",'text':{'format':{'type':'json_schema','name':'n','schema':{}}}}",
       OUT(",'response_format':{'type':'json_schema','json_schema':{'type':'json_schema','name':'n','schema':"
           "{}}}")},
      {"{" IN ",'text':{'format':null}}", OUT("")},
      {"{" IN ",'text':7}", "400 invalid_value text: 'text' must be an object"},
      {"{" IN ",'text':null,'reasoning':null,'include':null}", OUT("")},
      {"{" IN ",'reasoning':7}", "400 invalid_value reasoning: 'reasoning' must be an object"},
      {"{" IN ",'reasoning':{'effort':'low'}}", OUT(",'reasoning_effort':'low'")},
      {"{" IN ",'include':7}", "400 invalid_value include: 'include' must be an array of strings"},
      {"{" IN ",'include':[7]}", "400 invalid_value include: 'include' must be an array of strings"},
      {"{" IN ",'include':['reasoning.encrypted_content']}", OUT("")},
      {"{" IN ",'include':['message.output_text.logprobs']}", OUT(",'logprobs':true")},
      {"{" IN ",'include':['message.output_text.logprobs'],'top_logprobs':3}",
       OUT(",'logprobs':true,'top_logprobs':3")},
      {"{" IN ",'include':['message.output_text.logprobs'],'top_logprobs':0}", OUT(",'logprobs':true")},
      {"{" IN ",'top_logprobs':0}", OUT("")}, {"{" IN ",'top_logprobs':null}", OUT("")},
      {"{" IN ",'top_logprobs':1}", "400 invalid_value top_logprobs: 'top_logprobs' goes with "
                                    "'message.output_text.logprobs' in 'include'"});
}

/* The fields that a response repeats of its request; one that is too long is shown as if it were absent. */
static void test_echo(void **state)
{
  said s;
  translate(
      &td_api_responses, false, false,
      "{'input':'x','instructions':'s','max_output_tokens':5,'metadata':{'a':'b'},'parallel_tool_calls':"
      "false,"
      "'reasoning':{'effort':'low'},'temperature':0.5,'text':{'format':{'type':'text'}},'tool_choice':'none',"
      "'tools':[{'type':'function','name':'f'}],'top_logprobs':0,'top_p':1,'user':'u'}",
      &s);
  char *want = quoted(
      ",'instructions':'s','max_output_tokens':5,'metadata':{'a':'b'},'parallel_tool_calls':false,"
      "'reasoning':{'effort':'low'},'temperature':0.5,'text':{'format':{'type':'text'}},"
      "'tool_choice':'none','tools':[{'type':'function','name':'f'}],'top_logprobs':0,'top_p':1,'user':'u'");
  assert_string_equal(s.echo, want);
  free(want);
  free(s.chat);
  const char *absent =
      ",'max_output_tokens':null,'metadata':{},'parallel_tool_calls':true,'reasoning':{'effort':null,"
      "'summary':null},'temperature':null,'text':{'format':{'type':'text'}},'tool_choice':'auto',"
      "'tools':[],'top_logprobs':0,'top_p':null,'user':null";
  static char body[70000], made[70000];
  size_t most = (size_t)td_limit_max(TD_LIMIT_ECHO_BYTES), n = most - 2; /* including the quotes */
  for (int over = 0; over < 2; over++, n++) {
    snprintf(body, sizeof body, "{'input':'x','instructions':'%0*d'}", (int)n, 0);
    translate(&td_api_responses, false, false, body, &s);
    if (over)
      snprintf(made, sizeof made, ",'instructions':null%s", absent);
    else
      snprintf(made, sizeof made, ",'instructions':'%0*d'%s", (int)n, 0, absent);
    want = quoted(made);
    assert_string_equal(s.echo, want);
    free(want);
    free(s.chat);
  }
}

/* An error of the chat uses the route's field names. */
static void test_names(void **state)
{
  static const struct {
    unsigned route;
    const char *param, *message, *own_param, *own_message;
  } all[] = {
      {TD_ROUTE_RESPONSES, "max_tokens", "'max_tokens' must be 1", "max_output_tokens",
       "'max_output_tokens' must be 1"},
      {TD_ROUTE_RESPONSES, "max_tokensx", "'max_tokensx'", "max_tokensx", "'max_tokensx'"},
      {TD_ROUTE_MESSAGES, "max_tokens", "'max_tokens'", "max_tokens", "'max_tokens'"},
      {TD_ROUTE_MESSAGES, "stop", "of 'stop': a 'stop'", "stop_sequences", "of 'stop_sequences': a 'stop'"},
      {TD_ROUTE_MESSAGES, "stop.x", "'stop.x'", "stop_sequences.x", "'stop_sequences.x'"},
      {TD_ROUTE_MESSAGES, "stop_token_ids", "'stop_token_ids'", "stop_token_ids", "'stop_token_ids'"},
      {TD_ROUTE_RESPONSES, "reasoning_effort", "no", "reasoning.effort", "no"},
      {TD_ROUTE_MESSAGES, "reasoning_effort", "'reasoning_effort'", "output_config.effort",
       "'output_config.effort'"},
      {TD_ROUTE_RESPONSES, "response_format.json_schema.schema", "'response_format.json_schema.schema' is",
       "text.format.schema", "'text.format.schema' is"},
      {TD_ROUTE_RESPONSES, "response_format", "'response_format'", "text.format", "'text.format'"},
      {TD_ROUTE_MESSAGES, "response_format.json_schema", "'response_format.json_schema'",
       "output_config.format", "'output_config.format'"},
      {TD_ROUTE_MESSAGES, "response_format.x", "'response_format.x'", "output_config.format.x",
       "'output_config.format.x'"},
      {TD_ROUTE_MESSAGES, "", "the body", "", "the body"},
  };
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    td_api_error e;
    td_api_error_set(&e, 400, "c", all[i].param, "%s", all[i].message);
    td_translation_name(all[i].route, &e);
    assert_string_equal(e.param, all[i].own_param);
    assert_string_equal(e.message, all[i].own_message);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_messages),       cmocka_unit_test(test_messages_system),
      cmocka_unit_test(test_messages_tools), cmocka_unit_test(test_messages_wishes),
      cmocka_unit_test(test_ignored),        cmocka_unit_test(test_responses),
      cmocka_unit_test(test_turns),          cmocka_unit_test(test_responses_wishes),
      cmocka_unit_test(test_echo),           cmocka_unit_test(test_names),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
