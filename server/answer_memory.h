/* Memory held for answers, from their first tokens until the client has taken the last byte.
 *
 * All answers together have a budget (answers_bytes), shared among tenants by the same rule as the queue
 * (config/share.h). Each answer has a bound of its own (answer_bytes). A slow reader may keep its memory as
 * long as there is enough. When memory is short:
 *   - A tenant that already holds its share gets no new request admitted: 429, at the head.
 *   - If running answers outgrow the budget, td_answer_memory_trim ends answers of the tenant that holds
 * most.
 *
 * td_answer_memory_trim first cuts connections with unread output, starting with the largest product of bytes
 * held and time since the client last took a byte. If there are none, it fails the running answer that may
 * become largest; among equals the youngest, so that older ones can finish.
 *
 * Counted are connection buffers, what the engine and the call keep of a choice, and an estimate of a whole
 * answer's JSON before it is written. Tenants are kept in a heap ordered by bytes held. Connections are not
 * ordered, because their cost changes with time: only those of the top tenants are scanned.
 * Loop thread only. */
#ifndef TD_SERVER_ANSWER_MEMORY_H
#define TD_SERVER_ANSWER_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "server/api_error.h"
#include "server/call.h"

/* Adds c to its tenant's list of connections, or removes it. c->tenant NULL: the list of those without. */
void td_answer_memory_add_conn(td_conn *c);
void td_answer_memory_remove_conn(td_conn *c);
/* Sets *counted, which belongs to a connection or call of t, to bytes, and updates the sums of t and s. t
 * NULL: no tenant. */
void td_answer_memory_set(td_server *s, td_tenant *t, uint64_t *counted, uint64_t bytes);
/* Counts what a choice holds now, as part of its call. */
void td_answer_memory_count(td_choice *ch);
/* Whether c's tenant may begin another answer. */
bool td_answer_memory_admit(const td_conn *c, td_api_error *e);
/* Ends answers until the sum fits the budget again. */
void td_answer_memory_trim(td_server *s);
/* Sets the 400 for an answer that takes more than most, the value of answer_bytes. [any thread] */
void td_answer_memory_too_long(uint64_t most, td_api_error *e);

#endif
