"""A request mix that exercises everything an engine does concurrently: prompts of all lengths, so that chunks run beside decodes;
every kind of sampling; shared prefixes, which are cached in the second round; clients that disconnect."""
import random

from daemon import together

SAMPLINGS = [{"temperature": 0}, {"temperature": 0.7, "seed": 11}, {"temperature": 1.0, "seed": 12, "top_p": 0.9},
             {"temperature": 1.3, "seed": 13, "top_k": 40}, {"temperature": 0.9, "seed": 14, "min_p": 0.05},
             {"temperature": 0.8, "seed": 15, "top_k": 50, "top_p": 0.95, "min_p": 0.01}]
SHARED = 96  # tokens of the prefix that a third of the requests share


def make(n, vocab, longest, answer, seed=1, first_id=2):
    """Returns n requests with prompts of 1 to `longest` tokens and answers of up to `answer`; deterministic."""
    rng = random.Random(seed)

    def ids(k):
        return [rng.randrange(first_id, vocab) for _ in range(k)]
    prefix = ids(min(SHARED, longest // 2))
    out = []
    for i in range(n):
        private = ids(rng.choice([1, 2, 15, 16, 17, longest // 3, longest - len(prefix)]))
        prompt = prefix + private if i % 3 == 0 else private
        sampling = {**SAMPLINGS[i % len(SAMPLINGS)]}
        if "seed" in sampling:
            sampling["seed"] += 100 * i
        out.append({"prompt": prompt, "max_tokens": rng.randrange(answer // 2, answer + 1), "ignore_eos": True, **sampling})
    return out


def play(daemon, requests, leavers=0, timeout=900):
    """Sends all concurrently; every leavers-th client disconnects after a few tokens. Returns answers in order, None for those."""
    def job(i, r):
        if leavers and i % leavers == leavers - 1:
            daemon.stream({**r, "max_tokens": r["max_tokens"] * 20}, leave_after=1 + i % 4, timeout=timeout)
            return None
        return daemon.stream(r, timeout=timeout)
    return together([lambda i=i, r=r: job(i, r) for i, r in enumerate(requests)], timeout)


def whole(requests, answers):
    """Returns how many of the answers that should be complete are, and their number."""
    due = [(r, a) for r, a in zip(requests, answers) if a is not None]
    return sum(a.status == 200 and a.done and a.error is None and len(a.ids) == r["max_tokens"] for r, a in due), len(due)
