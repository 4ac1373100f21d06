/* Memory of answers: from when their tokens come until their clients have taken the last byte.
 *
 * One budget of all (answers_bytes), shared by tenant as room in the queue is (config/share.h), and one of
 * each answer (answer_bytes). A client that reads slowly is waited for while nobody needs the memory. Then:
 *   - who already holds his share gets no further request in: 429, at the head;
 *   - where answers under way outgrow what is there, somebody of the tenant that holds most is ended. First
 *     come connections that have not taken all of an answer yet: the one is cut whose bytes, times how long
 *     it has taken nothing, are most. If there is none, the answer under way that may become largest gets
 *     its error, of equals the youngest, so that the others end.
 *
 * Counted are buffers, what the engine keeps of a choice, and, before a whole answer is written, about what
 * that will take. Tenants are kept in the order of what they hold. Of connections only those of the tenants
 * that hold most are looked at: what they cost moves with time, so no order of them would last.
 * Loop thread only. */
#ifndef TD_SERVER_HELD_H
#define TD_SERVER_HELD_H

#include <stdbool.h>
#include <stdint.h>

#include "server/api_error.h"
#include "server/call.h"

/* c is one of its tenant's connections (c->tenant; NULL: of those that have none) from now on, or no more. */
void td_held_join(td_conn *c);
void td_held_leave(td_conn *c);
/* A connection or call of t (NULL: of nobody) that held *held holds so much now. */
void td_held_set(td_server *s, td_tenant *t, uint64_t *held, uint64_t bytes);
/* The same of a choice, by what it holds now, in its call. */
void td_held_count(td_choice *ch);
/* Whether c's tenant may begin another answer. */
bool td_held_admit(const td_conn *c, td_api_error *e);
/* Ends answers until what is held fits again. */
void td_held_trim(td_server *s);
/* 400: the answer takes more than most, which is answer_bytes. [any thread] */
void td_held_too_long(uint64_t most, td_api_error *e);

#endif
