"""The hundred prompts of the parity stage, the same on every machine: plain text of many kinds, chats, long texts, and random ids."""
import random

STARTS = [
    "Once upon a time", "The capital of France is", "In 1969, the first", "Water boils at", "The three primary colours are",
    "def fibonacci(n):\n", "#include <stdio.h>\nint main(void)\n{\n", "SELECT name, count(*) FROM", "for i in range(10):\n    print(",
    "{\"name\": \"Anna\", \"age\":", "<html>\n<head>\n<title>", "1, 1, 2, 3, 5, 8,", "2 + 2 = 4\n3 + 3 = 6\n4 + 4 =",
    "Dear Sir or Madam,\n\n", "Ingredients:\n- 200 g flour\n-", "Q: What is the largest planet?\nA:", "Roses are red,\n",
    "Es war einmal ein", "Il était une fois", "Había una vez", "今天天气", "Привет, меня зовут", "A B C D E F G",
    "The quick brown fox", "To be, or not to be,", "E = mc^2 means that", "   \n\n\n", "!!!???", "😀 means", "a", "The", "\t-\t-\t",
]
TOPICS = ["rivers", "bread", "the moon", "old clocks", "bees", "lighthouses", "paper", "winter", "salt", "maps", "tea", "bridges"]
FORMS = ["Write one paragraph about {}.", "Explain {} to a child of five.", "List five facts about {}."]
SYSTEM = "You are a helpful guide who knows every mountain, river and village of this country, and who never hurries. "
SENTENCE = "The {} of the {} was older than the {}, and nobody in the village could say who had made it. "
N_RANDOM = 16


def texts():
    """Prompts that are tokenised unchanged."""
    out = list(STARTS)
    for i in range(16):  # long prompts, half of them with the same beginning
        body = "".join(SENTENCE.format(TOPICS[(i + k) % 12], TOPICS[(i * 3 + k) % 12], TOPICS[(5 * k + i) % 12]) for k in range(2 + i))
        out.append((SYSTEM * 3 if i % 2 else "") + body)
    return out


def chats():
    """Conversations for the model's own template."""
    out = [[{"role": "user", "content": f.format(t)}] for f in FORMS for t in TOPICS[:10]]
    for t in TOPICS[:6]:
        out.append([{"role": "system", "content": SYSTEM}, {"role": "user", "content": f"What do you know about {t}?"},
                    {"role": "assistant", "content": f"I know a lot about {t}."}, {"role": "user", "content": "Tell me more."}])
    return out


def random_ids(vocab):
    rng = random.Random(4)
    return [[rng.randrange(vocab) for _ in range(n)] for n in (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 120, 200, 300)]


def all_ids(daemon, vocab):
    """Returns all of them as token ids, by the model's own tokenizer and template."""
    def ask(body):
        status, o = daemon.post("/tokenize", body)
        if status != 200:
            raise RuntimeError(f"/tokenize: status {status}: {o}")
        return o["tokens"]
    return ([ask({"prompt": t}) for t in texts()] + [ask({"messages": m, "add_generation_prompt": True}) for m in chats()] +
            random_ids(vocab))
