#!/usr/bin/env python3
"""Row 5: the k-th allocation of a running daemon fails, for all k, alone and with the 19 after it, in twelve scenarios.

The client gets a complete answer, a 503, or a cut connection, and nothing else. After each failure the same request is answered normally,
and at the end of a scenario no more memory is allocated than before. The amount is the share of all k in percent (seeded); each scenario
continues until k is beyond its last allocation."""
import argparse
import json
import re
import signal
import subprocess
import time

from lib import SLOWNESS, WORK, Row, Shim, Tiny, ask, get, harness, parse_answer, post, read_all, sse_events, stride, tiny_model

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
CHAT = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three rivers."}], **GREEDY}
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
CLOSE = "Connection: close\r\n"
SCENARIOS = {
    "health": get("/health", CLOSE),
    "metrics": get("/metrics", CLOSE),
    "completion": post("/v1/completions", {"prompt": "Once upon a time", **GREEDY}, CLOSE),
    "stream": post("/v1/completions", {"prompt": "Once upon a time", "stream": True, "logprobs": 2, **GREEDY}, CLOSE),
    "chat": post("/v1/chat/completions", CHAT, CLOSE),
    "chat, 3 streams": post("/v1/chat/completions", {**CHAT, "n": 3, "stream": True, "stop": ["zq"], "seed": 3,
                                                     "logit_bias": {"7": -3}}, CLOSE),
    "schema": post("/v1/chat/completions", {**CHAT, "max_tokens": 60, "ignore_eos": False, "response_format":
                                            {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}}, CLOSE),
    "tokenize": post("/tokenize", {"prompt": "Once upon a time " * 20}, CLOSE),
    "connections": None,
    "refused": post("/v1/completions", {"prompt": "x", "temperature": 7}, CLOSE),
    "reload": None,
    "start": None,
}
# Memory that a request may keep allocated: what is cached for the next one (pages, grammars), and growth of the loop's tables.
LIVE_SLACK = 64
TOGETHER = 12
RELOADED, NOT_RELOADED = "options and keys are read again", "nothing is changed"
START_MOST = 200000  # allocations of a start: a bound, so that the test ends


def plain(raw):
    """An answer without what differs between two runs of a request: ids, times, and where a stream's text was split."""
    status, body = parse_answer(raw)
    if body is None:
        return status, None
    if body.startswith(b"# HELP"):
        return status, re.findall(rb"^# .*", body, re.M)
    if body.startswith(b"data: ") and body.endswith(b"data: [DONE]\n\n"):
        texts = {}
        for c in (c for e in sse_events(body.decode()) for c in e["choices"]):
            old = texts.get(c["index"], ("", None))
            texts[c["index"]] = old[0] + (c.get("text") or c.get("delta", {}).get("content") or ""), c["finish_reason"]
        return status, texts
    return status, re.sub(rb'"id":"[^"]*"|"created":\d+|"cached_tokens":\d+', b"", body)


def good_end(raw, expect):
    """Returns None if the answer is complete, a 503, or visibly cut off."""
    status, body = plain(raw)
    if (status, body) == expect:
        return None
    if status == 503 and isinstance(body, bytes) and json.loads(body)["error"]["code"] in ("out_of_memory", "engine_failed"):
        return None
    if body is None:  # cut off
        return "[DONE] in an answer that was cut off" if b"[DONE]" in raw else None
    if status == 200 and b'"error"' in body and b"[DONE]" not in body:
        return None  # a stream's error event
    return f"{status} {body[:300]!r}"


def run_requests(row, name, raw):
    with Shim() as shim, Tiny() as d:
        for _ in range(4):
            expect = plain(ask(d.port, raw))
        live = [shim["n_live"]]
        n = 0
        for burst in (1, 20):
            beyond, k = 0, 0
            while beyond < 3:  # other threads allocate too, so one round without a failure is not the end
                k += stride(row)
                shim.fail_allocs(k, burst)
                try:
                    wrong = good_end(ask(d.port, raw), expect)
                except TimeoutError:
                    wrong = "no end"
                beyond = beyond + 1 if shim["n_allocs_failed"] == 0 else 0
                shim.rest()
                if not d.alive():
                    row.fail(f"{name}, k={k}, {burst} at once: ended with {d.process.returncode}: {d.log()[-600:]}")
                    return
                if wrong:
                    row.fail(f"{name}, k={k}, {burst} at once: {wrong}")
                try:
                    after = plain(ask(d.port, raw))
                except TimeoutError:
                    after = "no end"
                if not row.expect(after == expect, f"{name}, k={k}, {burst} at once: afterwards {str(after)[:300]}"):
                    return
                n += 1
            live.append(shim["n_live"])
        row.expect(live[-1] - live[0] <= LIVE_SLACK, f"{name}: {live} allocations live: a leak")
        row.note(f"{name} {n}")


