/* Which tokens end an answer, beyond those that the description's files list.
 *
 * Fine-tunes change the template and the tokenizer, but leave the model's eos_token_id as it was. Served by
 * that id alone, they go on past the end of their turn and make up the user's next one. So the tokenizer's
 * own eos_token also ends an answer, and so do the tokens with which the templates of published models end a
 * turn. Those are recognised by their text, and only if they are special tokens, because anybody may write
 * the text of an ordinary token. */
#include <stdio.h>
#include <string.h>

#include "models/desc.h"
#include "models/tokenizer/tokenizer.h"

static const char *const end_texts[] = {"<|im_end|>",
                                        "<|eot_id|>",
                                        "<|eom_id|>",
                                        "<|end_of_text|>",
                                        "<|endoftext|>",
                                        "<|end|>",
                                        "<|end_of_turn|>",
                                        "<end_of_turn>",
                                        "<|return|>",
                                        "<|call|>",
                                        "</s>",
                                        "<EOT>",
                                        "[EOT]",
                                        "[EOS]",
                                        "<|EOT|>",
                                        "<\357\275\234end\342\226\201of\342\226\201sentence\357\275\234>"};

td_status td_model_end_tokens(const td_tokenizer *t, td_model_desc *d, td_error *err)
{
  int32_t eos = td_tokenizer_eos(t);
  if (eos >= 0)
    TD_TRY(td_desc_add_eos(d, (uint64_t)eos, "the tokenizer's eos_token", err));
  for (size_t i = 0; i < sizeof end_texts / sizeof *end_texts; i++) {
    int32_t id = td_tokenizer_added_token(t, end_texts[i], strlen(end_texts[i]));
    if (td_tokenizer_is_special(t, id))
      TD_TRY(td_desc_add_eos(d, (uint64_t)id, end_texts[i], err));
  }
  return TD_OK;
}
