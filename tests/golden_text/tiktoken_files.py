"""Makes a tokenizer.json from tiktoken's ranks (Tekken, cl100k), as transformers' TikTokenConverter does. Standard library only."""
import base64
import json

from reference import byte_alphabet, byte_level, sequence, split

TEKKEN_SPECIAL = 1000
CL100K = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = CL100K.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def two_parts(ranks, token):
    """Returns the last merge that makes a token: its parts after only lower ranks were merged."""
    parts, limit = [token[i:i + 1] for i in range(len(token))], ranks[token]
    while len(parts) > 2:
        best = min(((ranks.get(a + b, limit), i) for i, (a, b) in enumerate(zip(parts, parts[1:]))), default=(limit, 0))
        if best[0] >= limit:
            break
        i = best[1]
        parts[i:i + 2] = [parts[i] + parts[i + 1]]
    return parts if len(parts) == 2 else None


def json_from_ranks(ranks, pattern, special, first_id):
    """ranks: bytes -> rank. special: texts whose ids are from 0 on (first_id of them) or after the ranks."""
    alphabet = byte_alphabet()
    text = lambda b: "".join(alphabet[c] for c in b)
    merges = [p for p in (two_parts(ranks, t) for t in sorted(ranks, key=ranks.get) if len(t) > 1) if p]
    vocab = {s: i for i, s in enumerate(special)} if first_id else {}
    vocab.update((text(t), first_id + r) for t, r in ranks.items())
    at = 0 if first_id else max(ranks.values()) + 1
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": at + i, "content": s, "single_word": False, "lstrip": False, "rstrip": False,
                          "normalized": False, "special": True} for i, s in enumerate(special)],
        "pre_tokenizer": sequence(split(pattern), byte_level(False)), "decoder": byte_level(True),
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab,
                  "merges": [[text(a), text(b)] for a, b in merges]},
    }


def json_from_tekken(path):
    j = json.load(open(path))
    known = {s["rank"]: s["token_str"] for s in j.get("special_tokens") or []}
    first = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
             "[TOOL_CALLS]"]
    special = [known.get(i) or (first[i] if i < len(first) else "<SPECIAL_%d>" % i) for i in range(TEKKEN_SPECIAL)]
    return json_from_ranks(read_ranks(path), j["config"]["pattern"], special, TEKKEN_SPECIAL)


def read_ranks(path):
    """Returns bytes -> rank, from a tiktoken file or Tekken's file."""
    if path.endswith(".json"):
        j = json.load(open(path))
        return {base64.b64decode(v["token_bytes"]): v["rank"] for v in j["vocab"][:j["config"]["default_vocab_size"] - TEKKEN_SPECIAL]}
    return {base64.b64decode(t): int(r) for t, r in (line.split() for line in open(path, "rb"))}


def json_from_tiktoken(path, pattern, special=("<|endoftext|>",)):
    return json_from_ranks(read_ranks(path), pattern, list(special), 0)
