#!/usr/bin/env python3
"""Row 9: answers in random batches, with little memory (so that answers are preempted and pages reused), shared prefixes, mixed sampling
and clients that disconnect. Each answer is bit-identical, tokens and log-probabilities, to the same request alone on a fresh daemon."""
import json
import random
import threading
import time

from lib import Row, Tiny, ask, get, parse_answer, post

POOL, CLIENTS = 300, 12
PREFIXES = [[5 + (i * 7 + p) % 400 for i in range(n)] for p, n in enumerate((16, 33, 64, 100))]


def make_request(rng):
    prompt = (rng.choice(PREFIXES) if rng.random() < 0.6 else []) + [5 + rng.randrange(400) for _ in range(rng.randint(1, 60))]
    body = {"prompt": prompt, "max_tokens": rng.choice([3, 10, 24, 90]), "ignore_eos": rng.random() < 0.8, "return_token_ids": True,
            "temperature": rng.choice([0, 0, 0.7, 1.5]), "seed": rng.randrange(1000), "logprobs": rng.choice([None, None, 1, 5])}
    for field, values in (("top_p", [0.5, 0.9]), ("top_k", [1, 7, 40]), ("min_p", [0.05]), ("presence_penalty", [1.5]), ("frequency_penalty", [-1]),
                          ("repetition_penalty", [1.3]), ("logit_bias", [{"9": 5, "11": -100}]), ("stop_token_ids", [[17, 30]]), ("min_tokens", [1])):
        if rng.random() < 0.2:
            body[field] = rng.choice(values)
    return post("/v1/completions", {k: v for k, v in body.items() if v is not None}, "Connection: close\r\n")


def what(raw):
    """Returns the parts of an answer that must be the same."""
    status, body = parse_answer(raw)
    if status != 200 or body is None:
        return status, (body or b"")[:300]
    c = json.loads(body)["choices"][0]
    return c["token_ids"], c["text"], c["finish_reason"], c["logprobs"]


def main():
    row = Row(__doc__, 100000)
    rng = random.Random(row.seed)
    requests = [make_request(rng) for _ in range(min(POOL, max(20, row.amount // 2)))]
    with Tiny("--running-requests", 1, "--kv-bytes", 1 << 24) as d:
        expect = [what(ask(d.port, raw)) for raw in requests]
    row.expect(all(isinstance(e[0], list) for e in expect), f"alone: {[e for e in expect if not isinstance(e[0], list)][:2]}")
    lock, left = threading.Lock(), [row.amount]
    # 20 pages of 16 tokens; a request needs up to 16
    with Tiny("--kv-bytes", 20 * 8192, "--context-tokens", 256, "--running-requests", 10, "--step-tokens", 48) as d:
        def client(seed):
            r = random.Random(seed)
            while row.n_failures < 20:
                with lock:
                    if left[0] == 0:
                        return
                    left[0] -= 1
                i = r.randrange(len(requests))
                if r.random() < 0.1:  # this client disconnects
                    with d.connect() as s:
                        s.sendall(r.choice(requests))
                        time.sleep(r.random() * 0.005)
                got = what(ask(d.port, requests[i], 120))
                with lock:
                    row.expect(got == expect[i], f"request {i}: {str(got)[:300]}, alone {str(expect[i])[:300]}")
                    row.done()
        threads = [threading.Thread(target=client, args=(row.seed * 1000 + i,)) for i in range(CLIENTS)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        text = parse_answer(ask(d.port, get("/metrics", "Connection: close\r\n")))[1].decode()
        values = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if not line.startswith("#")}
    row.expect(values["vllm:num_preemptions_total"] > 0, "nothing was preempted: the row proves too little")
    row.expect(d.exit_code == 0, f"exit code {d.exit_code}")
    row.note(f"{len(requests)} different requests, {values['vllm:num_preemptions_total']:.0f} preemptions, "
             f"{values['tandem:evicted_pages_total']:.0f} pages evicted, {values['vllm:prefix_cache_hits_total']:.0f} tokens from the cache")
    row.end()


if __name__ == "__main__":
    main()
