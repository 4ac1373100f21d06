#!/usr/bin/env python3
"""lm-evaluation-harness on a tiny float32 model: compares the scores of its hf backend with those of its local-completions client, which
asks a daemon for echo, logprobs and prompts as token ids.

    loglikelihood.py DAEMON [--requests N]

scripts/loglikelihood runs it. It needs no data set: contexts and continuations are random words. Exit code 1 if a sum of
log-probabilities differs by more than 1e-3, or a greedy verdict differs."""
import argparse
import pathlib
import random
import sys
import tempfile

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "golden"), str(TESTS / "e2e")]
import tiny_models  # noqa: E402

MODEL, TOLERANCE = "llama2", 1e-3
LENGTH = 256  # the client uses windows two tokens shorter than this; the hf backend does not


def instances(kind, arguments):
    from lm_eval.api.instance import Instance
    return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(arguments)]


def make_requests(n):
    """Some continuations are the model's own, because otherwise nothing would be greedy."""
    rng = random.Random("tandem loglikelihood")
    words = "the a cat dog runs sleeps in on under house tree and or when river stone light 1 2 3 . , ! é 世".split()
    text = lambda k: " ".join(rng.choice(words) for _ in range(k))
    pairs = [(text(rng.randrange(1, 40)), " " + text(rng.randrange(1, 8))) for _ in range(n)]
    return pairs, [(text(rng.randrange(1, 150)),) for _ in range(n // 4)]


def greedy_pairs(hf, pairs):
    """Each context with the model's own next token, if that token's text is tokenised to the same token."""
    import torch
    out = []
    for context, _ in pairs[::4]:
        ids = hf.tok_encode(context)
        best = int(hf.model(torch.tensor([ids])).logits[0, -1].argmax())
        text = hf.tokenizer.decode([best])
        if hf.tok_encode(context + text) == ids + [best] and text.strip():
            out.append((context, text))
    return out


def main():
    p = argparse.ArgumentParser()
    p.add_argument("daemon")
    p.add_argument("--requests", type=int, default=200)
    a = p.parse_args()
    import harness
    import torch
    import transformers
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    torch.set_grad_enabled(False)
    harness.DAEMON = a.daemon
    with tempfile.TemporaryDirectory() as out:
        tiny_models.write_folder(out, MODEL, *tiny_models.FOLDERS[MODEL])
        folder = pathlib.Path(out) / MODEL
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), eos_token="<|im_end|>",
                                                         bos_token="<|im_start|>")
        hf = HFLM(pretrained=str(folder), tokenizer=tokenizer, dtype="float32", device="cpu", batch_size=1, max_length=LENGTH)
        tokenizer.save_pretrained(folder / "for_client")
        pairs, texts = make_requests(a.requests)
        pairs += greedy_pairs(hf, pairs)
        with harness.Daemon(model=folder) as d:
            client = LocalCompletionsAPI(base_url=d.url + "/v1/completions", model=MODEL, tokenizer=str(folder / "for_client"),
                                         tokenized_requests=True, batch_size=8, num_concurrent=1,
                                         max_length=LENGTH + 2)
            wrong = 0
            for kind, what in (("loglikelihood", pairs), ("loglikelihood_rolling", texts)):
                want = getattr(hf, kind)(instances(kind, what))
                got = getattr(client, kind)(instances(kind, what))
                if kind == "loglikelihood":
                    greedy = sum(g for _, g in want)
                    bad = [(w, g) for w, g in zip(want, got) if abs(w[0] - g[0]) > TOLERANCE or w[1] != g[1]]
                    worst = max(abs(w[0] - g[0]) for w, g in zip(want, got))
                    print(f"{kind}: {len(want)} requests, {greedy} greedy, largest difference {worst:.1e}, {len(bad)} differ")
                else:
                    bad = [(w, g) for w, g in zip(want, got) if abs(w - g) > TOLERANCE]
                    worst = max(abs(w - g) for w, g in zip(want, got))
                    print(f"{kind}: {len(want)} texts, largest difference {worst:.1e}, {len(bad)} differ")
                wrong += len(bad)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
