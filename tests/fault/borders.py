#!/usr/bin/env python3
"""Row 4: every bounded request field of the limits table, on every route that takes it: with its smallest and greatest value, one
beyond, negative, fractional, null, huge, as text, and as each other JSON type. Each request gets a 2xx or a 4xx. Values outside the
bounds are refused with the field's name; values inside are not.

The amount is the share of all cases in percent (seeded)."""
import json
import random
import re
import socket

from lib import ROOT, Row, Tiny, post

# Fields whose bound is a number of items, and how to make them.
LISTS = {"stop": lambda n: ["s%d" % i for i in range(n)], "stop_token_ids": lambda n: list(range(n)),
         "prompts": lambda n: [[5]] * n, "messages": lambda n: [{"role": "user", "content": "x"}] * n,
         "logit_bias": lambda n: {str(i): 1 for i in range(n)}, "inputs": lambda n: [[5]] * n, "bad_words": lambda n: ["w%d" % i for i in range(n)]}
FIELD_OF = {"prompts": "prompt", "inputs": "input", "logit_bias_value": "logit_bias"}
AROUND = {"logit_bias_value": '{"7": %s}'}  # position of the number inside the field
ROUTES = {"/v1/completions": {"prompt": [5, 6], "max_tokens": 1}, "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}],
                                                                                         "max_tokens": 1}}
EMBEDDINGS = {"/v1/embeddings": {"input": [5, 6]}}
ROUTES_OF = {"inputs": EMBEDDINGS, "dimensions": EMBEDDINGS}
# Values inside the bound that this model, or the rest of the request, does not allow.
ELSEWHERE = {"max_tokens", "min_tokens", "n", "prompts", "messages", "stop_token_ids", "top_logprobs", "logit_bias", "timeout_ms", "ttft_timeout_ms",
             "top_p", "repetition_penalty", "inputs", "dimensions", "bad_words"}
HUGE = ["1e308", "1e309", "-1e309", "9223372036854775807", "9223372036854775808", "18446744073709551616", "-9223372036854775809",
        "1" + "0" * 400, "0." + "0" * 400 + "1", "9007199254740993", "-0", "-0.0", "1E400", "1e-400"]


def limits():
    """Returns (name, least, greatest) of the rows that bound request fields."""
    text = (ROOT / "config/limits.def").read_text()
    names = dict(re.findall(r"(TD_\w+_MAX)\s*=\s*(\d+)", "".join(p.read_text() for r in ("config", "step") for p in (ROOT / r).glob("*.h"))))
    for name, least, greatest in re.findall(r'TD_LIMIT\(\w+, "(\w+)", REQUEST, ([^,]+), [^,]+, ([^,]+),', text):
        yield name, float(least), float(names.get(greatest.strip(), greatest) if greatest.strip().startswith("TD_") else greatest)


def number(x):
    return str(int(x)) if x == int(x) else repr(x)


def cases():
    """Yields (route, rest of the body, field, JSON text of the value, whether it must be accepted: True, False, or None for either)."""
    for name, least, greatest in limits():
        field, around = FIELD_OF.get(name, name), AROUND.get(name, "%s")
        for route, rest in ROUTES_OF.get(name, ROUTES).items():
            if name in LISTS:
                for n in sorted({max(0, int(least) - 1), int(least), int(greatest) - 1, int(greatest), int(greatest) + 1}):
                    inside = least <= n <= greatest
                    yield route, rest, field, json.dumps(LISTS[name](n)), None if inside else False
            else:
                for x, inside in ((least, True), (greatest, True), (least - 1, False), (greatest + 1, False), (least + 1, None),
                                  (greatest - 1, None), (-least - 7, None), (least + 0.5, None)):
                    yield route, rest, field, around % number(x), None if inside and name in ELSEWHERE else inside
            for text in HUGE + ["null", "true", "false", "[]", "{}", '""', '"1"', '"' + "x" * 3000 + '"', "[null]", '{"a":1}', "[[[[1]]]]", "-1",
                                "0", "0.5", "-7.25"]:
                yield route, rest, field, around % text, None


def ask(sock, raw):
    sock.sendall(raw)
    out = b""
    while b"\r\n\r\n" not in out:
        out += sock.recv(65536) or b"\r\n\r\n"
    head, body = out.split(b"\r\n\r\n", 1)
    m = re.search(rb"content-length: (\d+)", head.lower())
    while m and len(body) < int(m.group(1)):
        body += sock.recv(65536)
    return int(head[9:12] or 0), body, b"connection: close" in head.lower()


def try_all(row, options, some):
    """Returns how many were accepted."""
    n_taken = 0
    with Tiny("--log-level", "error", *options) as d:
        s = d.connect()
        for route, rest, field, text, inside in some:
            body = json.dumps({k: v for k, v in rest.items() if k != field})
            body = body[:-1] + (", " if len(body) > 2 else "") + f'"{field}": {text}' + "}"
            try:
                status, answer, closes = ask(s, post(route, body.encode()))
            except (OSError, ValueError, TimeoutError) as e:
                status, answer, closes = repr(e), b"", True
            what = f"{route} {field}={text[:60]}: {status} {answer[:200]!r}"
            row.expect(status in (200, 400, 413, 429) or status == 408 and "timeout" in field, what)
            if inside is True:
                row.expect(status == 200, f"inside, {what}")
            if inside is False:
                row.expect(status == 400 and field.encode() in answer or status == 400 and b"max_" in answer, f"outside, {what}")
            n_taken += status == 200
            if closes:
                s.close()
                if not row.expect(d.alive(), "it ended"):
                    break
                s = d.connect()
        s.close()
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}: {d.last_words[-300:]}")
    return n_taken


def main():
    row = Row(__doc__, 100)
    rng = random.Random(row.seed)
    all_cases = [c for c in cases() if row.amount >= 100 or rng.random() * 100 < row.amount]
    n_taken = 0
    for options in ((), ("--pooling", "last")):  # a daemon that generates text, and one that makes embeddings
        mine = [c for c in all_cases if (c[0] in EMBEDDINGS) == bool(options)]
        n_taken += try_all(row, options, mine)
    row.note(f"{len(all_cases)} cases of {len(list(limits()))} fields, {n_taken} taken")
    row.done(row.amount)
    row.end()


if __name__ == "__main__":
    main()