def run_reload(row):
    keys = WORK / "keys"
    keys.write_text("".join(f"key-{i} name=n{i} requests=9\n" for i in range(9)))
    with Shim() as shim, Tiny("--log-level", "info", "--api-key-file", keys, "--trusted-proxies", "192.0.2.0/24,198.51.100.7") as d:
        raw = get("/v1/models", CLOSE + "Authorization: Bearer key-3\r\n")
        expect = plain(ask(d.port, raw))
        n = 0
        for burst in (1, 20):
            beyond, k = 0, 0
            while beyond < 3:
                k += stride(row)
                shim.fail_allocs(k, burst)
                told = d.log().count(RELOADED) + d.log().count(NOT_RELOADED)
                d.process.send_signal(signal.SIGHUP)
                try:
                    d.eventually(lambda: d.log().count(RELOADED) + d.log().count(NOT_RELOADED) > told or not d.alive(), 10, "reload")
                except AssertionError as e:
                    row.fail(f"reload, k={k}: {e}")
                beyond = beyond + 1 if shim["n_allocs_failed"] == 0 else 0
                shim.rest()
                if not d.alive():
                    row.fail(f"reload, k={k}, {burst} at once: ended with {d.process.returncode}: {d.log()[-600:]}")
                    return
                row.expect(plain(ask(d.port, raw)) == expect, f"reload, k={k}, {burst} at once: the key is gone")
                n += 1
        row.note(f"reload {n}")


def run_connections(row):
    """Connections that arrive together: the loop's own tables must not grow meanwhile."""
    n = 0
    k = 0
    while k < START_MOST:
        k += stride(row)
        with Shim() as shim, Tiny() as d:
            shim.fail_allocs(k)
            sockets = [d.connect() for _ in range(TOGETHER)]
            for s in sockets:
                s.sendall(get("/health", CLOSE))
            answers = [parse_answer(read_all(s)) for s in sockets]
            failed = shim["n_allocs_failed"]
            shim.rest()
            for status, body in answers:
                row.expect(status in (200, 503) and body or body is None, f"connections, k={k}: {status} {body}")
            if not row.expect(d.alive() and parse_answer(ask(d.port, get("/health", CLOSE)))[0] == 200, f"connections, k={k}: dead"):
                break
        n += 1
        if failed == 0:
            break
    row.note(f"connections {n}")


def run_start(row):
    """Each start either serves, or ends with an exit code and a reason."""
    command = [harness.DAEMON, "--load-format", "dummy", "--model", str(tiny_model()), "--kv-bytes", "16M", "--cache-dir", "",
               "--listen", f"unix:{WORK}/s", "--log-level", "info"]
    served = ended = 0
    with Shim() as shim:
        k = 0
        while k < START_MOST:
            k += stride(row)
            shim.fail_allocs(k)
            log = WORK / "start.log"
            with open(log, "wb") as f:
                p = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=f, stderr=f)
            end = time.monotonic() + 20 * SLOWNESS
            while p.poll() is None and b"ready in" not in log.read_bytes() and time.monotonic() < end:
                time.sleep(0.001)
            failed = shim["n_allocs_failed"]
            shim.rest()
            code, text = p.poll(), log.read_text("utf-8", "replace")
            if code is None:
                row.expect("ready in" in text, f"start, k={k}: neither ready nor ended: {text[-300:]}")
                p.terminate()
                code = p.wait(20 * SLOWNESS)
                row.expect(code == 0, f"start, k={k}: ended with {code} after it was ready: {text[-300:]}")
                served += 1
            else:
                row.expect(code == 67 and " error " in text, f"start, k={k}: exit code {code}: {text[-300:]}")
                ended += 1
            if failed == 0:
                break
        row.expect(failed == 0, "start: there is no end of allocations")
    row.note(f"start, {k} allocations: {ended} refused, {served} served")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one scenario")
    row = Row(__doc__, 100, parser)
    for name, raw in SCENARIOS.items():
        if row.args.only not in (None, name):
            continue
        if name == "start":
            run_start(row)
        elif name == "connections":
            run_connections(row)
        elif name == "reload":
            run_reload(row)
        else:
            run_requests(row, name, raw)
    row.done(row.amount)
    row.end()


if __name__ == "__main__":
    main()
