#!/usr/bin/env python3
"""Row 6: system calls of a running daemon are short, or fail with EINTR, EAGAIN, EMFILE or ENOSPC, each in turn, alone and five in a row.

A short call, EINTR and EAGAIN are not faults: every answer is complete and unchanged. After EMFILE a client may have to wait. After
ENOSPC a file is not kept, and the log says so. The amount is the share of all calls in percent (seeded)."""
import json
import re
import signal
import time

from lib import WORK, Row, Shim, Tiny, ask, get, parse_answer, post, stride

GREEDY = {"temperature": 0, "max_tokens": 5, "ignore_eos": True}
CLOSE = "Connection: close\r\n"
REQUESTS = [
    get("/health", CLOSE),
    post("/v1/completions", {"prompt": "Once upon a time", **GREEDY}, CLOSE),
    post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Name three rivers. " * 30}], **GREEDY, "logprobs": True}, CLOSE),
    post("/tokenize", {"prompt": "Once upon a time " * 2000}, CLOSE),
]
KINDS = {"short": REQUESTS, "EINTR": REQUESTS, "EAGAIN": REQUESTS, "EMFILE": REQUESTS, "ENOSPC": REQUESTS[:2]}
MOST = 10000  # calls in a daemon's life: a bound, so that the test ends


def plain(raw):
    status, body = parse_answer(raw)
    return status, body and re.sub(rb'"id":"[^"]*"|"created":\d+|"cached_tokens":\d+', b"", body)


def while_serving(row, kind, shim):
    """Faults in each system call of each request."""
    n = 0
    with Tiny() as d:
        for i, raw in enumerate(KINDS[kind]):
            ask(d.port, raw)
            expect = plain(ask(d.port, raw))
            for burst in (1, 5):
                beyond, k = 0, 0
                while beyond < 2:
                    k += stride(row)
                    shim.fail_calls(kind, k, burst)
                    try:
                        got = plain(ask(d.port, raw))
                    except TimeoutError:
                        got = "no end"
                    beyond = beyond + 1 if shim["n_calls_failed"] == 0 else 0
                    shim.rest()
                    row.expect(got == expect, f"{kind}, request {i}, call {k}, {burst} at once: {str(got)[:300]}")
                    if not row.expect(d.alive(), f"{kind}, request {i}, call {k}: ended: {d.log()[-500:]}"):
                        return n
                    n += 1
    row.expect(d.exit_code == 0, f"{kind}: exit code {d.exit_code}: {d.last_words[-300:]}")
    return n


def is_ready(d):
    try:
        return parse_answer(ask(d.port, get("/ready", CLOSE)))[0] == 200
    except OSError:
        return False


def around(row, kind, shim):
    """Faults in each system call of a daemon's life: start, reading files, a request, a reload, writing the cache, the end. A start may be
    refused for want of descriptors, with a reason."""
    keys, n, seen = WORK / "keys", 0, set()
    keys.write_text("a-key\n")
    auth = CLOSE + "Authorization: Bearer a-key\r\n"
    body = {"prompt": [5, 6, 7], "temperature": 0, "max_tokens": 80, "ignore_eos": True}
    k = 0
    while k < MOST:
        k += stride(row)
        with Shim() as inner:
            cache = WORK / f"cache-{kind}-{k}"
            inner.fail_calls(kind, k)
            d = Tiny("--api-key-file", keys, "--cache-dir", cache, "--log-level", "info", wait=False)
            with d:
                end = time.monotonic() + 20
                while d.alive() and not is_ready(d) and time.monotonic() < end:
                    time.sleep(0.002)
                if d.alive():
                    status, text = parse_answer(ask(d.port, post("/v1/completions", body, auth)))
                    row.expect(status == 200 and text and len(json.loads(text)["choices"]) == 1, f"{kind}, life {k}: {status} {text}")
                    d.process.send_signal(signal.SIGHUP)
                    status, text = parse_answer(ask(d.port, get("/v1/models", auth)))
                    row.expect(status == 200, f"{kind}, life {k}: /v1/models {status}")
                refused = not d.alive()
            failed, seen = inner["n_calls_failed"], seen | inner.sites()
            if refused:
                row.expect(kind in ("EMFILE", "ENOSPC") and " error " in d.last_words and d.exit_code in (64, 65, 66, 67),
                           f"{kind}, life {k}: exit code {d.exit_code}: {d.last_words[-300:]}")
            else:
                row.expect(d.exit_code == 0, f"{kind}, life {k}: exit code {d.exit_code}: {d.last_words[-300:]}")
            for f in cache.glob("*"):
                row.expect(re.search(r"\.txt$", f.name), f"{kind}, life {k}: {f.name} is left over")
        n += 1
        if failed == 0:
            return n, seen
    row.fail(f"{kind}: there is no end of calls")
    return n, seen


def main():
    row = Row(__doc__, 100)
    total = 0
    for kind in KINDS:
        with Shim() as shim:
            a = while_serving(row, kind, shim)
            sites = shim.sites()
        b, more = around(row, kind, shim)
        total += a + b
        row.note(f"{kind}: {a} serving, {b} lives, {len(sites | more)} sites")
    row.note(f"{total} faults")
    row.done(row.amount)
    row.end()


if __name__ == "__main__":
    main()
